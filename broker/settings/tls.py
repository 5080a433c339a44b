"""The keys of TLS, which brokers and name servers share: RocketMQ's names, and what they mean here. Pure.

RocketMQ reads most of them from a file of their own or from properties of Java's process; here they may stand in
broker.conf or namesrv.conf, and in the file that `tls.config.file` names.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, Protocol

from broker.settings.keys import HonouredKey, NeedlessKeys, RefusedKey, flag, text
from dledger_mq.net.tls_contexts import TlsFiles

CONFIG_FILE: Final = "tls.config.file"
CONFIG_FILE_OF_STOCK: Final = "/etc/rocketmq/tls.properties"
OF_MEMBERS: Final = "tls.peer."
"""The beginning of the keys that only members of a group have; name servers may share a TLS file with them."""

PASSWORDS: Final = frozenset(
    {"tls.server.keyPassword", "tls.client.keyPassword", "tls.peer.keyPassword"}
)
"""Keys whose values are shown to nobody."""


class TlsMode(StrEnum):
    """The modes of a port; the values are RocketMQ's."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


_CLIENT_AUTH: Final = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "require": ssl.CERT_REQUIRED,
}

TLS_KEYS: Final = (
    HonouredKey(
        text("tls.server.mode", "permissive"),
        "what the port for clients takes: `disabled`, plain text; `permissive`, both, told apart by the first byte; "
        "`enforcing`, TLS only ([tls.md](tls.md))",
        shown_default="`permissive` with a certificate, else `disabled`",
        is_strict=True,
    ),
    HonouredKey(
        text("tls.server.certPath", ""),
        "certificate of this node as PEM, those who signed it after it; read again when it changes",
        shown_default="none",
        is_strict=True,
    ),
    HonouredKey(
        text("tls.server.keyPath", ""),
        "its key as PEM; nobody else should be able to read it",
        shown_default="the file of the certificate",
        is_strict=True,
    ),
    HonouredKey(
        text("tls.server.keyPassword", ""),
        "password of the key; shown nowhere",
        shown_default="none",
        is_strict=True,
    ),
    HonouredKey(
        text("tls.server.trustCertPath", ""),
        "who signs certificates of clients, as PEM",
        shown_default="none",
        is_strict=True,
    ),
    HonouredKey(
        text("tls.server.need.client.auth", "none"),
        "whether clients show certificates: `none`; `optional`, those that do show one that is believed; `require`. "
        "They are checked in any case, whatever `tls.server.authClient` says",
        is_strict=True,
    ),
    HonouredKey(
        flag("tls.enable", "false"),
        "whether what this process opens, to name servers, brokers and nodes of its group, is encrypted",
        shown_default="true if `tls.server.mode` is `enforcing`",
        is_strict=True,
    ),
    HonouredKey(flag("useTLS", "false"), "true: the same as `tls.enable=true`", is_strict=True),
    HonouredKey(
        flag("tls.client.authServer", "false"),
        "whether certificates of servers are checked there, and the host they are for; false talks to whoever answers",
        is_strict=True,
    ),
    HonouredKey(
        text("tls.client.trustCertPath", ""),
        "who signs certificates of servers, as PEM",
        shown_default="those whom the system believes",
        is_strict=True,
    ),
    HonouredKey(
        text("tls.client.certPath", ""),
        "certificate to show to servers that want one, as PEM",
        shown_default="none",
        is_strict=True,
    ),
    HonouredKey(
        text("tls.client.keyPath", ""),
        "its key as PEM",
        shown_default="the file of the certificate",
        is_strict=True,
    ),
    HonouredKey(
        text("tls.client.keyPassword", ""),
        "password of that key; shown nowhere",
        shown_default="none",
        is_strict=True,
    ),
    HonouredKey(
        flag("tls.metrics.enable"),
        "whether the port of the figures (`/metrics`, `/healthz`, `/readyz`) takes HTTPS only, with the certificate of "
        "`tls.server.certPath`, and asks its clients for theirs as `tls.server.need.client.auth` says",
        is_strict=True,
    ),
    HonouredKey(
        text(CONFIG_FILE, CONFIG_FILE_OF_STOCK),
        "a file with keys of TLS, which win over those of this one",
        shown_default="none",
        is_strict=True,
    ),
)

PEER_KEYS: Final = (
    HonouredKey(
        text("tls.peer.mode"),
        "what members of the group take from each other and speak: `disabled`, plain text; `permissive`, TLS where the "
        "other has it, while a group changes over; `enforcing`, TLS only, with certificates on both sides",
        is_strict=True,
    ),
    HonouredKey(
        text("tls.peer.certPath"),
        "certificate that this node shows to other members, as PEM",
        shown_default="that of `tls.server.certPath`, with its key",
        is_strict=True,
    ),
    HonouredKey(
        text("tls.peer.keyPath"),
        "its key as PEM",
        shown_default="the file of the certificate",
        is_strict=True,
    ),
    HonouredKey(
        text("tls.peer.keyPassword"),
        "password of that key; shown nowhere",
        shown_default="none",
        is_strict=True,
    ),
    HonouredKey(
        text("tls.peer.trustCertPath"),
        "who signs certificates of members, as PEM: whoever they sign for may be a member, unless there is a `secret`",
        shown_default="none",
        is_strict=True,
    ),
)
"""Of brokers only."""

