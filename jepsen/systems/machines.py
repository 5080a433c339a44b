"""Machines that share several broker groups, as the system under test: each a `dledger-node` with all that it runs.

A node of this system is a machine: its supervisor, the name server and the members of all groups that the supervisor
has started. Faults act on a machine as a whole: a kill ends all of its processes at one moment, a pause stops them all.
What ends by itself the supervisor starts again, as for users; the end is noted all the same. Member ids and machines
have the same names (n0, n1, ...). It must not know what clients do.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import trio

from broker.node.config import PORT_STEP, NodeFile, Ports, read_node_file
from broker.node.plan import NodePlan, plan_node
from broker.node.status import look, read_status
from dledger.raft.ids import Term
from jepsen.guards import Guards, make_guards
from jepsen.history.ops import OpLog
from jepsen.nemeses.namespaces import NamespaceLinks
from jepsen.ports import free_port_rows
from jepsen.processes import Process, UnexpectedExit, kill_all, poll, wait_listening
from jepsen.systems.api import LinkControl, SystemOptions
from jepsen.systems.brokers import BROKER_CONF, digests_of
from jepsen.systems.child_ends import ChildEnds
from jepsen.systems.observer import Observer, note_leader

GROUPS_MAX: Final = 5
FREEZE_S: Final = 5.0
GONE_S: Final = 10.0


class Machine(Process):
    """All processes of one machine, which the supervisor among them keeps running; `pid` is the supervisor's."""

    def __init__(self, plan: NodePlan, command: list[str], *, log: Path) -> None:
        """Start nothing yet.

        Args:
            plan: what the supervisor will run.
            command: the supervisor's.
            log: takes what the supervisor prints; its processes have logs of their own.
        """
        first = plan.children[0].address
        super().__init__(plan.machine, command, log=log, host=first.host, port=first.port)
        self._plan = plan
        self._child_ends = ChildEnds()

    def child_pids(self) -> list[int]:
        """Return the ids of what the supervisor has started, itself left out."""
        noted = {child.pid for child in look(self._plan).children if child.pid is not None}
        return sorted(noted | (_children_of(self.pid) if self.pid is not None else set()))

    def kill(self) -> None:
        """Send SIGKILL to everything, and wait until all of it is gone."""
        self._note_child_ends()
        try:
            self._freeze()
            _kill_all(self.child_pids())
        finally:
            super().kill()  # nothing may keep it from starting more, but its end

    def crash(self) -> int:
        """Send SIGKILL to what the supervisor runs, which starts it again; returns how many processes."""
        self._note_child_ends()
        running = [child for child in look(self._plan).children if child.pid is not None]
        self._child_ends.expect(child.name for child in running)
        _kill_all([child.pid for child in running if child.pid is not None])
        return len(running)

    def pause(self) -> None:
        """Send SIGSTOP to everything."""
        self._freeze()
        super().pause()
        _signal_all(self.child_pids(), signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT to everything after a pause."""
        if self.is_paused:
            _signal_all(self.child_pids(), signal.SIGCONT)
        super().resume()

    def is_listening(self) -> bool:
        """Return whether each of its processes accepts a connection now."""
        return all(
            Process(child.name, [], log=child.log, host=child.address.host, port=child.address.port)
            .is_listening()
            for child in self._plan.children
        )  # fmt: skip

    def take_unexpected_exits(self) -> list[UnexpectedExit]:
        """Return the unexpected ends since the last call, of the supervisor and of what it runs."""
        self._note_child_ends()
        return super().take_unexpected_exits()

    def _freeze(self) -> None:
        """Stop the supervisor, so that it starts nothing while its processes are dealt with."""
        self.send_signal(signal.SIGSTOP)
        is_still = poll(lambda: _state(self.pid) in {"", "T", "Z"}, FREEZE_S, interval_s=0.001)
        assert is_still, f"the supervisor of {self.name} runs on after SIGSTOP"

    def _note_child_ends(self) -> None:
        """Note each end that the supervisor has seen since the last look."""
        for end in self._child_ends.note(read_status(self._plan.folder)):
            self.note_unexpected(end)


def _state(pid: int | None) -> str:
    """Return the letter of a process's state ("T": stopped); empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def _children_of(pid: int) -> set[int]:
    """Return the ids of a process's children, whichever thread started them."""
    found: set[int] = set()
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found |= {int(child) for child in file.read_text().split()}
    return found


def _signal_all(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _kill_all(pids: Sequence[int]) -> None:
    """Send SIGKILL to processes that are not our own children, and wait until all are gone."""
    watched: list[int] = []
    try:
        for pid in pids:
            with suppress(ProcessLookupError):
                watched.append(os.pidfd_open(pid))
        for pidfd in watched:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        for pidfd in watched:
            ended = select.poll()
            ended.register(pidfd, select.POLLIN)
            assert ended.poll(GONE_S * 1000), f"one of {pids} lives on after SIGKILL"
    finally:
        for pidfd in watched:
            os.close(pidfd)


@dataclass(frozen=True, slots=True)
class SharedGroup:
    """One of the groups, as its observer needs it.

    Attributes:
        group: its name.
        peers: its members, as `dledger.Client` takes them.
        nodes: the machines.
        addresses: at which clients reach its members, in the order of `nodes`.
    """

    group: str
    peers: str
    nodes: Sequence[Process]
    addresses: Sequence[str]


@dataclass(slots=True)
class _Watch:
    """The observer of one group, and since when the leader leads that it sees (trio's clock)."""

    observer: Observer
    since: float = field(default=0.0)


class MachineSystem:
    """Machines that share groups; see `Subject` for what its parts do.

    Attributes:
        namesrv: addresses of the name servers, one on each machine.
        addresses: at which clients reach the members of each group.
        groups: what the machines share.
    """

    def __init__(
        self,
        folder: Path,
        machines: Sequence[Machine],
        groups: Sequence[SharedGroup],
        links: LinkControl | None,
    ) -> None:
        self.folder = folder
        self.nodes: Sequence[Process] = machines
        self.processes: Sequence[Process] = machines
        self.links = links
        self.groups = groups
        self.namesrv = ";".join(machine.address for machine in machines)
        self.addresses: Mapping[str, Sequence[str]] = {
            each.group: each.addresses for each in groups
        }
        self._watches = {
            each.group: _Watch(Observer(each, partial(self._note_leader, each.group)))
            for each in groups
        }
        self._log: OpLog | None = None

    def node(self, name: str) -> Process:
        """Return the machine called `name`."""
        return next(node for node in self.nodes if node.name == name)

    def store(self, name: str) -> Path:
        """Return the folder of a machine, which holds a store for each group."""
        return self.folder / name

    @property
    def leader(self) -> str | None:
        """The machine that leads the group whose leader has been there longest: so each group is struck in turn."""
        led = [watch for watch in self._watches.values() if watch.observer.leader is not None]
        return min(led, key=lambda watch: watch.since).observer.leader if led else None

    def start(self) -> None:
        """Start all supervisors."""
        for node in self.nodes:
            node.start()

    def close(self) -> None:
        """Kill what still runs."""
        kill_all(self.nodes)

    async def wait_ready(self, timeout_s: float) -> None:
        """Wait until every process accepts connections. Raises NotReadyError, ProcessDiedError."""
        await trio.to_thread.run_sync(wait_listening, self.nodes, timeout_s, abandon_on_cancel=True)

    async def watch(self, log: OpLog) -> None:
        """Observe all groups until cancelled."""
        self._log = log
        async with trio.open_nursery() as nursery:
            for watch in self._watches.values():
                nursery.start_soon(watch.observer.run)

    def _note_leader(self, group: str, node: str, term: Term) -> None:
        assert self._log is not None, "the observers run in `watch` alone"
        self._watches[group].since = trio.current_time()
        note_leader(self._log, node, term, group)

    async def wait_whole(self, timeout_s: float) -> bool:
        """Wait until in each group one member leads and all others follow closely; whether that came in time."""
        found: list[bool] = []

        async def wait(observer: Observer) -> None:
            found.append(await observer.wait_whole(timeout_s))

        async with trio.open_nursery() as nursery:
            for watch in self._watches.values():
                nursery.start_soon(wait, watch.observer)
        return all(found)

    async def replica_digests(self, timeout_s: float) -> Mapping[str, Mapping[str, object]]:
        """Return the digests of all members, named machine/group, each with its group."""
        found: dict[str, Mapping[str, object]] = {}

        async def ask(each: SharedGroup) -> None:
            digests = await digests_of(each.addresses, timeout_s)
            for node, value in digests.items():
                found[f"{node}/{each.group}"] = {**value, "group": each.group}

        async with trio.open_nursery() as nursery:
            for each in self.groups:
                nursery.start_soon(ask, each)
        return dict(sorted(found.items()))


@contextmanager
def machine_system(folder: Path, options: SystemOptions) -> Iterator[MachineSystem]:
    """Make machines that share groups; all of their processes end with the context. A `SubjectMaker`.

    Raises:
        ConfigError: so many machines cannot share groups.
    """
    assert options.network != "proxies", "no proxies stand between machines"
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"n{number}" for number in range(options.nodes)]
    with ExitStack() as stack:
        links: NamespaceLinks | None = None
        if options.network == "namespaces":
            links = stack.enter_context(NamespaceLinks(names))
        hosts = {
            name: links.address(name) if links is not None else f"127.0.0.{number}"
            for number, name in enumerate(names, start=1)
        }
        path = folder / "node.toml"
        guards = make_guards(folder, options.guards, [*hosts.values()])
        stack.enter_context(guards.lets_in())
        path.write_text(node_toml(hosts, options.groups, guards))
        file = read_node_file(path.read_text(), folder=folder)
        machines = [_machine(path, file, name, guards) for name in names]
        for machine in machines:
            machine.prefix = [] if links is None else links.prefix(machine.name)
        groups = [_shared(file, place, machines) for place in range(options.groups)]
        system = MachineSystem(folder, machines, groups, links)
        # Namespaces can be removed only when nobody is in them.
        stack.callback(system.close)
        atexit.register(system.close)
        stack.callback(atexit.unregister, system.close)
        yield system


def node_toml(hosts: Mapping[str, str], groups: int, guards: Guards) -> str:
    """Return the file that all machines share, with ports that are free now."""
    files = {"secret_file": guards.secret_file, "tls_config_file": guards.tls_config}
    shown = "".join(f'{key} = "{path}"\n' for key, path in files.items() if path is not None)
    rules = "".join(f'{key} = "{text}"\n' for key, text in guards.settings().items())
    ports = Ports(*free_port_rows(3, length=groups, step=PORT_STEP))
    machines = "".join(f'{name} = "{host}"\n' for name, host in hosts.items())
    names = ", ".join(f'"broker-{chr(ord("a") + place)}"' for place in range(groups))
    return (
        f'store = "."\n{shown}groups = [{names}]\n[machines]\n{machines}'
        f"[ports]\nnamesrv = {ports.namesrv}\nbroker = {ports.broker}\nmember = {ports.member}\n"
        f"[broker]\n{BROKER_CONF}{rules}"
    )


def _machine(path: Path, file: NodeFile, name: str, guards: Guards) -> Machine:
    command = [sys.executable, "-m", "broker.node.cli", "-c", str(path), "--machine", name]
    plan = plan_node(file, name, secret=guards.secret, tls=guards.tls_keys())
    return Machine(plan, command, log=path.with_name(f"{name}.log"))


def _shared(file: NodeFile, place: int, machines: Sequence[Machine]) -> SharedGroup:
    """Return the group at a place of the file's list; the ports of each are a step above those of the one before."""
    shift = PORT_STEP * place
    peers = [f"{each.name}-{each.host}:{file.ports.member + shift}" for each in machines]
    addresses = [f"{each.host}:{file.ports.broker + shift}" for each in machines]
    return SharedGroup(file.groups[place], ";".join(peers), machines, addresses)
