"""Who a client is to brokers and name servers that want an account: its access key, and the secret key that signs.

A producer or consumer is given them by its argument `credentials`. A tool whose parts open connections of their own
chooses them for all, once. Every request is signed as RocketMQ's AclClientRPCHook does it, also one that waits for no
answer; answers to requests of brokers are not, as there (docs/acl.md). Secrets are in no repr and in no error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dledger_mq.client.errors import ClientUsageError
from dledger_mq.remoting.signature import SigningKey, sign

CREDENTIALS_VARIABLE: Final = "DLEDGER_CREDENTIALS"
"""The environment variable that names a file of credentials."""

_ABOUT_ACCESS: Final = "AclException"
"""RocketMQ's name of it, which stands in refusals of its brokers and of ours."""

_NAMES: Final = ("accessKey", "secretKey", "securityToken")


@dataclass(frozen=True, slots=True)
class Credentials:
    """The keys of an account.

    Attributes:
        access_key: names the account.
        secret_key: signs requests; it is never sent.
        security_token: of temporary keys, which some clouds give out: goes along, signed.
        key: the secret key, ready to sign.
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)
    key: SigningKey = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse what is no key.

        Raises:
            ClientUsageError: a key is missing, no text, or cannot be written as UTF-8; it shows no secret.
        """
        for name in ("access_key", "secret_key", "security_token"):
            value = getattr(self, name)
            if value is None and name == "security_token":
                continue
            if not isinstance(value, str) or not value:
                raise ClientUsageError(
                    f"{name} is {_kind(value)}, not a text of 1 character or more"
                )
            if any("\ud800" <= each <= "\udfff" for each in value):
                raise ClientUsageError(f"{name} cannot be written as UTF-8")
        object.__setattr__(self, "key", SigningKey(self.secret_key))

    def sign(self, ext: Mapping[str, str], body: bytes) -> dict[str, str]:
        """Return the fields of a request with those that say who sends it and prove it."""
        return sign(
            ext,
            body,
            access_key=self.access_key,
            key=self.key,
            security_token=self.security_token,
        )


def _kind(value: object) -> str:
    return "empty" if value == "" else type(value).__name__


def read_credentials(path: str | Path | None = None) -> Credentials:
    """Return what `credentials` of a client takes, from a file with lines such as `accessKey: shop-orders`.

    That is the form of RocketMQ's `conf/tools.yml`: accessKey, secretKey, and securityToken where there is one. Empty
    lines and those that begin with # are passed over, and quotation marks around a value.

    Args:
        path: of the file; None: the environment variable DLEDGER_CREDENTIALS names it.

    Raises:
        ClientUsageError: there is no such file, it cannot be read, or says something else; it shows no secret.
    """
    source = str(path if path is not None else os.environ.get(CREDENTIALS_VARIABLE, ""))
    if not source:
        raise ClientUsageError(
            f"no file of credentials is named, neither here nor by {CREDENTIALS_VARIABLE}"
        )
    try:
        text = Path(source).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ClientUsageError(f"credentials {source}: it is not text in UTF-8") from None
    except OSError as error:
        why = error.strerror or str(error)
        raise ClientUsageError(f"credentials {source} cannot be read: {why}") from error
    values = _values(text, source)
    missing = [name for name in _NAMES[:2] if not values.get(name)]
    if missing:
        raise ClientUsageError(f"credentials {source}: {' and '.join(missing)} is missing")
    return Credentials(
        values["accessKey"], values["secretKey"], values.get("securityToken") or None
    )


def _values(text: str, source: str) -> dict[str, str]:
    """Return what the lines of a file say.

    Raises:
        ClientUsageError: a line says something else, or a thing twice; it shows the line's number only.
    """
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        name, _, value = (part.strip() for part in stripped.partition(":"))
        if name not in _NAMES:
            wanted = ", ".join(f"{each}:" for each in _NAMES)
            raise ClientUsageError(
                f"credentials {source}: line {number} begins with none of {wanted}"
            )
        if name in values:
            raise ClientUsageError(f"credentials {source}: {name} stands there twice")
        if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        values[name] = value
    return values


def with_sender(remark: str, credentials: Credentials | None) -> str:
    """Return a server's words; where they are about access, with who this client has said it is."""
    if _ABOUT_ACCESS not in remark:
        return remark
    who = f"as {credentials.access_key}" if credentials is not None else "without credentials"
    return f"{remark} (asked {who})"


_CHOSEN: Final[ContextVar[Credentials | None]] = ContextVar("credentials_for_all", default=None)


@contextmanager
def credentials_for_all(credentials: Credentials | None) -> Iterator[None]:
    """Sign for all clients that are made within the block and were not given credentials of their own."""
    token = _CHOSEN.set(credentials)
    try:
        yield
    finally:
        _CHOSEN.reset(token)


def chosen_credentials() -> Credentials | None:
    """Return what `credentials_for_all` says here; None: nothing is signed."""
    return _CHOSEN.get()
