"""Real name servers and brokers as child processes that can be killed, paused, stopped and restarted.

A `Group` owns its processes. Leaving it, by whatever way (an exception, SIGINT, SIGTERM, SIGHUP, the end of the
interpreter), kills every one of them by its process id and nothing else. What a harness leaves that is killed itself,
its keeper ends (`keeper.py`). Each process writes its output to a file of its own that survives restarts, so that a
failed run can be read afterwards.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from jepsen.keeper import marked
from jepsen.ports import free_ports

SMALL_SEGMENTS = "mappedFileSizeCommitLog=16777216\nstopForwardSec=0\n"
"""Settings of a group that does not live for long: nobody waits for its stop. A segment takes its whole room from the
disk when it is made: a hundred groups with the default's 256 MiB for each node fill a disk."""

STOP_PATIENCE_S = 10.0  # after SIGTERM a node hands leadership over and flushes; then SIGKILL


STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

T = TypeVar("T")


class ProcessDiedError(RuntimeError):
    """A process ended that should run; the message holds the end of its log."""


class NotReadyError(RuntimeError):
    """The group did not become ready in time."""


@dataclass(frozen=True, slots=True)
class UnexpectedExit:
    """The end of a process that nobody had ended: its status, negative for a signal, and its last words."""

    status: int
    words: str


class Process:
    """One child process that can be started again with the same command and log.

    Attributes:
        host, port: where it listens.
        environment: added to ours at the next start.
        prefix: put before the command at the next start: `ip netns exec ...`.
    """

    def __init__(
        self, name: str, command: list[str], *, log: Path, port: int, host: str = "127.0.0.1"
    ) -> None:
        self.name = name
        self.command = command
        self.log = log
        self.host = host
        self.port = port
        self.environment: dict[str, str] = {}
        self.prefix: list[str] = []
        self._child: subprocess.Popen[bytes] | None = None
        self._asked: tuple[
            int, ...
        ] = ()  # the statuses with which it may end, since we have ended it
        self._own_ends: list[UnexpectedExit] = []
        self.is_paused = False

    @property
    def address(self) -> str:
        """The address at which clients reach it."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        return self._child.pid if self._child and self._child.poll() is None else None

    @property
    def exit_status(self) -> int | None:
        """The exit status, negative for a signal; None while it runs or before its first start."""
        return self._child.poll() if self._child else None

    def start(self) -> None:
        """Start the process; its output is appended to its log."""
        assert self.pid is None, f"{self.name} runs already"
        self._note_end()
        self.is_paused = False
        self._asked = ()
        with self.log.open("ab") as out:
            command = [*self.prefix, *self.command]
            out.write(f"--- {' '.join(command)}\n".encode())
            out.flush()
            self._child = subprocess.Popen(
                command,
                env={**os.environ, **marked(), **self.environment},
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches us alone; we end our children ourselves
            )

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to it, and only to it; nothing when it does not run."""
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL, and wait until it is gone."""
        self._asked += (-signal.SIGKILL,)
        self.send_signal(signal.SIGKILL)
        if self._child is not None:
            self._child.wait()

    def stop(self, patience_s: float = STOP_PATIENCE_S) -> int | None:
        """Send SIGTERM, wait, and send SIGKILL when the patience is over. Returns the exit status."""
        self.resume()
        self._asked += (0, -signal.SIGTERM)
        self.send_signal(signal.SIGTERM)
        if self._child is None:
            return None
        try:
            return self._child.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._child.returncode

    def take_unexpected_exits(self) -> list[UnexpectedExit]:
        """Return the unexpected ends since the last call, those that neither `kill` nor `stop` caused."""
        self._note_end()
        ends, self._own_ends = self._own_ends, []
        return ends

    def _note_end(self) -> None:
        status = self.exit_status
        if status is not None and status not in self._asked:
            self._asked += (status,)  # noted once
            self.note_unexpected(UnexpectedExit(status, self.log_tail(1)))

    def note_unexpected(self, end: UnexpectedExit) -> None:
        """Keep an end for `take_unexpected_exits`."""
        self._own_ends.append(end)

    def pause(self) -> None:
        """Send SIGSTOP: it keeps its sockets and says nothing."""
        self.send_signal(signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        """Send SIGCONT after a pause."""
        if self.is_paused:
            self.send_signal(signal.SIGCONT)
            self.is_paused = False

    def is_listening(self) -> bool:
        """Return whether its port accepts a connection now."""
        try:
            with socket.create_connection((self.host, self.port), timeout=0.5):
                return True
        except OSError:
            return False

    def log_tail(self, lines: int = 15) -> str:
        """Return the last lines of its log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])


