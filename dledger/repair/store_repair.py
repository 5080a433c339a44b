"""The repair of a damaged log before the member starts: until it is whole, it only asks for and answers entries.

It neither votes nor campaigns nor serves, and the leader does not hear of it: to the others it is down,
but for repairs. So nothing depends on what it does not know. It gives whole entries to others even while
its own log is damaged: three damaged logs can heal each other.

What ends it (docs/adr/0100): everything named as missing is back, verified and synced. Entries at the
log's end of which a majority of the group never had the last were not committed: they are cut, and the
member may not vote until a leader admits it (adr/0061), for it may have confirmed them. The same holds
for an end that was lost without a trace. What all others have forgotten (a log may lose its beginning,
docs/adr/0180) nobody can bring back. Anything else waits, for as long as it takes.
"""

from __future__ import annotations

import errno
from typing import Final

from dledger.codec.entry import EntryFormatError, decode_known
from dledger.config import LogConfig
from dledger.errors import CorruptionError, DiskFullError
from dledger.raft.entry import Entry
from dledger.raft.ids import EntryId, Index, NodeId, Position
from dledger.raft.messages import RepairAnswer, RepairMessage, RepairRequest
from dledger.repair.asking import NEVER_MS, RepairRequests
from dledger.repair.serving import first_to_give, whole_end
from dledger.storage.api import Disk
from dledger.storage.damage import Missing, Run, Survey
from dledger.storage.hard_state import HardStateStore
from dledger.storage.log_start import START_EMPTY
from dledger.storage.mending import LogMender, give_up_vote
from dledger.storage.segment import StorePaths
from dledger.storage.survey import survey

REPAIRS_MAX: Final = 3
"""So many repairs a start may need: what is still damaged then is damaged by its disk anew each time."""

FULL_PAUSE_MS: Final = 1000
"""There was no room to write entries back: wait so long before asking for them again."""


