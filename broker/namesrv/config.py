"""The settings of a name server: command line and namesrv.conf, checked before anything starts.

It must not open anything but the files that it is given, nor print.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from broker.command_line import SERVER_EXIT_CODES, why_unreadable
from broker.log_output import LogOutput, add_log_options
from broker.namesrv.conf_keys import NAME_SERVER_KEYS
from broker.namesrv.errors import NameServerConfigError
from broker.namesrv.replicated_kv import KvGroup
from broker.namesrv.signing_secrets import SigningSecrets, read_guarded
from broker.properties import Property, read_property_lines
from broker.settings.judging import FLAGS, Mistake, join_mistakes, judge
from broker.settings.tls import CONFIG_FILE, OF_MEMBERS, TlsSettings, read_tls
from broker.tls.file import with_tls_file
from broker.tls.keeper import TlsKeeper, tls_warnings
from dledger.errors import ConfigError
from dledger.version import __version__
from dledger_mq.net.address import Address, parse_address

DEFAULT_PORT: Final = 9876
DEFAULT_HOST: Final = "127.0.0.1"

_BROKERS_ASK_IN_VAIN: Final = (
    "aclEnable=true without --secret-file or --group-secret-file: brokers, which have no account, cannot ask for "
    "routes, so consumers whose queues a broker shares out (Java's setClientRebalance(false)) get none"
)


@dataclass(frozen=True, slots=True)
class NameServerConfig:
    """All settings of a name server.

    Attributes:
        listen: where clients and brokers connect; port 0 picks a free one.
        folder: where configuration values are kept; None keeps them in memory.
        group: the other name servers; None for one that stands alone.
        secrets: of broker names; registrations of these must be signed.
        orders_messages: whether routes carry the order configuration of a topic.
        tls: of its port, and of the questions that it asks brokers.
        acl_file: where the accounts stand that requests have to come from; None: anybody may send them.
        log: what is logged, and where to.
        metrics: where figures are given over HTTP; None: nowhere.
        warnings: settings of namesrv.conf that are not used or passed over, and why.
    """

    listen: Address = Address(DEFAULT_HOST, DEFAULT_PORT)
    folder: Path | None = None
    group: KvGroup | None = None
    secrets: SigningSecrets = field(default_factory=SigningSecrets, repr=False)
    orders_messages: bool = False
    tls: TlsSettings = field(default_factory=TlsSettings)
    acl_file: Path | None = None
    log: LogOutput = LogOutput("warning")
    metrics: Address | None = None
    warnings: tuple[str, ...] = ()


def argument_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="dledger-namesrv",
        description="Gives RocketMQ clients and brokers the routes of topics: which brokers have them, and where.",
        epilog=SERVER_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--version", action="version", version=f"%(prog)s {__version__}")
    add(
        "--listen",
        metavar="[HOST:]PORT",
        help=f"where to listen (default {DEFAULT_HOST}:{DEFAULT_PORT}; a bare port listens on "
        f"{DEFAULT_HOST}, use 0.0.0.0:PORT for other machines)",
    )
    add("-c", "--config", metavar="FILE", help="a RocketMQ namesrv.conf; the command line beats it")
    add(
        "--lenient",
        action="store_true",
        help="go on, with a warning, without keys of the file that are unknown or wrong; not where they protect",
    )
    add("--store", metavar="DIR", help="folder for configuration values (default: memory only)")
    add("--kv-listen", metavar="[HOST:]PORT", help="own address between name servers")
    add("--kv-peers", metavar="ADDR,ADDR", help="addresses of the other name servers' --kv-listen")
    add(
        "--kv-password-file",
        metavar="FILE",
        help="file with the password shared between name servers",
    )
    add(
        "--secret-file",
        metavar="FILE",
        help="lines of a broker name (or * for all others) and its group's secret: registrations of these "
        "names must be signed with it",
    )
    add(
        "--group-secret-file",
        metavar="FILE",
        help="the --secret-file of brokers: registrations of all other names must be signed with it",
    )
    add("--tls-config", metavar="FILE", help="keys of TLS (tls.config.file; docs/tls.md)")
    add(
        "--metrics",
        metavar="[HOST:]PORT",
        help="give figures for Prometheus (/metrics), /healthz and /readyz there; a bare port is on "
        f"{DEFAULT_HOST}",
    )
    add_log_options(parser, level="warning")
    return parser


def read_config(arguments: Sequence[str]) -> NameServerConfig:
    """Read the command line and the file it names.

    Raises:
        NameServerConfigError: a setting is wrong or unsafe, or a file cannot be read.
        SystemExit: the command line itself is wrong, or help was asked for.
    """
    options = argument_parser().parse_args(arguments)
    found = [] if options.config is None else _read_file(Path(options.config))
    values = _values(found, options.tls_config)
    tls = _Tls(values)
    settings = read_tls(tls)
    lines = {each.key: each.line for each in found}
    file = f"-c {options.config}" if options.config else f"--tls-config {options.tls_config}"
    warnings = _judge(values, lines, file, further=tls.mistakes, is_lenient=options.lenient)
    _check_files(settings)
    folder = Path(options.store) if options.store else _folder_of(values)
    secrets = SigningSecrets(
        file=Path(options.secret_file) if options.secret_file else None,
        group=options.group_secret_file,
    )
    acl_file = _acl_file(values, Path(options.config or ""))
    if acl_file is not None and not (options.secret_file or options.group_secret_file):
        warnings.append(_BROKERS_ASK_IN_VAIN)
    return NameServerConfig(
        listen=_listen(options.listen, values),
        folder=folder,
        group=_group(options, folder),
        secrets=secrets,
        orders_messages=_boolean(values, "orderMessageEnable"),
        tls=settings,
        acl_file=acl_file,
        log=LogOutput.of(options),
        metrics=_address("--metrics", options.metrics) if options.metrics else None,
        warnings=(*warnings, *tls_warnings(settings), *secrets.warnings()),
    )


def _values(found: Sequence[Property], tls_file: str | None) -> dict[str, str]:
    """Return the values of namesrv.conf and of the TLS file that is named; raises NameServerConfigError."""
    values = {each.key: each.value for each in found}
    if tls_file is not None:
        values[CONFIG_FILE] = tls_file
    try:
        return with_tls_file(values, passes_over=OF_MEMBERS)
    except ConfigError as error:
        raise NameServerConfigError(str(error)) from error


def _check_files(settings: TlsSettings) -> None:
    """Raise NameServerConfigError if a certificate or a key cannot be used."""
    try:
        TlsKeeper(settings)
    except ConfigError as error:
        raise NameServerConfigError(str(error)) from error


class _Tls:
    """The values of the keys of TLS, and what is wrong with them."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self.mistakes: list[Mistake] = []
        self._values = values

    def text(self, key: str, default: str, /) -> str:
        """Return a text."""
        return self._values.get(key, "").strip() or default

    def choice(self, key: str, allowed: tuple[str, ...], default: str, /) -> str:
        """Return one of the words that are allowed."""
        found = self.text(key, default).lower()
        if found in allowed:
            return found
        self.refuse(key, f"{key}={found} is not one of {', '.join(allowed)}")
        return default

    def boolean(self, key: str, *, default: bool) -> bool:
        """Return whether it is true."""
        return self.choice(key, FLAGS, str(default).lower()) == "true"

    def refuse(self, key: str, text: str, /) -> None:
        """Note a mistake."""
        self.mistakes.append(Mistake(key, text))


