"""`dledger-broker --dev`: a name server and a group of three as child processes, for trying things out."""

from __future__ import annotations

import ssl
import sys
from dataclasses import dataclass, field
from pathlib import Path

import trio
from rich.console import Console
from rich.markup import escape

from broker.command_line import print_line
from broker.log_output import LogOutput
from broker.processes.child import Child, ChildEnd, Program
from broker.processes.staged_stop import StagedStop, StopStage
from broker.settings.tls import TlsSettings
from broker.tls.keeper import TlsKeeper
from dledger import ConfigError
from dledger.runtime.stop_signals import handle_stop_signals
from dledger.storage.lock import StoreLock
from dledger_mq.net.address import Address
from dledger_mq.net.connecting import connect
from dledger_mq.remoting.codes import RequestCode
from dledger_mq.remoting.errors import RemotingError
from dledger_mq.remoting.header import decode_command, encode_command, make_request
from dledger_mq.remoting.route import decode_route

HOST = "127.0.0.1"
NODES = ("n0", "n1", "n2")
GROUP = "broker-a"
PORT_STEP = 10
PORT_MAX = 65_535
_MEMBER_PORT_DISTANCE = 10_000
_READY_S = 30.0
_POLL_S = 0.2
_EARLY_S = 3.0
_BROKERS_STOP_S = 6.0
_NAME_SERVER_STOP_S = 2.0
"""Whoever waits at a terminal waits for both, and no longer than ten seconds."""

_HURRY_S = 1.0


@dataclass(frozen=True, slots=True)
class DevOptions:
    """The options of --dev.

    Attributes:
        store: folder of all data, an absolute path.
        log: of the nodes, and in what form also of the name server; a file stands for one of each, with its name added.
        metrics_port: of the first node's figures; None: none are given.
        tls_config: the absolute path of a file with keys of TLS, for all processes.
        tls: what stands there.
    """

    store: Path
    first_port: int
    namesrv_port: int
    cluster: str
    log: LogOutput
    metrics_port: int | None = None
    tls_config: str | None = None
    tls: TlsSettings = field(default_factory=TlsSettings)

    @property
    def ports(self) -> list[int]:
        """The client ports of the three nodes."""
        return [self.first_port + PORT_STEP * number for number in range(len(NODES))]

    @property
    def member_ports(self) -> list[int]:
        """The ports of the three nodes for each other."""
        return [port + _MEMBER_PORT_DISTANCE for port in self.ports]

    @property
    def metrics_ports(self) -> list[int]:
        """The ports of the figures: of the three nodes, then of the name server; none if there are no figures."""
        first = self.metrics_port
        return [] if first is None else [first + number for number in range(len(NODES) + 1)]

    @property
    def peers(self) -> str:
        """The members as `--peers` takes them."""
        return ";".join(
            f"{node}-{HOST}:{port}" for node, port in zip(NODES, self.member_ports, strict=True)
        )


async def run_dev(options: DevOptions, console: Console) -> int:
    """Start everything, say when it is ready, keep it running until a signal; return the exit status.

    Raises:
        ConfigError: the ports do not fit.
        StoreLockedError: the store is another --dev's.
    """
    port_max = PORT_MAX - _MEMBER_PORT_DISTANCE - PORT_STEP * len(NODES)
    if not 1 <= options.first_port <= port_max:
        raise ConfigError(
            f"--port {options.first_port} is not from 1 to {port_max}: the members of the group listen on ports "
            f"{_MEMBER_PORT_DISTANCE} above those of their brokers"
        )
    for users, ports in (("a broker", options.ports), ("a member", options.member_ports)):
        if options.namesrv_port in ports:
            raise ConfigError(
                f"--namesrv-port {options.namesrv_port} is also the port of {users}: {ports} (--port)"
            )
    _check_metrics_ports(options)
    group = _DevGroup(options, console)
    with StoreLock(options.store):
        await group.run()
    return group.exit_status


def _check_metrics_ports(options: DevOptions) -> None:
    """Refuse ports of figures that are no ports, or somebody else's.

    Raises:
        ConfigError: names both.
    """
    others = {
        **dict.fromkeys(options.ports, "a broker"),
        **dict.fromkeys(options.member_ports, "a member"),
        options.namesrv_port: "the name server",
    }
    for port in options.metrics_ports:
        if port > PORT_MAX or port in others:
            why = (
                f"{port} is the port of {others[port]}" if port in others else f"{port} is no port"
            )
            raise ConfigError(
                f"--metrics-port {options.metrics_port}: {why}; it needs {len(NODES) + 1} ports"
            )


