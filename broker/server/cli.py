"""The command `dledger-broker`: one node of a broker group, or a whole group on this machine (--dev).

Exit status: 0 stopped in order; 1 it could not start or has failed, with one line that says why; 2 the
command line or a setting is wrong.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import trio
from rich.console import Console
from rich.markup import escape

from broker.command_line import (
    EXIT_OK,
    SERVER_EXIT_CODES,
    port,
    print_line,
    run_command,
    why_unreadable,
)
from broker.log_output import LogOutput, add_log_options
from broker.properties import Property, read_property_lines
from broker.server.broker import Broker
from broker.server.check_command import check
from broker.server.config import BrokerConfig, Reading, read_settings
from broker.server.dev import DevOptions, run_dev
from broker.server.settings.values import Values
from broker.settings.judging import join_mistakes
from broker.settings.tls import CONFIG_FILE, TlsSettings, read_tls
from broker.tls.file import with_tls_file
from broker.tls.keeper import TlsKeeper, tls_warnings
from dledger import ConfigError, DiskFailedError
from dledger.runtime.allocator import tune_allocator
from dledger.runtime.descriptors import raise_limit
from dledger.runtime.secret_file import SecretFile
from dledger.runtime.stop_signals import STOP_S_MAX, handle_stop_signals
from dledger.version import __version__
from dledger_mq.message import compiled
from dledger_mq.net.address import parse_address

_PROGRAM = "dledger-broker"
_WITHOUT_COMPILED = "DLEDGER_PURE"
"""The environment variable that switches compiled code off, if it is not empty."""

_log = logging.getLogger(__name__)

_EPILOG = (
    """\
try it on this machine (name server and a group of three, Ctrl-C stops everything):
  dledger-broker --dev

a node of a group of three (the same on the other two with --id n1 and n2):
  dledger-broker --group broker-a --id n0 \\
      --peers "n0-10.0.0.1:20911;n1-10.0.0.2:20911;n2-10.0.0.3:20911" \\
      --listen 10911 --namesrv 10.0.0.9:9876 --store data/n0 --secret-file secret

with a RocketMQ broker.conf (the command line beats the file):
  dledger-broker -c broker.conf

  dledger-broker --check -c broker.conf     what would hold, and every mistake; nothing is started

Every setting stands in docs/broker-conf.md. Ctrl-C or SIGTERM stops in order: leadership is handed
over first; requests of clients that do not know the new leader yet are passed on for up to 35 s (stopForwardSec), which
a second signal ends; what is on its way is answered.

