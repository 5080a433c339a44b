"""The signature of a request as RocketMQ's ACL of 4.x has it: made by clients, checked by servers. Pure.

Signed is the text of all ext values, in the order of their names and without anything between them, and then the body;
the signature is the HMAC-SHA1 of it as base64 (docs/acl.md says what that leaves open). Request code, opaque and flag
are not part of it. It must not know accounts or rights (broker/access).
"""

from __future__ import annotations

import hmac
from binascii import b2a_base64
from collections.abc import Container, Mapping
from typing import Final

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
TEMPORARY: Final = "SecurityToken"
"""The field of temporary keys; what stands there is signed and not checked."""
UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"

_LEFT_OUT_BY_SOME: Final = (UNIQUE_KEY_QUERY, TEMPORARY)
"""Java up to 4.9.3 signs before it adds the first, Go never signs the second."""


def signed_content(ext: Mapping[str, str], *, without: Container[str] = (SIGNATURE,)) -> bytes:
    """Return the bytes that are signed before those of the body: of all fields but those in `without`."""
    names = [name for name in ext if name not in without]
    names.sort(key=None if "".join(names).isascii() else _as_java_orders)
    return "".join([ext[name] for name in names]).encode()


def _as_java_orders(name: str) -> bytes:
    """Return a key by which names are in the order of Java's strings, which are UTF-16."""
    return name.encode("utf-16-be", "surrogatepass")


class SigningKey:
    """A secret key made ready for signing, which takes longer than to sign with it. It cannot be read back."""

    __slots__ = ("_keyed",)

    def __init__(self, secret_key: str) -> None:
        self._keyed = hmac.new(secret_key.encode(), digestmod="sha1")

    def signature(self, *content: bytes) -> bytes:
        """Return the signature of these bytes together, in base64."""
        mac = self._keyed.copy()
        for piece in content:
            mac.update(piece)
        return b2a_base64(mac.digest(), newline=False)


def sign(
    ext: Mapping[str, str],
    body: bytes,
    *,
    access_key: str,
    key: SigningKey,
    security_token: str | None = None,
) -> dict[str, str]:
    """Return the fields of a request with those that say who sends it and prove it."""
    signed = {**ext, ACCESS_KEY: access_key}
    if security_token is not None:
        signed[TEMPORARY] = security_token
    signed.pop(SIGNATURE, None)
    signed[SIGNATURE] = key.signature(signed_content(signed), body).decode()
    return signed


def is_signed_with(key: SigningKey, ext: Mapping[str, str], body: bytes) -> bool:
    """Return whether a request carries the signature that this key makes; takes the same time for any wrong one."""
    given = ext.get(SIGNATURE, "").encode()
    if hmac.compare_digest(given, key.signature(signed_content(ext), body)):
        return True
    return any(
        hmac.compare_digest(
            given, key.signature(signed_content(ext, without=(SIGNATURE, name)), body)
        )
        for name in _LEFT_OUT_BY_SOME
        if name in ext
    )
