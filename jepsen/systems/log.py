"""A plain log group as the system under test: `dledger server` processes, watched from outside."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import trio

from dledger import (
    Client,
    DLedgerError,
    Entry,
    EntryKind,
    NodeId,
    OutOfRangeError,
    StatusAnswer,
)
from dledger.raft.ids import Term
from jepsen.guards import Guards, make_guards, member_client
from jepsen.history.ops import OpLog
from jepsen.history.outcomes import Outcome, ended
from jepsen.nemeses.namespaces import NamespaceLinks
from jepsen.nemeses.proxy import LOOPBACK, ProxiedMember, ProxyLinks
from jepsen.nemeses.transfer import hand_over
from jepsen.ports import free_ports
from jepsen.processes import Process, kill_all, program, wait_listening
from jepsen.systems.api import LinkControl, SystemOptions
from jepsen.systems.log_access import Log, Record
from jepsen.systems.observer import Observer, note_leader

GROUP: Final = "chaos"
TIMEOUT_S: Final = 4.0
ALL: Final = 1_000_000_000
"""More entries than a run makes."""

DIGEST_PAUSE_S: Final = 0.2

_records = msgspec.json.Decoder(tuple[str, int])


@dataclass(slots=True)
class LogView:
    """A client's copy of the log, as far as it has read.

    Attributes:
        next_index: of the first entry that was not read.
        elements: by key, in the order of the log.
    """

    next_index: int = 1
    elements: dict[str, list[int]] = field(default_factory=dict)

    def take(self, entries: Sequence[Entry]) -> None:
        """Take in the entries from `next_index` on."""
        for entry in entries:
            self.next_index = entry.index + 1
            if entry.kind is EntryKind.NORMAL:
                key, element = _records.decode(entry.body)
                self.elements.setdefault(key, []).append(element)

    def clear(self) -> None:
        """Forget everything: begin anew at the first entry."""
        self.next_index = 1
        self.elements.clear()

    def copy(self) -> LogView:
        """Return an independent copy."""
        return LogView(self.next_index, {key: list(row) for key, row in self.elements.items()})


class PlainLogSystem:
    """Members of a log group; see `jepsen.systems.api.Subject` for what its parts do.

    Attributes:
        peers: the members, as the observer finds them.
        group: name of the group.
    """

    def __init__(
        self,
        folder: Path,
        options: SystemOptions,
        *,
        ports: Sequence[int],
        links: ProxyLinks | NamespaceLinks | None,
        server: Sequence[str],
        guards: Guards,
    ) -> None:
        names = [f"n{number}" for number in range(options.nodes)]
        self.folder = folder
        self.group = GROUP
        self._guards = guards
        spaces = links if isinstance(links, NamespaceLinks) else None
        proxies = links if isinstance(links, ProxyLinks) else None
        hosts = [LOOPBACK if spaces is None else spaces.address(name) for name in names]
        self.peers = ";".join(
            f"{name}-{host}:{port}" for name, host, port in zip(names, hosts, ports, strict=True)
        )
        self.links: LinkControl | None = links
        self._client_peers = self.peers if proxies is None else proxies.client_peers()
        self.nodes: Sequence[Process] = [
            self._member(
                Process(name, [], log=folder / f"{name}.log", port=port, host=host),
                self.peers if proxies is None else proxies.peers_of(name),
                server,
            )
            for name, host, port in zip(names, hosts, ports, strict=True)
        ]
        for node in self.nodes:
            node.prefix = [] if spaces is None else spaces.prefix(node.name)
        self.processes = self.nodes
        self._observer = Observer(self, self._note_leader)
        self._log: OpLog | None = None
        self._newest = LogView()

    def _member(self, process: Process, peers: str, server: Sequence[str]) -> Process:
        name = process.name
        process.command = [
            *server,
            *("--group", GROUP, "--id", name, "--peers", peers, "--store", str(self.store(name))),
            *self._guards.log_options(),
        ]
        return process

    def _client(self, peers: str) -> Client:
        return member_client(peers, group=GROUP, timeout_s=TIMEOUT_S)

    def node(self, name: str) -> Process:
        """Return the member called `name`."""
        return next(node for node in self.nodes if node.name == name)

    def store(self, name: str) -> Path:
        """Return the folder of its store."""
        return self.folder / name

    @property
    def leader(self) -> str | None:
        """The node that leads, as the observer last saw it."""
        return self._observer.leader

    def start(self) -> None:
        """Start all members."""
        for node in self.nodes:
            node.start()

    def close(self) -> None:
        """Kill what still runs."""
        kill_all(self.nodes)

    async def wait_ready(self, timeout_s: float) -> None:
        """Wait until every member accepts connections. Raises NotReadyError, ProcessDiedError."""
        await trio.to_thread.run_sync(wait_listening, self.nodes, timeout_s, abandon_on_cancel=True)

    async def watch(self, log: OpLog) -> None:
        """Keep `leader` and note each new one until cancelled."""
        self._log = log
        await self._observer.run()

    def _note_leader(self, node: str, term: Term) -> None:
        assert self._log is not None, "the observer runs in `watch` alone"
        note_leader(self._log, node, term)

    async def wait_whole(self, timeout_s: float) -> bool:
        """Wait until all members are together."""
        return await self._observer.wait_whole(timeout_s)

    async def hand_over(self, timeout_s: float) -> str:
        """Ask the leader to hand over, and return who is to lead. Raises DLedgerError."""
        return await hand_over(self.peers, GROUP, timeout_s)

    async def replica_digests(self, timeout_s: float) -> Mapping[str, Mapping[str, object]]:
        """Return each member's header of the last entry that all have committed.

        A header holds the chain checksum of the whole log before it, and the checksum of its body.
        """
        deadline = trio.current_time() + timeout_s
        async with self._client(self.peers) as client:
            while True:
                answers = await client.status()
                seen = [each for each in answers.values() if isinstance(each, StatusAnswer)]
                index = min((each.commit_index for each in seen), default=0)
                is_whole = len(seen) == len(self.nodes) and index == max(
                    each.commit_index for each in seen
                )
                if is_whole or trio.current_time() >= deadline:
                    return await _headers(client, [each.node_id for each in seen], index)
                await trio.sleep(DIGEST_PAUSE_S)

    @asynccontextmanager
    async def open_log(self, _process: int) -> AsyncIterator[Log]:
        """Open a client that has read what some process before it had read."""
        async with self._client(self._client_peers) as client:
            log = PlainLog(client, self._newest.copy())
            try:
                yield log
            finally:
                if log.view.next_index > self._newest.next_index:
                    self._newest = log.view


async def _headers(
    client: Client, nodes: Sequence[str], index: int
) -> dict[str, dict[str, object]]:
    """Read one entry's header from each member's own log; a member that does not answer is left out."""
    found: dict[str, dict[str, object]] = {}
    if index < 1:
        return found
    for name in nodes:
        try:
            (entry,) = await client.get(index, local=NodeId(name))
        except DLedgerError:
            continue  # it is gone again; whoever compares finds fewer replicas
        found[name] = {"index": index, "digests": {"log": entry.header.hex()}}
    return found


class PlainLog:
    """The log through `dledger.Client`: reads are linearizable, the leader confirms that it still leads.

    Attributes:
        view: what was read so far, for reads of a key.
    """

    def __init__(self, client: Client, view: LogView) -> None:
        self.view = view
        self._client = client

    async def append(self, record: Record) -> Outcome:
        """Append a record; nothing is sent twice."""
        try:
            await self._client.append(msgspec.json.encode(record))
        except DLedgerError as error:
            return ended(error)
        return Outcome("ok")

    async def read_whole(self) -> Outcome:
        """Read every record from the first entry on."""
        try:
            entries = await self._entries(LogView())
        except DLedgerError as error:
            return ended(error, changes_nothing=True)
        bodies = [entry.body for entry in entries if entry.kind is EntryKind.NORMAL]
        return Outcome("ok", [_records.decode(body) for body in bodies])

    async def read(self, key: str) -> Outcome:
        """Read the entries after those that were read before, or all where the log lost what was read."""
        try:
            self.view.take(await self._entries(self.view))
        except DLedgerError as error:
            return ended(error, changes_nothing=True)
        return Outcome("ok", list(self.view.elements.get(key, ())))

    async def _entries(self, view: LogView) -> list[Entry]:
        try:
            return await self._client.get(view.next_index, ALL)
        except OutOfRangeError as error:
            if error.last_index + 1 >= view.next_index:
                return []  # the log ends there
        view.clear()  # what was read is gone, and nobody may be answered that it stands
        return await self._entries(view)


@contextmanager
def log_system(
    folder: Path, options: SystemOptions, *, server: Sequence[str] = ()
) -> Iterator[PlainLogSystem]:
    """Make a log group whose processes end with the context. A `SubjectMaker`.

    Args:
        folder: for stores and logs.
        options: how many members, and what stands between them.
        server: command of a member without its options, when it is not `dledger server`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ports = free_ports(options.nodes)
    with ExitStack() as stack:
        links: ProxyLinks | NamespaceLinks | None = None
        names = [f"n{number}" for number in range(options.nodes)]
        if options.network == "proxies":
            links = ProxyLinks(
                [ProxiedMember(name, port) for name, port in zip(names, ports, strict=True)]
            )
        elif options.network == "namespaces":
            links = NamespaceLinks(names)
        if links is not None:
            stack.enter_context(links)
        command = server or (program("dledger"), "server")
        hosts = [LOOPBACK]
        if isinstance(links, NamespaceLinks):
            hosts = [links.address(name) for name in names]
        guards = make_guards(folder, options.guards, hosts)
        stack.enter_context(guards.lets_in())
        system = PlainLogSystem(
            folder, options, ports=ports, links=links, server=command, guards=guards
        )
        stack.callback(system.close)
        yield system