TLS_REFUSED: Final = (
    RefusedKey(
        flag("tlsEnable"),
        ("false",),
        "no such key is known: tls.server.mode is for clients, tls.enable for connections that this process opens",
    ),
)

TLS_NEEDLESS: Final = NeedlessKeys(
    "TLS without certificates",
    "none is made up, and those that clients show are always checked",
    (flag("tls.server.authClient", "false"), flag("tls.test.mode.enable", "true")),
)


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The offer of a process to those who connect, and its demands on those to whom it connects.

    Attributes:
        mode: what the port takes.
        server: certificate of the port, and who signs those of clients.
        client_auth: whether clients show certificates.
        dials: whether connections that are opened are encrypted.
        client: certificate that is shown there, and who signs those of servers.
        checks_servers: whether these are checked.
        figures: whether the port of the figures takes TLS, and nothing else.
        peer_mode: what members of the group take from each other and speak.
        peer: certificate that is shown there, and who signs those of others.
    """

    mode: TlsMode = TlsMode.DISABLED
    server: TlsFiles = field(default_factory=TlsFiles)
    client_auth: ssl.VerifyMode = ssl.CERT_NONE
    dials: bool = False
    client: TlsFiles = field(default_factory=TlsFiles)
    checks_servers: bool = True
    figures: bool = False
    peer_mode: TlsMode = TlsMode.DISABLED
    peer: TlsFiles = field(default_factory=TlsFiles)

    @property
    def is_offered(self) -> bool:
        """True if the port takes TLS."""
        return self.mode is not TlsMode.DISABLED and bool(self.server.certificate)

    @property
    def needs_server(self) -> bool:
        """True if a port shows the server's certificate."""
        return self.is_offered or self.figures


class SettingsReader(Protocol):
    """Values of a file of settings, which gathers what is wrong with them."""

    def text(self, key: str, default: str, /) -> str:
        """Return a text."""
        ...

    def choice(self, key: str, allowed: tuple[str, ...], default: str, /) -> str:
        """Return one of the words that are allowed."""
        ...

    def boolean(self, key: str, *, default: bool) -> bool:
        """Return whether it is true."""
        ...

    def refuse(self, key: str, text: str, /) -> None:
        """Note a mistake."""
        ...


def read_tls(values: SettingsReader) -> TlsSettings:
    """Read the keys of TLS; what they ask for and cannot have is refused."""
    values.text(CONFIG_FILE, "")  # what it names has been read by now
    server = _read_files(values, "server")
    modes = tuple(map(str, TlsMode))
    mode = TlsMode(
        values.choice(
            "tls.server.mode", modes, TlsMode.PERMISSIVE if server.certificate else TlsMode.DISABLED
        )
    )
    if mode is TlsMode.ENFORCING and not server.certificate:
        values.refuse(
            "tls.server.mode", f"tls.server.mode={mode}: name a certificate in tls.server.certPath"
        )
    auth = values.choice("tls.server.need.client.auth", tuple(_CLIENT_AUTH), "none")
    if auth != "none" and not server.trust:
        values.refuse(
            "tls.server.need.client.auth",
            f"tls.server.need.client.auth={auth}: name in tls.server.trustCertPath who signs certificates of clients",
        )
    figures = values.boolean("tls.metrics.enable", default=False)
    if figures and not server.certificate:
        values.refuse(
            "tls.metrics.enable",
            "tls.metrics.enable=true: name a certificate in tls.server.certPath",
        )
    dials = values.boolean("tls.enable", default=mode is TlsMode.ENFORCING)
    return TlsSettings(
        mode=mode,
        server=server,
        client_auth=_CLIENT_AUTH[auth],
        dials=values.boolean("useTLS", default=False) or dials,
        client=_read_files(values, "client"),
        checks_servers=values.boolean("tls.client.authServer", default=True),
        figures=figures,
    )


def read_peer_tls(values: SettingsReader, found: TlsSettings) -> TlsSettings:
    """Add what holds between members; a certificate, and who signs those of the others, must be there."""
    peer = _read_files(values, "peer")
    mode = TlsMode(values.choice("tls.peer.mode", tuple(map(str, TlsMode)), TlsMode.DISABLED))
    if mode is TlsMode.DISABLED:
        return found
    if not peer.certificate:
        peer = replace(found.server, trust=peer.trust)
    for key, given in (("certPath", peer.certificate), ("trustCertPath", peer.trust)):
        if not given:
            values.refuse("tls.peer.mode", f"tls.peer.mode={mode}: tls.peer.{key} is missing")
    return replace(found, peer_mode=mode, peer=peer)


def _read_files(values: SettingsReader, end: str) -> TlsFiles:
    """Read the keys of one end, `server`, `client` or `peer`; a key without its certificate is refused."""
    files = TlsFiles(
        certificate=values.text(f"tls.{end}.certPath", ""),
        key=values.text(f"tls.{end}.keyPath", ""),
        key_password=values.text(f"tls.{end}.keyPassword", ""),
        trust=values.text(f"tls.{end}.trustCertPath", ""),
    )
    if files.key and not files.certificate:
        values.refuse(
            f"tls.{end}.keyPath",
            f"tls.{end}.keyPath={files.key}: tls.{end}.certPath, its certificate, is missing",
        )
    return files
