"""What keeps strangers out of the groups of a run: a secret, TLS between members and for clients, accounts.

The files lie beside the stores. What the harness and its clients open within `lets_in` shows what it needs; nothing is
handed from one to the next, as in `dledger-admin`. It knows options and settings of our programs, and no system.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from dledger import Client, MemberTls
from dledger.config import is_loopback
from dledger_mq import Credentials, make_tls_context
from dledger_mq.client.credentials import credentials_for_all
from dledger_mq.client.tls import tls_for_all
from dledger_mq.net.tls_contexts import TlsFiles
from jepsen.certificates import write_certificates
from jepsen.group_secret import KNOWN_TO_ALL, secret_of, write_secret

Guard = Literal["secret", "tls", "accounts"]
GUARDS: Final[tuple[Guard, ...]] = get_args(Guard)

ACCOUNT: Final = Credentials("chaos-clients", "known to all who read this")
"""The account of all clients of a run. It guards nothing: whoever reads the source knows it."""

_RULES: Final = f"""accounts:
- accessKey: {ACCOUNT.access_key}
  secretKey: {ACCOUNT.secret_key}
  admin: true
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: PUB|SUB
"""


@dataclass(frozen=True, slots=True)
class _MemberAccess:
    """The secret and the certificates that the harness shows to members of a group's log."""

    secret: str | None
    tls: MemberTls | None


_CHOSEN: Final[ContextVar[_MemberAccess | None]] = ContextVar("member_access", default=None)


@dataclass(frozen=True, slots=True)
class Guards:
    """The files that keep strangers out of a run's groups; None where something is not asked for.

    Attributes:
        secret_file: of the group's secret.
        tls_files: a certificate for all, its key, and who signed it.
        tls_config: keys of TLS for brokers and name servers, as a file.
        rules: `plain_acl.yml`.
    """

    secret_file: Path | None = None
    tls_files: TlsFiles | None = None
    tls_config: Path | None = None
    rules: Path | None = None

    def log_options(self) -> list[str]:
        """Return the options of a member of a plain log group."""
        options = [] if self.secret_file is None else ["--secret-file", str(self.secret_file)]
        if (files := self.tls_files) is not None:
            options += ["--tls-cert", files.certificate, "--tls-key", files.key]
            options += ["--tls-trust", files.trust]
        return options

    def broker_options(self) -> list[str]:
        """Return the options of a broker, beside its settings."""
        options = [] if self.secret_file is None else ["--secret-file", str(self.secret_file)]
        return options + self._tls_options()

    def name_server_options(self) -> list[str]:
        """Return the options of a name server of the group."""
        options: list[str] = []
        if self.secret_file is not None:
            options += ["--group-secret-file", str(self.secret_file)]
        if self.rules is not None:
            conf = self.rules.with_name("namesrv.conf")
            conf.write_text("".join(f"{key}={text}\n" for key, text in self.settings().items()))
            options += ["-c", str(conf)]
        return options + self._tls_options()

    def _tls_options(self) -> list[str]:
        return [] if self.tls_config is None else ["--tls-config", str(self.tls_config)]

    def settings(self) -> dict[str, str]:
        """Return the keys of broker.conf and namesrv.conf that let accounts only in."""
        if self.rules is None:
            return {}
        return {"aclEnable": "true", "aclFile": str(self.rules)}

    @property
    def secret(self) -> str | None:
        """The secret itself."""
        return None if self.secret_file is None else KNOWN_TO_ALL

    def tls_keys(self) -> dict[str, str]:
        """Return the keys of TLS of a broker; a name server passes over those of members."""
        if (files := self.tls_files) is None:
            return {}
        return {
            "tls.server.mode": "enforcing",
            "tls.server.certPath": files.certificate,
            "tls.server.keyPath": files.key,
            "tls.client.trustCertPath": files.trust,
            "tls.peer.mode": "enforcing",
            "tls.peer.trustCertPath": files.trust,
        }

    @contextmanager
    def lets_in(self) -> Iterator[None]:
        """Let whatever is opened within the block show what it needs: clients of brokers and of the log."""
        files, tls, members = self.tls_files, None, None
        if files is not None:
            tls = make_tls_context(trust=files.trust)
            members = MemberTls.from_files(
                certificate=files.certificate, key=files.key, trust=files.trust
            )
        with ExitStack() as stack:
            stack.enter_context(tls_for_all(tls))
            stack.enter_context(credentials_for_all(None if self.rules is None else ACCOUNT))
            token = _CHOSEN.set(_MemberAccess(self.secret, members))
            stack.callback(_CHOSEN.reset, token)
            yield


def make_guards(folder: Path, asked: Sequence[Guard], hosts: Sequence[str]) -> Guards:
    """Write what keeps strangers out.

    A secret comes with accounts, and where other machines could reach a member: neither starts without.

    Args:
        folder: for the files.
        asked: what the command line says.
        hosts: addresses at which members and name servers are reached.
    """
    has_secret = bool({"secret", "accounts"} & {*asked}) or not all(map(is_loopback, hosts))
    guards = Guards(
        secret_file=write_secret(folder) if has_secret else None,
        tls_files=write_certificates(folder, hosts) if "tls" in asked else None,
        tls_config=folder / "tls.properties" if "tls" in asked else None,
        rules=folder / "plain_acl.yml" if "accounts" in asked else None,
    )
    if guards.tls_config is not None:
        text = "".join(f"{key}={value}\n" for key, value in guards.tls_keys().items())
        guards.tls_config.write_text(text)
    if guards.rules is not None:
        guards.rules.touch(mode=0o600)
        guards.rules.write_text(_RULES)
    return guards


def member_client(peers: str, *, group: str, timeout_s: float) -> Client:
    """Return a client of a group's log that shows its members what they want to see."""
    access = _CHOSEN.get() or _MemberAccess(secret_of(peers), None)
    return Client(peers, group=group, secret=access.secret, tls=access.tls, timeout_s=timeout_s)
