"""The signature of a request as RocketMQ's ACL of 4.x has it: made by clients, checked by servers. Pure.

Signed is the text of all ext values, in the order of their names and without anything between them, and then the body;
the signature is the HMAC-SHA1 of it as base64 (docs/acl.md says what that leaves open). Request code, opaque and flag
are not part of it. It must not know accounts or rights (broker/access).
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from collections.abc import Container, Mapping
from typing import Final

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
TEMPORARY: Final = "SecurityToken"
"""The field of temporary keys; what stands there is signed and not checked."""
UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"

_LEFT_OUT_BY_SOME: Final = (UNIQUE_KEY_QUERY, TEMPORARY)
"""Java up to 4.9.3 signs before it adds the first, Go never signs the second."""


def signed_content(
    ext: Mapping[str, str], body: bytes, *, without: Container[str] = (SIGNATURE,)
) -> bytes:
    """Return the bytes that are signed: of all fields but those in `without`."""
    names = [name for name in ext if name not in without]
    names.sort(key=None if all(map(str.isascii, names)) else _as_java_orders)
    return "".join([ext[name] for name in names]).encode() + body


def _as_java_orders(name: str) -> bytes:
    """Return a key by which names are in the order of Java's strings, which are UTF-16."""
    return name.encode("utf-16-be", "surrogatepass")


def make_signature(secret_key: str, content: bytes) -> str:
    """Return the signature of these bytes."""
    return b64encode(hmac.digest(secret_key.encode(), content, "sha1")).decode()


def sign(
    ext: Mapping[str, str],
    body: bytes,
    *,
    access_key: str,
    secret_key: str,
    security_token: str | None = None,
) -> dict[str, str]:
    """Return the fields of a request with those that say who sends it and prove it."""
    signed = {**ext, ACCESS_KEY: access_key}
    if security_token is not None:
        signed[TEMPORARY] = security_token
    signed.pop(SIGNATURE, None)
    signed[SIGNATURE] = make_signature(secret_key, signed_content(signed, body))
    return signed


def is_signed_with(secret_key: str, ext: Mapping[str, str], body: bytes) -> bool:
    """Return whether a request carries the signature that this key makes; takes the same time for any wrong one."""
    given = ext.get(SIGNATURE, "").encode()
    if hmac.compare_digest(given, _signature(secret_key, ext, body, (SIGNATURE,))):
        return True
    return any(
        hmac.compare_digest(given, _signature(secret_key, ext, body, (SIGNATURE, name)))
        for name in _LEFT_OUT_BY_SOME
        if name in ext
    )


def _signature(
    secret_key: str, ext: Mapping[str, str], body: bytes, without: Container[str]
) -> bytes:
    return make_signature(secret_key, signed_content(ext, body, without=without)).encode()