class StoreRepair:
    """One member's repair. Not thread-safe.

    Attributes:
        problem: what was found first, with file and byte.
        repaired_count: entries that were written back.
        is_done: the log can be opened again.
        hopeless: what is missing the other members have forgotten, so nobody can mend this log; None: not so far.
        has_cut: the end of the log was given up, and with it the vote.
        notes: a sentence per decision, for the log; the caller takes them away.
    """

    def __init__(
        self, config: LogConfig, disk: Disk, problem: CorruptionError, folder: str = ""
    ) -> None:
        """Look at the damaged log.

        Raises:
            OSError: the disk failed.
        """
        self.problem = problem
        self.repaired_count = 0
        self.is_done = False
        self.has_cut = False
        self.hopeless: CorruptionError | None = None
        self.notes: list[str] = []
        self._config = config
        self._disk = disk
        self._folder = folder
        self._paths = StorePaths(folder)
        own = config.raft.node_id
        self._peers = tuple(peer.node_id for peer in config.peers if peer.node_id != own)
        self._doubt_count = 1
        self._outbox: list[tuple[NodeId, RepairMessage]] = []
        self._asked: dict[NodeId, RepairRequest] = {}
        self._cut_position: Position | None = None
        self._survey: Survey = survey(disk, self._paths)
        last = self._survey.last_end()
        last_id = EntryId(last.term, last.index)
        store = HardStateStore.open(disk, folder, last_id=last_id, may_forget=True)
        self._has_vote = store.state.is_voter and not store.is_new
        # A configuration that was cut, or is older than it need be, only makes the judgement more careful.
        named = [note.configuration.voters for note in store.state.notes]
        is_first = not any(note.is_settled for note in store.state.notes)
        first = [config.raft.voters] if is_first else []
        self._voters = tuple(map(frozenset, (*first, *named)))
        self._mender = LogMender(disk, self._paths, self._survey.names)
        self._ask_anew()
        for missing in self.missing:
            self.notes.append(f"missing: {missing}")

    def _ask_anew(self) -> None:
        """Ask for everything that is missing now, whoever was asked before."""
        own = self._config.raft.node_id
        self._asking = RepairRequests(own, self._peers, self._survey.missing(), voters=self._voters)
        self._cut_position = None

    @property
    def missing(self) -> list[Missing]:
        """The ranges that are still missing."""
        return [wait.missing for wait in self._asking.waits]

    def describe(self) -> str:
        """Describe the state of the repair in one line, for people."""
        gone = self.missing
        count = sum(each.last_index - each.first_index + 1 for each in gone)
        first = f", first {gone[0]}" if gone else ""
        return f"{count} entries missing, {self.repaired_count} repaired{first}; {self.problem}"

    def take_outbox(self) -> list[tuple[NodeId, RepairMessage]]:
        """Return the messages to send, in order, once; answers are made here."""
        asked, self._asked = self._asked, {}
        self._outbox += [(source, self._answer(request)) for source, request in asked.items()]
        taken, self._outbox = self._outbox, []
        return taken

    def next_deadline_ms(self) -> int:
        """Return when `tick` is due at the latest."""
        return NEVER_MS if self.is_done else self._asking.next_ms

    def tick(self, now_ms: int) -> None:
        """Send the next request for missing entries, if it is due.

        Raises:
            OSError: the disk failed.
        """
        if not self.is_done:
            try:
                self._advance()
            except DiskFullError as error:
                self.notes.append(f"no room to give the vote up: {error}")
                self._asking.next_ms = now_ms + FULL_PAUSE_MS
                return
        request = None if self.is_done else self._asking.next_request(now_ms)
        if request is not None:
            self._outbox.append(request)

    def receive(self, message: RepairMessage, now_ms: int) -> None:
        """Take a member's answer, or its request, which is answered when the outbox is taken.

        Raises:
            OSError: the disk failed; the node must stop.
        """
        if isinstance(message, RepairRequest):
            self._asked[message.source] = message  # the newest is waited for; see `Engine.repair`
            return
        if self.is_done:
            return
        entries = self._asking.answered(message)
        if entries:
            self._write(entries, now_ms)
        self.tick(now_ms)

    def _write(self, entries: tuple[Entry, ...], now_ms: int) -> None:
        try:
            self._mender.write(entries)
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                raise
            self.notes.append(f"no room to write entry {entries[0].index} back: {error}")
            self._ask_anew()
            self._asking.next_ms = now_ms + FULL_PAUSE_MS
            return
        self.repaired_count += len(entries)
        self._survey.learn(entries)

    def _advance(self) -> None:
        """Act on the answers so far: finish, cut the log, doubt a run, or go on asking."""
        wrong = self._asking.unknown_to_all()
        if wrong is not None:
            self._doubt(wrong)
        cut = self._asking.never_committed()
        if cut is not None:
            self.notes.append(f"a majority never had {cut}: cut off, not committed")
            self._cut_position = cut.position
            self._asking.give_up(cut)
        gone = self._asking.forgotten_by_all()
        if gone is not None and self.hopeless is None:
            problem = self.problem
            self.hopeless = CorruptionError(
                problem.path,
                problem.byte_offset,
                f"{problem.problem}; the other members have forgotten {gone}: {START_EMPTY}",
            )
        if self._asking.is_done:
            self._finish()

    def _doubt(self, wrong: Missing) -> None:
        """Discard the first entry after a gap: no member has the predecessor that its header names.

        The doubt goes on along its run, whose entries vouch for each other, and not into the next one: there may
        stand the only whole copy of an entry.
        """
        next_index = Index(wrong.last_index + 1)
        self.notes.append(f"no member has what entry {next_index} follows here: it is not believed")
        run = self._survey.run_of(next_index)
        end = next_index if run is None else run.last_index
        for index in range(next_index, min(next_index + self._doubt_count, end + 1)):
            gap = next((m for m in self._survey.missing() if m.last_index == index - 1), None)
            if gap is not None:
                self._survey.distrust(gap)
        self._doubt_count *= 2
        self._ask_anew()

    def _finish(self) -> None:
        """Make the log durable and openable, now that nothing is missing any more."""
        found = self._survey
        cut = self._cut_position
        assert cut is not None or not found.missing(), f"{found.missing()} are not back"
        self._mender.sync()
        if cut is None and found.is_tail_cut:
            cut = self._end_position()
            self.notes.append(f"the log was longer than byte {cut}; what stood there is unknown")
        if cut is not None:
            at = found.last_end()
            give_up_vote(self._disk, self._folder, EntryId(at.term, at.index))
            self.has_cut = True
        elif found.is_end_unreadable:
            cut = self._end_position()
        self._mender.finish(found, cut_position=cut)
        self.is_done = True

    def _end_position(self) -> Position:
        """Return where the log ends once everything that is named is back."""
        tail = self._survey.tail
        end = self._survey.last_end().position
        return end if tail is None else max(end, Position(tail.position + tail.size_bytes))

    # For others.

    def _answer(self, request: RepairRequest) -> RepairAnswer:
        """Answer a repair request with the whole entries that are here."""
        own = self._config.raft.node_id
        run = self._survey.run_of(request.last_index)
        if run is not None and self._is_named(run, request):
            first = max(request.first_index, Index(run.first_index + (not run.is_proven)))
            if first <= request.last_index:
                columns = run.columns
                base = run.first_index
                first = first_to_give(
                    lambda index: columns.sizes[index - base], first, request.last_index
                )
                entries = whole_end(
                    lambda low, end: self._read(run, low, end), first, request.last_index
                )
                return RepairAnswer(own, request.number, entries, lacks=False)
        if request.last_index <= self._survey.before.index:
            return RepairAnswer(own, request.number, (), lacks=False, has_forgotten=True)
        return RepairAnswer(own, request.number, (), lacks=self._surely_lacks(request))

    def _is_named(self, run: Run, request: RepairRequest) -> bool:
        place = request.last_index - run.first_index
        return run.columns.chain_crcs[place] == request.last_chain_crc

    def _surely_lacks(self, request: RepairRequest) -> bool:
        """Return whether this log, damaged as it is, shows that the entry never was in it."""
        found = self._survey
        if found.is_tail_cut or not self._has_vote:
            return False
        last = found.last_end().index
        if found.tail is not None:
            last = max(last, found.tail.index)
        if request.last_index > last:
            return True
        run = found.run_of(request.last_index)
        if run is None or (request.last_index == run.first_index and not run.is_proven):
            return False
        return not self._is_named(run, request)

    def _read(self, run: Run, first: Index, end: Index) -> list[Entry] | None:
        """Return entries of a run, each verified; None when the disk does not give all of them."""
        columns = run.columns
        low, high = first - run.first_index, end - run.first_index
        names = self._survey.names
        pieces: list[Entry] = []
        place = low
        while place < high:
            name = max(each for each in names if each <= columns.positions[place])
            following = next((each for each in names if each > name), None)
            stop = place
            while stop < high and (following is None or columns.positions[stop] < following):
                stop += 1
            before = columns.chain_crcs[place - 1] if place else run.before_chain_crc
            size = columns.positions[stop - 1] + columns.sizes[stop - 1] - columns.positions[place]
            try:
                file = self._disk.open(self._paths.data_path(name))
                try:
                    data = file.read_at(columns.positions[place] - name, size)
                finally:
                    file.close()
                pieces += decode_known(data, columns.chain_crcs[place:stop], before)
            except (OSError, EntryFormatError):
                return None
            place = stop
        return pieces


def is_repairable(config: LogConfig, error: Exception) -> CorruptionError | None:
    """Return the part of an error that other members can repair, with its place; None if they cannot."""
    if len(config.peers) == 1:
        return None
    if isinstance(error, CorruptionError):
        return error
    if (
        isinstance(error, OSError)
        and error.errno == errno.EIO
        and not isinstance(error, DiskFullError)
    ):
        return CorruptionError(
            error.filename or "the store", 0, f"the device does not give it: {error}"
        )
    return None