"""
    + SERVER_EXIT_CODES
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    options = _parser().parse_args(arguments)
    compiled.choose(is_wanted=not os.environ.get(_WITHOUT_COMPILED))
    return run_command(console, _PROGRAM, lambda: _run(options, console))


def _run(options: argparse.Namespace, console: Console) -> int:
    """Run what the options ask for, to its end; return the exit status.

    Raises:
        ConfigError: the settings are wrong, or options contradict each other.
    """
    # The processes of --dev have files of their own.
    (LogOutput(options.log_level) if options.dev else LogOutput.of(options)).start()
    if options.json and not options.check:
        raise ConfigError("--json goes with --check")
    if options.metrics_port is not None and not options.dev:
        raise ConfigError("--metrics-port goes with --dev; a node has --metrics")
    if options.dev:
        return trio.run(run_dev, _dev_options(options), console)
    reading = _configure(options)
    if options.check:
        return check(reading, as_json=options.json)
    if reading.config is None:
        raise ConfigError(
            join_mistakes(reading.mistakes, f"-c {options.config}" if options.config else None)
        )
    for warning in reading.warnings:
        print_line(console, f"[yellow]{_PROGRAM}:[/yellow] {escape(warning)}")
        if options.log_file is not None:  # nobody may ever look at standard error
            _log.warning("%s", warning)
    trio.run(_serve, reading.config, console)
    return EXIT_OK


def _parser() -> argparse.ArgumentParser:
    """Build the parser; options that a broker.conf can set have no default, which would overrule the file."""
    parser = argparse.ArgumentParser(
        prog=_PROGRAM,
        description="A message broker for RocketMQ clients, replicated with Raft: one node of its group.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument(
        "-c", "--config", metavar="FILE", help="a RocketMQ broker.conf, read as it is"
    )
    parser.add_argument("--group", help="name of the Raft group and of the broker in routes")
    parser.add_argument("--id", metavar="ID", help="this node, one of the ids in --peers")
    parser.add_argument(
        "--peers", metavar="LIST", help='all members: "n0-host:port;n1-host:port;..."'
    )
    parser.add_argument(
        "--join",
        action="store_true",
        help="the group exists: wait to be added to it (dledger-admin members add), and begin none",
    )
    parser.add_argument(
        "--listen",
        metavar="[HOST:]PORT",
        help="where RocketMQ clients connect (default: port 10911 on the host of the own peer)",
    )
    parser.add_argument("--namesrv", metavar="LIST", help='name servers: "host:port;host:port"')
    parser.add_argument(
        "--store", metavar="DIR", help="this node's data (with --dev: all nodes' data)"
    )
    parser.add_argument("--cluster", help="cluster name in routes (default: DefaultCluster)")
    parser.add_argument(
        "--secret-file",
        metavar="FILE",
        help="its first line is the group's secret; a second one is accepted, too, while it is changed",
    )
    parser.add_argument(
        "--tls-config",
        metavar="FILE",
        help="keys of TLS (tls.config.file; docs/tls.md); with --dev for all of its processes",
    )
    parser.add_argument(
        "--metrics",
        metavar="[HOST:]PORT",
        help="give figures for Prometheus (/metrics), /healthz and /readyz there; a bare port is on 127.0.0.1",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="show what would hold, from where, and every mistake; start nothing (exit status 2: there are mistakes)",
    )
    parser.add_argument("--json", action="store_true", help="with --check: as JSON")
    parser.add_argument(
        "--lenient",
        action="store_true",
        help="go on, with a warning, without keys that are unknown and with defaults for values that are wrong; not "
        "for what protects",
    )
    add_log_options(parser, level="info")
    _add_dev(parser)
    return parser


def _add_dev(parser: argparse.ArgumentParser) -> None:
    """Add what is for trying a group on one machine."""
    dev = parser.add_argument_group("a whole group on this machine")
    dev.add_argument("--dev", action="store_true", help="name server and three nodes on 127.0.0.1")
    dev.add_argument(
        "--port",
        type=port,
        default=10911,
        metavar="PORT",
        help="first broker port (default: 10911)",
    )
    dev.add_argument(
        "--namesrv-port",
        type=port,
        default=9876,
        metavar="PORT",
        help="port of the name server (default: 9876)",
    )
    dev.add_argument(
        "--metrics-port",
        type=port,
        metavar="PORT",
        help="give figures (/metrics, /healthz, /readyz) of the nodes on this port and the next two, of the name "
        "server on the one behind",
    )


def _dev_options(options: argparse.Namespace) -> DevOptions:
    """Read the options of --dev, and refuse those that it chooses itself: they would silently do nothing."""
    for name in ("config", "group", "id", "peers", "listen", "namesrv", "secret_file", "metrics"):
        if getattr(options, name) is not None:
            raise ConfigError(
                f"--dev chooses --{name.replace('_', '-')} itself: leave one of the two out"
            )
    if options.check or options.lenient or options.join:
        raise ConfigError(
            "--check, --lenient and --join are for a broker.conf or a command line without --dev"
        )
    return DevOptions(
        # Absolute, since the processes of a lost --dev are found by their commands, which name it.
        store=Path(options.store or "data/dev").resolve(),
        first_port=options.port,
        namesrv_port=options.namesrv_port,
        metrics_port=options.metrics_port,
        cluster=options.cluster or "DefaultCluster",
        log=LogOutput.of(options),
        tls_config=options.tls_config and str(Path(options.tls_config).resolve()),
        tls=_tls_of_dev(options.tls_config),
    )


def _tls_of_dev(path: str | None) -> TlsSettings:
    """Return what the processes of --dev offer each other; raises ConfigError."""
    if path is None:
        return TlsSettings()
    values = Values(with_tls_file({CONFIG_FILE: path}))
    settings = read_tls(values)
    if values.mistakes:
        raise ConfigError(join_mistakes([str(each.text) for each in values.mistakes], path))
    TlsKeeper(settings)
    return settings


def _configure(options: argparse.Namespace) -> Reading:
    """Join the configuration file and the command line, and check them.

    Raises:
        ConfigError: the file cannot be read, or an option cannot.
    """
    found = _read_file(options.config) if options.config else []
    values = {each.key: each.value for each in found}
    if options.tls_config is not None:
        values[CONFIG_FILE] = options.tls_config
    reading = read_settings(
        with_tls_file(values),
        _flags(options),
        lines={each.key: each.line for each in found},
        is_lenient=options.lenient,
    )
    reading = dataclasses.replace(reading, warnings=(*_repeated(found), *reading.warnings))
    if reading.config is None:
        return reading
    try:
        host = _ipv4(reading.config.advertised_host)
        TlsKeeper(reading.config.tls)
    except ConfigError as error:
        return dataclasses.replace(reading, config=None, mistakes=(str(error),))
    return dataclasses.replace(
        reading,
        config=dataclasses.replace(
            reading.config,
            advertised_host=host,
            acl_file=_beside(options.config, reading.config.acl_file),
            secret_file=options.secret_file,
        ),
        warnings=(
            *reading.warnings,
            *tls_warnings(reading.config.tls),
            *_secret_warnings(options.secret_file),
        ),
    )


def _secret_warnings(path: str | None) -> list[str]:
    return SecretFile(path, "--secret-file").warnings() if path else []


def _beside(conf: str | None, file: str | None) -> str | None:
    """Return the absolute path of a file that is named in a broker.conf; a relative one is meant from there."""
    if file is None:
        return None
    folder = Path(conf).resolve().parent if conf else Path.cwd()
    return str(folder / file)


def _read_file(path: str) -> list[Property]:
    """Read the lines of a broker.conf.

    Raises:
        ConfigError: names the file, and what is wrong with it.
    """
    try:
        return read_property_lines(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"-c {path} cannot be read: {why_unreadable(error)}") from error
    except ConfigError as error:
        raise ConfigError(f"-c {path}, {error}") from error


def _flags(options: argparse.Namespace) -> dict[str, str]:
    """Return what the command line sets, under the keys of a broker.conf.

    Raises:
        ConfigError: an option cannot be read.
    """
    flags = {
        "dLegerGroup": options.group,
        "dLegerSelfId": options.id,
        "dLegerPeers": options.peers,
        "namesrvAddr": options.namesrv,
        "storePathRootDir": options.store,
        "brokerClusterName": options.cluster,
        "raftJoin": "true" if options.join else None,
    }
    if options.listen:
        try:
            listen = parse_address(options.listen)
        except ValueError as error:
            raise ConfigError(f"--listen: {error}") from error
        flags["listenPort"] = str(listen.port)
        flags["bindAddress"] = listen.host or None
    if options.metrics:
        flags |= _metrics_flags(options.metrics)
    if options.secret_file:
        flags["secret"] = SecretFile(options.secret_file, "--secret-file").secret.shown
    return {key: value for key, value in flags.items() if value is not None}


def _metrics_flags(text: str) -> dict[str, str]:
    """Return what --metrics sets.

    Raises:
        ConfigError: it is no address.
    """
    try:
        address = parse_address(text)
    except ValueError as error:
        raise ConfigError(f"--metrics: {error}") from error
    return {
        "metricsExporterType": "PROM",
        "metricsPromExporterHost": address.host,
        "metricsPromExporterPort": str(address.port),
    }


def _repeated(found: Sequence[Property]) -> list[str]:
    """Say which lines are overruled by a later one with the same key."""
    last = {each.key: each.line for each in found}
    return [
        f"line {each.line}: {each.key} stands again in line {last[each.key]}, which wins"
        for each in found
        if each.line != last[each.key]
    ]


def _ipv4(host: str) -> str:
    """Resolve the address that is advertised to clients: messages carry it as four bytes."""
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(
            f"{host}, where clients are to find this node (brokerIP1, or the host of --listen or --peers), is not an "
            f"IPv4 address and cannot be resolved to one: {error.strerror or error}"
        ) from error
    return str(found[0][4][0])


async def _serve(config: BrokerConfig, console: Console) -> None:
    """Run one node until a signal; it is announced as ready once the log is recovered and clients are accepted."""
    raise_limit()
    tune_allocator()
    try:
        broker = Broker(config)
    except OSError as error:
        raise DiskFailedError(f"the store {config.store_path} cannot be opened: {error}") from error
    async with trio.open_nursery() as nursery:
        signal_count = 0

        def stop(_number: signal.Signals) -> None:
            """Stop in order at the first signal, without regard to old routes at the second, at once at the third."""
            nonlocal signal_count
            signal_count += 1
            if signal_count > 2:
                nursery.cancel_scope.cancel()
            broker.stop()

        handle_stop_signals(stop, stop_s_max=STOP_S_MAX + config.stop_forward_s)
        await nursery.start(broker.run)
        # A full collection looks at every object: 100 ms of the loop with 80 000 queues. What is there now stays.
        gc.freeze()
        where = ", ".join(map(str, broker.addresses))
        print_line(
            console,
            f"[green]broker {escape(config.broker_name)}, node {escape(config.node_id)}, is ready[/green]: "
            f"clients at {where}, members at {config.own_peer.host}:{config.own_peer.port}, "
            f"name servers {escape('; '.join(map(str, config.namesrvs)) or 'none')}"
            + (f", figures at {broker.metrics_address}" if broker.metrics_address else ""),
        )
        _log.info("messages are put into the log by %s", compiled.describe())


if __name__ == "__main__":
    sys.exit(main())
