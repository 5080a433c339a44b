"""A PySyncObj group as a system under test, so that the harness is shown not to be fitted to ours.

The same workloads as on our log (`log_access.py`), the same faults, the same checkers. What PySyncObj promises less is
known beforehand: its reads come from the state of whoever believes to lead, so a leader that slept may answer from
before; its journal is a memory map that nobody syncs. Members are known by their addresses, so there is no place for a
proxy between them, and faults of the network cannot be had.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, Required, TypedDict

import trio

from jepsen.clients.json_lines import JsonLines, LineError
from jepsen.history.ops import OBSERVER, OpLog, OpType
from jepsen.history.outcomes import Outcome
from jepsen.history.values import shaped
from jepsen.ports import free_ports
from jepsen.processes import Process, kill_all, wait_listening
from jepsen.systems.api import LinkControl, SystemOptions
from jepsen.systems.log_access import Log, Record, records_of

TIMEOUT_S: Final = 5.0
STATUS_TIMEOUT_S: Final = 0.3
INTERVAL_S: Final = 0.1
PAUSE_S: Final = 0.05


class Status(TypedDict):
    """The state of a member, as its process answers."""

    is_leader: bool
    leader: str
    term: int
    count: int
    digest: str


class WorkerAnswer(TypedDict, total=False):
    """The answer of a member to a client; `leader` is an address."""

    type: Required[OpType]
    error: str
    leader: str
    records: list[Record]


class PySyncObjSystem:
    """A group of workers; see `jepsen.systems.api.Subject` for what its parts do."""

    def __init__(self, folder: Path, options: SystemOptions) -> None:
        assert options.network == "none", "members know each other by address"
        names = [f"n{number}" for number in range(options.nodes)]
        ports = free_ports(2 * options.nodes)
        addresses = [f"127.0.0.1:{port}" for port in ports[options.nodes :]]
        password = secrets.token_hex(16)
        self.folder = folder
        self.links: LinkControl | None = None
        self.nodes: Sequence[Process] = [
            self._worker(number, name, port=ports[number], addresses=addresses, password=password)
            for number, name in enumerate(names)
        ]
        self.processes = self.nodes
        self.leader: str | None = None
        self._names = dict(zip(addresses, names, strict=True))
        self._term = 0
        self._seen: dict[str, Status] = {}
        self._changed = trio.Event()

    def _worker(
        self, number: int, name: str, *, port: int, addresses: Sequence[str], password: str
    ) -> Process:
        """Build the process of one member; every member is given the addresses of all others."""
        command = [
            sys.executable,
            "-m",
            "jepsen.systems.pysyncobj_worker",
            "--own",
            addresses[number],
        ]
        for other in addresses:
            if other != addresses[number]:
                command += ["--other", other]
        command += ["--listen", str(port), "--store", str(self.store(name))]
        command += ["--password", password]
        return Process(name, command, log=self.folder / f"{name}.log", port=port)

    def node(self, name: str) -> Process:
        """Return the member called `name`."""
        return next(node for node in self.nodes if node.name == name)

    def store(self, name: str) -> Path:
        """Return the folder of its journal."""
        return self.folder / name

    def name_of(self, address: str) -> str | None:
        """Return the member with this address between members."""
        return self._names.get(address)

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
        while True:
            self._seen = await self._statuses()
            leading = {name: seen for name, seen in self._seen.items() if seen["is_leader"]}
            self.leader = max(leading, key=lambda name: leading[name]["term"], default=None)
            if self.leader is not None and leading[self.leader]["term"] > self._term:
                self._term = leading[self.leader]["term"]
                log.add(OBSERVER, "info", "leader", {"term": self._term}, node=self.leader)
            self._changed.set()
            self._changed = trio.Event()
            await trio.sleep(INTERVAL_S)

    async def wait_whole(self, timeout_s: float) -> bool:
        """Wait until all members follow one leader and hold as many records."""
        with trio.move_on_after(timeout_s):
            while not self._is_whole():
                await self._changed.wait()
        return self._is_whole()

    def _is_whole(self) -> bool:
        views = {(self.name_of(seen["leader"]), seen["count"]) for seen in self._seen.values()}
        return len(self._seen) == len(self.nodes) and len(views) == 1 and self.leader is not None

    async def replica_digests(self, timeout_s: float) -> Mapping[str, Mapping[str, object]]:
        """Return the checksum of each member's list, once all have the same number of records."""
        await self.wait_whole(timeout_s)
        return {
            name: {"index": seen["count"], "digests": {"records": seen["digest"]}}
            for name, seen in (await self._statuses()).items()
        }

    async def _statuses(self) -> dict[str, Status]:
        """Ask all members at once; one that does not answer within STATUS_TIMEOUT_S is left out."""
        found: dict[str, Status] = {}

        async def ask(node: Process) -> None:
            try:
                with trio.move_on_after(STATUS_TIMEOUT_S):
                    async with await _open(node) as lines:
                        found[node.name] = shaped(await lines.ask({"f": "status"}), Status)
            except (OSError, LineError, trio.BrokenResourceError):
                return

        async with trio.open_nursery() as nursery:
            for node in self.nodes:
                nursery.start_soon(ask, node)
        return dict(sorted(found.items()))

    @asynccontextmanager
    async def open_log(self, process: int) -> AsyncIterator[Log]:
        """Open a client that begins at one of the members."""
        log = PySyncObjLog(self, process % len(self.nodes))
        try:
            yield log
        finally:
            await log.close()


