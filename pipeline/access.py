"""Who a reader or writer is to brokers and name servers, and how its connections are encrypted.

Options name files; what is in them is read where a connection is opened, on the driver and in each task, so that no key
stands in a plan, a table's schema, a log or an error. It knows no brokers, and nothing of Spark.
"""

from __future__ import annotations

import argparse
import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypedDict

from dledger_mq.client.credentials import (
    CREDENTIALS_VARIABLE,
    Credentials,
    chosen_credentials,
    credentials_for_all,
    read_credentials,
)
from dledger_mq.client.errors import ClientUsageError
from dledger_mq.client.tls import chosen_tls, make_tls_context, tls_for_all
from pipeline.errors import PipelineUsageError
from pipeline.options import OptionReader

_FILES: Final[Mapping[str, str]] = {
    "accessKey": f"credentialsPath or the environment variable {CREDENTIALS_VARIABLE}",
    "secretKey": f"credentialsPath or the environment variable {CREDENTIALS_VARIABLE}",
    "securityToken": f"credentialsPath or the environment variable {CREDENTIALS_VARIABLE}",
    "tlsKeyPassword": "tlsKeyPasswordPath",
}
"""Options that must not be, by name, with the option that names a file for them."""


class AccessArguments(TypedDict):
    """The arguments of clients of `dledger_mq` that say who they are."""

    credentials: Credentials | None
    tls: ssl.SSLContext | None


@dataclass(frozen=True, slots=True)
class BrokerAccess:
    """The files that options name; all of them are opened by each process for itself.

    Attributes:
        credentials: of the account that signs; None: the file that DLEDGER_CREDENTIALS names, else nobody signs.
        is_encrypted: whether connections are encrypted without any of the others.
        trust: PEM of those who sign the servers' certificates; None: those whom the system believes.
        certificate: PEM to show.
        key: PEM of its key; None: it is in the same file.
        key_password: a file whose first line is the key's password.
        believes_all: encrypted, with whoever answers.
    """

    credentials: str | None = None
    is_encrypted: bool = False
    trust: str | None = None
    certificate: str | None = None
    key: str | None = None
    key_password: str | None = None
    believes_all: bool = False

    def arguments(self) -> AccessArguments:
        """Read the files; return what a client is to be made with.

        Raises:
            PipelineUsageError: names a file that cannot be used, and why; it shows nothing of what is in it.
        """
        try:
            return {"credentials": self._credentials(), "tls": self._tls()}
        except ClientUsageError as error:
            raise PipelineUsageError(str(error)) from error

    def shipped_in(self, folder: Path) -> BrokerAccess:
        """Return the same with each relative name that stands in a folder of shipped files meaning the file there.

        A shipped file goes before one of the same name where the process was started, so that a name means one file
        on every machine.
        """
        return replace(
            self,
            credentials=_shipped(self.credentials, folder),
            trust=_shipped(self.trust, folder),
            certificate=_shipped(self.certificate, folder),
            key=_shipped(self.key, folder),
            key_password=_shipped(self.key_password, folder),
        )

    @contextmanager
    def for_all(self) -> Iterator[None]:
        """Let all clients that are made within the block sign and encrypt so.

        Raises:
            PipelineUsageError: as `arguments`.
        """
        arguments = self.arguments()
        credentials = arguments["credentials"] or chosen_credentials()
        with tls_for_all(arguments["tls"] or chosen_tls()), credentials_for_all(credentials):
            yield

    def _credentials(self) -> Credentials | None:
        if self.credentials is None and not os.environ.get(CREDENTIALS_VARIABLE):
            return None
        return read_credentials(self.credentials)

    def _tls(self) -> ssl.SSLContext | None:
        if not (self.is_encrypted or self.believes_all or self.trust or self.certificate):
            return None
        return make_tls_context(
            trust=self.trust or "",
            certificate=self.certificate or "",
            key=self.key or "",
            key_password=_first_line(self.key_password),
            checks_server=not self.believes_all,
        )


def _shipped(name: str | None, folder: Path) -> str | None:
    if name is None:
        return None
    shipped = folder / name  # an absolute name stays what it is
    return str(shipped.absolute()) if shipped.is_file() else name


def _first_line(path: str | None) -> str:
    """Return the first line of a file of a password; "" without one. Raises ClientUsageError."""
    if path is None:
        return ""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise ClientUsageError(f"tlsKeyPasswordPath {path}: it is not text in UTF-8") from None
    except OSError as error:
        why = error.strerror or str(error)
        raise ClientUsageError(f"tlsKeyPasswordPath {path} cannot be read: {why}") from error
    return lines[0] if lines else ""


def read_access(options: OptionReader) -> BrokerAccess:
    """Take the options about access; what the files hold is not looked at.

    Raises:
        PipelineUsageError: names the option and what is wrong with it.
    """
    for name, where in _FILES.items():
        options.refuse(
            name, f"is not taken, since plans show options: write it into a file for {where}"
        )
    access = BrokerAccess(
        credentials=options.text("credentialsPath"),
        is_encrypted=options.boolean("tls", default=False),
        trust=options.text("tlsTrustPath"),
        certificate=options.text("tlsCertPath"),
        key=options.text("tlsKeyPath"),
        key_password=options.text("tlsKeyPasswordPath"),
        believes_all=options.boolean("tlsInsecure", default=False),
    )
    if access.believes_all and access.trust is not None:
        raise options.error("tlsInsecure", "checks nothing, tlsTrustPath says whom to believe")
    if access.certificate is None and (access.key or access.key_password):
        raise options.error("tlsCertPath", "is missing: a key is given")
    return access


def access_options(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the options of a format that say what a command line says, which has the words of `dledger-admin`."""
    paths = {
        "credentialsPath": arguments.credentials,
        "tlsTrustPath": arguments.tls_trust,
        "tlsCertPath": arguments.tls_cert,
        "tlsKeyPath": arguments.tls_key,
        "tlsKeyPasswordPath": arguments.tls_key_password_file,
    }
    found = {name: str(Path(path).absolute()) for name, path in paths.items() if path is not None}
    words = {"tls": arguments.tls, "tlsInsecure": arguments.tls_insecure}
    return found | {name: "true" for name, is_set in words.items() if is_set}