def _judge(
    values: Mapping[str, str],
    lines: Mapping[str, int],
    file: str,
    *,
    further: Sequence[Mistake],
    is_lenient: bool,
) -> list[str]:
    """Return what is not used and why; raise NameServerConfigError for everything that is wrong, at once."""
    mistakes, notes = judge(values, NAME_SERVER_KEYS)
    wrong, warnings = [], []
    for mistake in sorted((*mistakes, *further), key=lambda each: lines.get(each.key, 0)):
        line = lines.get(mistake.key)
        text = mistake.text if line is None else f"line {line}: {mistake.text}"
        if is_lenient and mistake.is_forgivable:
            warnings.append(f"passed over: {text}")
        else:
            wrong.append(text)
    if wrong:
        raise NameServerConfigError(join_mistakes(wrong, file))
    return warnings + [f"{key} is not used: {why}" for key, why in notes]


def _read_file(path: Path) -> list[Property]:
    try:
        return read_property_lines(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise NameServerConfigError(f"-c {path} cannot be read: {why_unreadable(error)}") from error
    except ConfigError as error:
        raise NameServerConfigError(f"-c {path}, {error}") from error


def _folder_of(values: Mapping[str, str]) -> Path | None:
    """Return the folder of a file setting: RocketMQ names the file, here only its folder counts."""
    path = values.get("kvConfigPath")
    return Path(path).parent if path else None


def _listen(option: str | None, values: Mapping[str, str]) -> Address:
    host = values.get("bindAddress", DEFAULT_HOST)
    if option is not None:
        return _address("--listen", option, host)
    return _address("listenPort", values.get("listenPort", str(DEFAULT_PORT)), host)


def _address(setting: str, text: str, default_host: str = DEFAULT_HOST) -> Address:
    try:
        return parse_address(text, default_host=default_host)
    except ValueError as error:
        raise NameServerConfigError(f"{setting}: {error}") from error


def _boolean(values: Mapping[str, str], key: str) -> bool:
    text = values.get(key, "false").lower()
    if text not in ("true", "false"):
        raise NameServerConfigError(f"{key}: {text!r} is neither true nor false")
    return text == "true"


def _acl_file(values: Mapping[str, str], conf: Path) -> Path | None:
    """Return where accounts stand: beside the file that asks for them, unless it says otherwise."""
    if not _boolean(values, "aclEnable"):
        return None
    return conf.resolve().parent / (values.get("aclFile") or "plain_acl.yml")


def _group(options: argparse.Namespace, folder: Path | None) -> KvGroup | None:
    """Read the group of name servers, None for one alone; options that would silently do nothing are refused."""
    if options.kv_peers is None:
        if options.kv_listen is not None or options.kv_password_file is not None:
            raise NameServerConfigError(
                "--kv-listen and --kv-password-file mean nothing without --kv-peers, the other name servers"
            )
        return None
    for name in ("kv_listen", "kv_password_file"):
        if getattr(options, name) is None:
            raise NameServerConfigError(f"--kv-peers needs --{name.replace('_', '-')}")
    if folder is None:
        raise NameServerConfigError(
            "--kv-peers needs --store: the journal between name servers is on disk"
        )
    group = KvGroup(
        listen=_address("--kv-listen", options.kv_listen),
        peers=tuple(
            _address("--kv-peers", peer) for peer in options.kv_peers.split(",") if peer.strip()
        ),
        password=_read_password(Path(options.kv_password_file)),
        folder=folder,
    )
    group.check()
    return group


def _read_password(path: Path) -> str:
    return read_guarded("--kv-password-file", path).strip()