async def _open(node: Process) -> JsonLines:
    return JsonLines(await trio.open_tcp_stream(node.host, node.port))


class PySyncObjLog:
    """The list, as one client has it: it looks for the leader, and stays with it while it answers."""

    def __init__(self, system: PySyncObjSystem, first: int) -> None:
        self._system = system
        self._at = first
        self._lines: JsonLines | None = None

    async def append(self, record: Record) -> Outcome:
        """Append a record; sent again only when it was surely not taken."""
        return await self._ask({"f": "append", "record": record}, is_read=False)

    async def read_whole(self) -> Outcome:
        """Read the list of whoever believes to lead."""
        return await self._ask({"f": "read"}, is_read=True)

    async def read(self, key: str) -> Outcome:
        """Read the elements of one key, from the same read as `read_whole`."""
        outcome = await self.read_whole()
        if outcome.type != "ok":
            return outcome
        return Outcome("ok", [element for name, element in records_of(outcome) if name == key])

    async def close(self) -> None:
        """Close the connection."""
        if self._lines is not None:
            await self._lines.__aexit__(None, None, None)
            self._lines = None

    async def _ask(self, question: object, *, is_read: bool) -> Outcome:
        """Ask member after member until one answers for good, or the time is over."""
        error = "nobody answered"
        is_doubtful = False
        with trio.move_on_after(TIMEOUT_S):
            while True:
                try:
                    lines = await self._connected()
                except OSError as refused:
                    error = str(refused)
                else:
                    is_doubtful = not is_read
                    answer = await self._answer(lines, question)
                    if answer is None:
                        error = "the connection broke"
                        if is_doubtful:
                            break
                    elif answer["type"] != "fail":
                        value = answer.get("records")
                        return Outcome(answer["type"], value, answer.get("error", ""))
                    else:
                        is_doubtful, error = False, answer.get("error", "")
                        await self._go_on(answer.get("leader", ""))
                        await trio.sleep(PAUSE_S)
                        continue
                await self._go_on("")
                await trio.sleep(PAUSE_S)
        await self.close()  # an answer may still come: it belongs to nobody
        return Outcome("info" if is_doubtful else "fail", error=error)

    async def _connected(self) -> JsonLines:
        if self._lines is None:
            self._lines = await _open(self._system.nodes[self._at])
        return self._lines

    async def _answer(self, lines: JsonLines, question: object) -> WorkerAnswer | None:
        try:
            answer = shaped(await lines.ask(question), WorkerAnswer)
        except (LineError, trio.BrokenResourceError):
            return None
        return answer

    async def _go_on(self, leader: str) -> None:
        """Turn to the leader that a member named, or else to the next member."""
        await self.close()
        name = self._system.name_of(leader)
        names = [node.name for node in self._system.nodes]
        self._at = (self._at + 1) % len(names) if name is None else names.index(name)


@contextmanager
def pysyncobj_system(folder: Path, options: SystemOptions) -> Iterator[PySyncObjSystem]:
    """Make a PySyncObj group whose processes end with the context. A `SubjectMaker`."""
    folder.mkdir(parents=True, exist_ok=True)
    system = PySyncObjSystem(folder, options)
    try:
        yield system
    finally:
        system.close()