class _DevGroup:
    """The processes of --dev."""

    def __init__(self, options: DevOptions, console: Console) -> None:
        self.exit_status = 0
        self._options = options
        self._console = console
        self._children = [Child(program) for program in plan_dev(options)]
        name_server, *brokers = self._children
        self._stop = StagedStop(
            [StopStage(brokers, _BROKERS_STOP_S), StopStage([name_server], _NAME_SERVER_STOP_S)],
            lambda line: print_line(console, f"[yellow]{escape(line)}[/yellow]"),
            hurry_s=_HURRY_S,
        )

    async def run(self) -> None:
        """Run everything until a signal, or until one of the processes cannot start; then stop the others."""
        for child in self._children:
            # A --dev that was killed has left its processes.
            if child.adopt(None):
                print_line(
                    self._console, f"{child.program.name} runs already, process {child.status.pid}"
                )
        handle_stop_signals(
            self._stop.take,
            stop_s_max=self._stop.s_max + 1.0,
            second_stop_s_max=self._stop.hurried_s_max + 1.0,
        )
        async with trio.open_nursery() as nursery:
            for child in self._children:
                nursery.start_soon(child.keep_running, self._ended)
            nursery.start_soon(_announce, self._options, self._console)
            await self._stop.wanted.wait()
            nursery.cancel_scope.cancel()
        await self._stop.run()

    def _ended(self, end: ChildEnd) -> None:
        """Report the end of a child; one that cannot even start ends everything."""
        if end.has_failed and end.lived_s < _EARLY_S:
            print_line(self._console, f"[red]{end.name} did not start[/red]: {escape(end.how)}")
            self.exit_status = 1
            self._stop.wanted.set()
        else:
            print_line(self._console, f"[yellow]{escape(str(end))}[/yellow]")


def plan_dev(options: DevOptions) -> list[Program]:
    """Lay out the processes, the name server first. Each command names a folder in the store, so it is no other's."""
    *of_nodes, of_name_server = [_metrics(port) for port in options.metrics_ports] or [()] * 4
    brokers = (
        _broker(options, node, port, metrics)
        for node, port, metrics in zip(NODES, options.ports, of_nodes, strict=True)
    )
    return [_name_server(options, of_name_server), *brokers]


def _metrics(port: int) -> tuple[str, ...]:
    return ("--metrics", f"{HOST}:{port}")


def _tls(options: DevOptions) -> tuple[str, ...]:
    return ("--tls-config", options.tls_config) if options.tls_config else ()


def _name_server(options: DevOptions, metrics: tuple[str, ...]) -> Program:
    command = (
        *(sys.executable, "-m", "broker.namesrv.cli"),
        *("--listen", f"{HOST}:{options.namesrv_port}", "--store", str(options.store / "namesrv")),
        *options.log.passed_on("namesrv", with_level=False),
        *_tls(options),
        *metrics,
    )
    return Program("name server", command, options.store / "namesrv.log")


def _broker(options: DevOptions, node: str, port: int, metrics: tuple[str, ...]) -> Program:
    command = (
        *(sys.executable, "-m", "broker.server.cli"),
        *("--group", GROUP, "--id", node, "--peers", options.peers),
        *("--listen", f"{HOST}:{port}", "--namesrv", f"{HOST}:{options.namesrv_port}"),
        *("--store", str(options.store / node), "--cluster", options.cluster),
        *options.log.passed_on(node),
        *_tls(options),
        *metrics,
    )
    return Program(f"broker {node}", command, options.store / f"{node}.log")


async def _announce(options: DevOptions, console: Console) -> None:
    """Print how to use the group once it has a leader with a route."""
    namesrv, tls = Address(HOST, options.namesrv_port), TlsKeeper(options.tls).client()
    with trio.move_on_after(_READY_S):
        # Polled, because another process is asked.
        while not await _has_leader(namesrv, tls):  # noqa: ASYNC110
            await trio.sleep(_POLL_S)
        brokers = ", ".join(
            f"{node} {HOST}:{port}" for node, port in zip(NODES, options.ports, strict=True)
        )
        print_line(
            console,
            f"[green]ready[/green]: name server [bold]{namesrv}[/bold], group {GROUP}: {brokers}",
        )
        if options.metrics_ports:
            figures = ", ".join(f"{HOST}:{port}" for port in options.metrics_ports)
            print_line(console, f"figures for Prometheus (/metrics, /readyz): {figures}")
        print_line(console, f"data and logs in {escape(str(options.store))}")
        print_line(
            console, "point any RocketMQ client at the name server; docs/client.md shows ours"
        )
        print_line(console, "kill a node and watch it go on; Ctrl-C stops everything")
        return
    print_line(console, "[yellow]no leader yet[/yellow]; the logs say why")


async def _has_leader(namesrv: Address, tls: ssl.SSLContext | None) -> bool:
    """Return True once the default topic's route has a broker 0; any failure means not yet, since the caller polls."""
    request = make_request(RequestCode.GET_ROUTEINFO_BY_TOPIC, 1, {"topic": "TBW102"})
    try:
        async with trio.open_nursery() as nursery:
            connection = await connect(namesrv, nursery, timeout_s=1.0, tls=tls)
            connection.send_nowait(encode_command(request))
            frames = []
            with trio.move_on_after(1.0):
                frames = await connection.receive()
            connection.close("asked")
            nursery.cancel_scope.cancel()
        answer = decode_command(frames[0]) if frames else None
        if answer is None or answer.code != 0:
            return False
        return any(0 in broker.broker_addrs for broker in decode_route(answer.body).brokers)
    except (ExceptionGroup, OSError, RemotingError):
        return False