class Group:
    """A name server and the nodes of one broker group, on free loopback ports.

    Args:
        folder: for stores, logs and settings; `folder/NAME/`, `folder/NAME.log` and `folder/NAME.conf`.
        nodes: how many brokers.
        name_servers: how many name servers.
        settings: every broker's `broker.conf`.
        group: name of the broker group.
        namesrv: those of another group, instead of name servers of its own.
    """

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int = 3,
        name_servers: int = 1,
        settings: str = SMALL_SEGMENTS,
        group: str = "broker-a",
        namesrv: str = "",
    ) -> None:
        self.folder = folder
        self.group = group
        folder.mkdir(parents=True, exist_ok=True)
        name_servers = 0 if namesrv else name_servers
        ports = iter(free_ports(2 * nodes + name_servers))
        self.name_servers = [
            self._name_server(f"namesrv{i}", next(ports)) for i in range(name_servers)
        ]
        self.namesrv = namesrv or ";".join(server.address for server in self.name_servers)
        self.peers = ";".join(f"n{i}-127.0.0.1:{next(ports)}" for i in range(nodes))
        self._settings = settings
        self.nodes = [self._broker(f"n{i}", next(ports), self.peers) for i in range(nodes)]
        self.by_address = {node.address: node for node in self.nodes}
        self._previous: dict[signal.Signals, object] = {}

    def _name_server(self, name: str, port: int) -> Process:
        command = [program("dledger-namesrv"), "--listen", str(port)]
        return Process(name, command, log=self.folder / f"{name}.log", port=port)

    def _broker(self, name: str, port: int, peers: str, *more: str) -> Process:
        conf = self.folder / f"{name}.conf"
        conf.write_text(self._settings)
        command = [
            program("dledger-broker"),
            *("-c", str(conf)),
            *("--group", self.group, "--id", name, "--peers", peers),
            *("--listen", str(port), "--namesrv", self.namesrv),
            *("--store", str(self.folder / name), *more),
        ]
        return Process(name, command, log=self.folder / f"{name}.log", port=port)

    def joining(self, name: str) -> tuple[Process, str]:
        """Make a broker that is to join the running group; it is one of the nodes from here on, and not started.

        Args:
            name: that no member has.

        Returns:
            The broker, and the member as `dledger-admin members add` wants it.
        """
        log_port, port = free_ports(2)
        member = f"{name}-127.0.0.1:{log_port}"
        node = self._broker(name, port, f"{self.peers};{member}", "--join")
        self.nodes.append(node)
        self.by_address[node.address] = node
        return node, member

    def node(self, name: str) -> Process:
        """Return the broker called `name`."""
        return next(node for node in self.nodes if node.name == name)

    def processes(self) -> list[Process]:
        """Return all of them, name servers first."""
        return [*self.name_servers, *self.nodes]

    def start(self) -> None:
        """Start everything; see `wait_listening` for readiness."""
        for process in self.processes():
            process.start()

    def wait_listening(self, timeout_s: float = 180.0) -> None:
        """Wait until every process listens; see `wait_listening`."""
        wait_listening(self.processes(), timeout_s)

    def check_alive(self) -> None:
        """Check every process; see `check_alive`."""
        check_alive(self.processes())

    def close(self) -> None:
        """Kill what still runs."""
        kill_all(self.processes())

    def __enter__(self) -> Group:
        atexit.register(self.close)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        atexit.unregister(self.close)


def kill_all(processes: Sequence[Process]) -> None:
    """Kill each of them, also when one cannot be killed; what that raised is raised in the end."""
    with ExitStack() as stack:
        for process in processes:
            stack.callback(process.kill)


def wait_listening(processes: Sequence[Process], timeout_s: float) -> None:
    """Wait until each of them accepts connections.

    Raises:
        ProcessDiedError: one ended meanwhile.
        NotReadyError: the time is over.
    """
    waiting = list(processes)

    def all_listen() -> bool:
        check_alive(processes)
        waiting[:] = [process for process in waiting if not process.is_listening()]
        return not waiting

    if not poll(all_listen, timeout_s):
        names = ", ".join(process.name for process in waiting)
        tail = waiting[0].log_tail()
        raise NotReadyError(f"not listening after {timeout_s} s: {names}\n{tail}")


def check_alive(processes: Sequence[Process]) -> None:
    """Raise ProcessDiedError when one ended that nobody killed through us."""
    for process in processes:
        status = process.exit_status
        if status not in (None, -signal.SIGKILL):
            raise ProcessDiedError(f"{process.name} ended with {status}\n{process.log_tail()}")


def program(name: str) -> str:
    """Return the path of one of our installed commands, beside this interpreter."""
    return str(Path(sys.executable).with_name(name))


def sigterm_as_interrupt() -> None:
    """Let SIGTERM, and SIGHUP of a lost terminal, do what Ctrl-C does, so that context managers end their processes."""
    # A shell without job control starts its background jobs with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        # nohup asks not to be ended with the terminal.
        if number is signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda _number, _frame: signal.raise_signal(signal.SIGINT))


@contextmanager
def left_undisturbed(owner: AbstractContextManager[T]) -> Iterator[T]:
    """Enter a context manager that owns processes or namespaces; no stop signal interrupts the leaving of it.

    Leaving is short, and left half done it leaves things behind. A signal that comes meanwhile is forgotten:
    what it asks for is being done.
    """
    with ExitStack() as afterwards, owner as owned:
        try:
            yield owned
        finally:
            for number in STOP_SIGNALS:
                afterwards.callback(signal.signal, number, signal.signal(number, signal.SIG_IGN))


def poll(condition: Callable[[], bool], timeout_s: float, interval_s: float = 0.02) -> bool:
    """Ask again and again until `condition` holds; False when the time is over."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(interval_s)
    return True


def is_running(pid: int) -> bool:
    """Return whether a process with this id exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
