"""`dledger-broker --dev`: a name server and a group of three as child processes, for trying things out."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio
from rich.console import Console
from rich.markup import escape

from dledger import ConfigError
from dledger.runtime.stop_signals import handle_stop_signals
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
_MEMBER_PORT_DISTANCE = 10_000
_READY_S = 30.0
_POLL_S = 0.2
_RESTART_S = 1.0
_EARLY_S = 3.0
_STOP_S = 10.0


@dataclass(frozen=True, slots=True)
class DevOptions:
    """The options of --dev."""

    store: Path
    first_port: int
    namesrv_port: int
    cluster: str
    log_level: str

    @property
    def ports(self) -> list[int]:
        """The client ports of the three nodes."""
        return [self.first_port + PORT_STEP * number for number in range(len(NODES))]

    @property
    def peers(self) -> str:
        """The members as `--peers` takes them."""
        return ";".join(
            f"{node}-{HOST}:{port + _MEMBER_PORT_DISTANCE}"
            for node, port in zip(NODES, self.ports, strict=True)
        )


async def run_dev(options: DevOptions, console: Console) -> int:
    """Start everything, say when it is ready, keep it running until a signal; return the exit status.

    Raises:
        ConfigError: the ports do not fit.
    """
    port_max = 65_535 - _MEMBER_PORT_DISTANCE - PORT_STEP * len(NODES)
    if not 1 <= options.first_port <= port_max:
        raise ConfigError(
            f"--port {options.first_port} is not from 1 to {port_max}: the members of the group listen on ports "
            f"{_MEMBER_PORT_DISTANCE} above those of their brokers"
        )
    if options.namesrv_port in options.ports:
        raise ConfigError(
            f"--namesrv-port {options.namesrv_port} is also the port of a broker: {options.ports} (--port)"
        )
    options.store.mkdir(parents=True, exist_ok=True)
    namesrv = _Child("name server", _namesrv_command(options), options.store / "namesrv.log")
    brokers = [
        _Child(
            f"broker {node}", _broker_command(options, node, port), options.store / f"{node}.log"
        )
        for node, port in zip(NODES, options.ports, strict=True)
    ]
    async with trio.open_nursery() as nursery:
        # A second Ctrl-C must not leave children behind: it only asks once more.
        handle_stop_signals(lambda _number: nursery.cancel_scope.cancel())
        run = _Run([namesrv, *brokers], console, nursery.cancel_scope)
        for child in run.children:
            nursery.start_soon(run.keep_running, child)
        nursery.start_soon(partial(_announce, options, console))
    await _stop(brokers, console)
    await _stop([namesrv], console)
    return run.status


def _namesrv_command(options: DevOptions) -> list[str]:
    return [
        sys.executable,
        "-m",
        "broker.namesrv.cli",
        "--listen",
        f"{HOST}:{options.namesrv_port}",
    ]


def _broker_command(options: DevOptions, node: str, port: int) -> list[str]:
    return [
        *(sys.executable, "-m", "broker.server.cli"),
        *("--group", GROUP, "--id", node, "--peers", options.peers),
        *("--listen", f"{HOST}:{port}", "--namesrv", f"{HOST}:{options.namesrv_port}"),
        *("--store", str(options.store / node), "--cluster", options.cluster),
        *("--log-level", options.log_level),
    ]


class _Child:
    """One process; what it says goes to a file."""

    def __init__(self, name: str, command: list[str], log_path: Path) -> None:
        self.name = name
        self.command = command
        self.log_path = log_path
        self.process: trio.Process | None = None

    async def run(self) -> int:
        """Start it and wait for its end; return the exit status. Cancelling leaves it running."""
        with self.log_path.open("ab") as log:
            self.process = await trio.lowlevel.open_process(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A Ctrl-C at the terminal reaches this process only, which stops the children in order.
                start_new_session=True,
            )
        return await self.process.wait()

    def last_line(self) -> str:
        """Return the last line that it has logged."""
        lines = self.log_path.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


class _Run:
    def __init__(self, children: list[_Child], console: Console, scope: trio.CancelScope) -> None:
        self.children = children
        self.status = 0
        self._console = console
        self._scope = scope

    async def keep_running(self, child: _Child) -> None:
        """Start a child, and again when it dies; one that cannot even start ends everything."""
        while True:
            started = trio.current_time()
            status = await child.run()
            if trio.current_time() - started < _EARLY_S and status > 0:
                self._console.print(
                    f"[red]{child.name} did not start[/red]: {escape(child.last_line())}"
                )
                self.status = 1
                self._scope.cancel()
                return
            self._console.print(
                f"[yellow]{child.name} ended with status {status}; starting it again[/yellow]"
            )
            await trio.sleep(_RESTART_S)


async def _announce(options: DevOptions, console: Console) -> None:
    """Print how to use the group once it has a leader with a route."""
    namesrv = Address(HOST, options.namesrv_port)
    with trio.move_on_after(_READY_S):
        # Polled, because another process is asked.
        while not await _has_leader(namesrv):  # noqa: ASYNC110
            await trio.sleep(_POLL_S)
        brokers = ", ".join(
            f"{node} {HOST}:{port}" for node, port in zip(NODES, options.ports, strict=True)
        )
        console.print(
            f"[green]ready[/green]: name server [bold]{namesrv}[/bold], group {GROUP}: {brokers}"
        )
        console.print(f"data and logs in {escape(str(options.store))}")
        console.print("point any RocketMQ client at the name server; docs/client.md shows ours")
        console.print("kill a node and watch it go on; Ctrl-C stops everything")
        return
    console.print("[yellow]no leader yet[/yellow]; the logs say why")


async def _has_leader(namesrv: Address) -> bool:
    """Return True once the default topic's route has a broker 0; any failure means not yet, since the caller polls."""
    request = make_request(RequestCode.GET_ROUTEINFO_BY_TOPIC, 1, {"topic": "TBW102"})
    try:
        async with trio.open_nursery() as nursery:
            connection = await connect(namesrv, nursery, timeout_s=1.0)
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


async def _stop(children: list[_Child], console: Console) -> None:
    """End processes: a signal, a little time, and then by force."""
    running = [
        child.process for child in children if child.process and child.process.returncode is None
    ]
    for process in running:
        process.terminate()
    with trio.move_on_after(_STOP_S, shield=True):
        for process in running:
            await process.wait()
    for child in children:
        if child.process and child.process.returncode is None:
            console.print(f"[yellow]{child.name} did not stop in time and was killed[/yellow]")
            child.process.kill()
