"""The policy for damaged entries of a running member: reads stop before them, repairs, and giving up the lead.

A member without an entry goes on with everything else. It matters only to a leader: it can neither send the entry
nor commit what stands after it, so it lets another one lead whose disk may give it. This decides when; asking
the core for it, and carrying messages, is the engine's.
"""

from __future__ import annotations

from typing import Final

from dledger.errors import CorruptionError, DLedgerError, EntryDamagedError
from dledger.raft.entry import Entry
from dledger.raft.events import StepDown, TransferRequested
from dledger.raft.ids import Index, NodeId
from dledger.raft.messages import RepairAnswer, RepairRequest
from dledger.repair.live_repair import HAND_OVER_MS, HAND_OVER_PAUSE_MS, LiveRepair
from dledger.repair.serving import first_to_give, whole_end
from dledger.storage.read_errors import is_shortage
from dledger.storage.segmented_log import SegmentedLog

HAND_OVER_TOKEN: Final = -1
"""Of hand-overs that are asked for here; callers have tokens from 0."""


class DamagePolicy:
    """The decisions of one member.

    Attributes:
        live_repair: what is missing now, and who is asked for it.
        shortage: reads that are refused for now: what they would give is neither missing nor asked for.
        must_resign: a leader must not go on leading; see `take_resignation`.
    """

    def __init__(self, node_id: NodeId, peers: tuple[NodeId, ...], log: SegmentedLog) -> None:
        self.live_repair = LiveRepair(node_id, peers, log)
        self.shortage = log.shortage
        self._short_from_ms = 0
        self._node_id = node_id
        self._log = log
        self.must_resign = False
        self._reason = ""
        self._is_stopped = False

    @property
    def has_work(self) -> bool:
        """True while an entry is missing, or reads are refused or were so lately."""
        shortage = self.shortage
        return shortage.is_met or shortage.since_ms is not None or self.live_repair.has_work

    def stop(self) -> None:
        """End all repair: the disk has failed, so nothing can be written back."""
        self._is_stopped = True

    # Reading around damage.

    def read(self, first: Index, end: Index, bytes_max: int | None = None) -> list[Entry]:
        """Return the entries up to the first damaged one, which is asked for; all of them when all are whole.

        Raises:
            EntryDamagedError: they cannot be read now, which says nothing of them; the next pulse may give them.
            OSError, DLedgerError: they could not be read, and nobody can help.
        """
        if end == first + 1:
            # A lone entry that was just appended, as it is sent and folded: what memory has is never missing.
            entry = self._log.cached(first)
            if entry is not None:
                return [entry]
        try:
            return self._read(first, end, bytes_max)
        except OSError as error:
            raise self.shortage.judge(f"entry {first}", error) from error

    def _read(self, first: Index, end: Index, bytes_max: int | None) -> list[Entry]:
        """See `read`. Raises OSError at a shortage."""
        repair = self.live_repair
        if repair.has_hole(first):
            return []
        try:
            return self._log.entries(first, end, bytes_max=bytes_max)
        except (OSError, CorruptionError):
            if self._is_stopped or not repair.can_help:
                raise
        if bytes_max is not None:
            end = self._log.layout.end_within(first, bytes_max=bytes_max, count_max=end - first)
        repair.look(first, end)
        whole = first
        while whole < end and not repair.has_hole(whole):
            whole = Index(whole + 1)
        try:
            return self._log.entries(first, whole)
        except (OSError, CorruptionError) as error:
            if is_shortage(error):
                raise
            # A disk that gives it at one time and not at another.
            repair.lose(first)
            return []

    def read_now(self, first: Index, end: Index, *, bytes_max: int, now_ms: int) -> list[Entry]:
        """Return at least one entry; raises where `read` would return none, for a caller that does not wait.

        Raises:
            EntryDamagedError: the first one is damaged, and comes back sooner or later; or it cannot be read now.
            OSError, DLedgerError: as `read`.
        """
        entries = self.read(first, end, bytes_max)
        if not entries:
            self.live_repair.need(first, now_ms)
            raise EntryDamagedError(
                f"entry {first} is damaged on {self._node_id}, which asks the other members for it"
            )
        return entries

    def look(self, first: Index, end: Index) -> None:
        """Verify these entries on disk; damaged ones are requested from the other members.

        Raises:
            DLedgerError: the disk failed.
        """
        if not self.live_repair.can_help or self.live_repair.is_full:
            return
        try:
            self.live_repair.look(first, end)
        except OSError as error:
            self.shortage.judge(f"entry {first}", error)

    # Giving to others, and asking them.

    def give(self, request: RepairRequest, *, is_voter: bool) -> RepairAnswer:
        """Answer a repair request with the requested entries, if this log has them; any member may answer."""
        try:
            return self._answer(request, is_voter=is_voter)
        except OSError as error:
            self.shortage.judge(f"entry {request.last_index}", error)
            return RepairAnswer(self._node_id, request.number, (), lacks=False)

    def _answer(self, request: RepairRequest, *, is_voter: bool) -> RepairAnswer:
        """See `give`. Raises OSError at a shortage."""
        log, last = self._log, request.last_index
        if last < log.layout.first_index:
            return RepairAnswer(self._node_id, request.number, (), lacks=False, has_forgotten=True)
        if not log.layout.has(last) or log.chain_crc_of(last) != request.last_chain_crc:
            return RepairAnswer(self._node_id, request.number, (), lacks=is_voter)
        first = first_to_give(
            lambda index: log.layout.position_of(Index(index + 1)) - log.layout.position_of(index),
            max(request.first_index, log.layout.first_index),
            last,
        )
        entries = whole_end(self._whole_entries, first, last)
        if not entries and self.live_repair.can_help:
            self.live_repair.look(last, Index(last + 1))
        return RepairAnswer(self._node_id, request.number, entries, lacks=False)

    def _whole_entries(self, first: Index, end: Index) -> list[Entry] | None:
        """Return entries as the disk gives them; None when not all of them are whole.

        Raises:
            OSError: a shortage.
        """
        try:
            return self._log.entries(first, end)
        except (OSError, CorruptionError) as error:
            if is_shortage(error):
                raise
            return None

    def next_request(self, now_ms: int) -> tuple[NodeId, RepairRequest] | None:
        """Return the member to ask now, and the question; None: nobody, for now."""
        repair = self.live_repair
        return repair.next_request(now_ms) if now_ms >= repair.next_deadline_ms() else None

    # Leading with damage.

    def cannot_send(self) -> None:
        """Resign, since a leader's request needs a damaged entry.

        It counts as lost, as the network may lose it. Who could mend it may be out of reach, or, as long as it is
        not committed, nobody may have it: then only another leader gets the group on.
        """
        self._resign("an entry to be sent is damaged")

    def hand_over_failed(self, error: DLedgerError) -> None:
        """Resign, since nobody took over from a leader that needs a damaged entry."""
        self._resign(f"an entry is damaged and does not come back ({error})")

    def _resign(self, reason: str) -> None:
        self.must_resign = True
        self._reason = reason

    def take_resignation(self) -> StepDown:
        """Return the event that `must_resign` asks for, once."""
        assert self.must_resign, "nobody must resign"
        self.must_resign = False
        return StepDown(self._reason)

    def why_hopeless(self, commit_index: Index) -> StepDown | None:
        """Return the resignation of a leader that misses an uncommitted entry which the others do not have; or None.

        It can neither send this entry nor commit anything after it.
        """
        if self.live_repair.is_lost(commit_index):
            return StepDown("an entry is damaged that the others do not have")
        return None

    def hand_over(self, waits_for: Index | None, now_ms: int) -> TransferRequested | None:
        """Return a request to hand over once a leader went without damaged or refused entries for too long; else None.

        Planned, so that nobody waits for an election. If it fails, `hand_over_failed` is to be called.

        Args:
            waits_for: the next entry that the state machine wants; None: it wants none.
            now_ms: the time.
        """
        repair = self.live_repair
        if waits_for is not None:
            repair.need(waits_for, now_ms)
        is_due = repair.must_hand_over(now_ms) or self._is_short_for_too_long(now_ms)
        return TransferRequested(None, HAND_OVER_TOKEN) if is_due else None

    def _is_short_for_too_long(self, now_ms: int) -> bool:
        """Return whether reads are refused for so long that another one should lead; True only once in a while."""
        lasts_ms = self.shortage.lasts_ms(now_ms)
        if lasts_ms < HAND_OVER_MS or now_ms < self._short_from_ms:
            return False
        self.live_repair.notes.append(("hands-over", {"entries_not_read_ms": lasts_ms}))
        self._short_from_ms = now_ms + HAND_OVER_PAUSE_MS
        return True

    def became_leader(self) -> None:
        """Count how long entries are missing, or cannot be read, from now on: it is not handed over again at once."""
        self.live_repair.became_leader()
        self.shortage.count_anew()
