"""Repair of damage found while a member runs: which entries are missing now, and whom to ask for them.

Every durable entry's chain CRC is in memory, so each damaged one has its name. The member goes on with
everything else; what needs the entry waits until it is back. A leader that needs one for too long should
let another one lead, whose disk may give it; which one leads is not decided here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dledger.errors import CorruptionError
from dledger.raft.entry import Entry
from dledger.raft.ids import Index, NodeId
from dledger.raft.messages import RepairAnswer, RepairRequest
from dledger.repair.asking import NEVER_MS, RepairRequests
from dledger.storage.damage import Missing
from dledger.storage.segmented_log import SegmentedLog

HOLES_MAX = 1024
"""Damaged entries that are asked for at a time, roughly; others are found again when they are read again."""

HAND_OVER_MS: Final = 5000
"""A leader that needs an entry for so long lets another lead: every other member was asked meanwhile."""

HAND_OVER_PAUSE_MS: Final = 30_000
"""Between two times that a member hands over: perhaps nobody can have what is lost."""

REWRITE_PAUSE_MS: Final = 1000
"""Before an entry is asked for again that the disk did not keep."""


class LiveRepair:
    """The damaged entries of a running member.

    Attributes:
        repaired_count: entries that came back since the start.
        notes: an event and its fields for each thing that happened, those of the log included; the caller takes them
            away.
    """

    def __init__(self, node_id: NodeId, peers: tuple[NodeId, ...], log: SegmentedLog) -> None:
        self.repaired_count = 0
        self.notes = log.notes
        self._log = log
        self._peers = peers
        self._asking = RepairRequests(node_id, peers, [])
        self._holes: dict[Index, Missing] = {}
        self._asked: set[Index] = set()
        self._not_kept: set[Index] = set()
        self._needed_since_ms: dict[Index, int] = {}
        self._hand_over_from_ms = 0

    def peers_changed(self, peers: tuple[NodeId, ...]) -> None:
        """Ask these members from now on: the group has changed."""
        self._peers = peers
        self._asking.peers_changed(peers)

    @property
    def can_help(self) -> bool:
        """True if there is anybody to ask."""
        return bool(self._peers)

    @property
    def has_work(self) -> bool:
        """True while something is missing, or asked for."""
        return bool(self._holes or self._asking.waits)

    @property
    def missing_count(self) -> int:
        """Damaged entries that are not back yet."""
        return len(self._holes)

    @property
    def is_full(self) -> bool:
        """True while so many are missing that nobody should look for more."""
        return len(self._holes) >= HOLES_MAX

    def has_hole(self, index: Index) -> bool:
        """Return whether an entry is known to be damaged."""
        return index in self._holes

    def look(self, first: Index, end: Index) -> None:
        """Find out which of these entries are damaged; what is in memory is written back at once.

        The first damaged one is known as such afterwards.

        Raises:
            DLedgerError: the disk failed.
            OSError: a shortage; nothing is known of them.
        """
        is_first = True
        for index in self._log.damaged(first, end):
            if is_first or not self.is_full:
                is_first = False
                self.lose(index)

    def lose(self, index: Index) -> None:
        """Rewrite an unreadable entry from memory, or request it from another member.

        Raises:
            DLedgerError: the disk failed.
            OSError: where it stands cannot be looked up now; nothing was done.
        """
        if index in self._holes:
            return
        named = self._named(index)
        self.notes.append(("entry-damaged", {"entry": index}))
        cached = self._log.cached(index)
        if cached is not None:
            self.mend(cached)  # if the disk does not keep it, memory has it for now
            return
        self._holes[index] = named
        self._asking.add(named)

    def _named(self, index: Index) -> Missing:
        log = self._log
        return Missing(
            first_index=index,
            last_index=index,
            position=log.layout.position_of(index),
            end_position=log.layout.position_of(Index(index + 1)),
            prev_chain_crc=log.chain_crc_before(index),
            last_chain_crc=log.chain_crc_of(index),
        )

    def mend(self, entry: Entry) -> bool:
        """Write a recovered entry back; return whether the disk can read it now. Not at a shortage, either.

        Raises:
            DLedgerError: it is another one, or the disk failed.
        """
        try:
            self._log.mend(entry)
        except (CorruptionError, OSError) as error:
            if entry.index not in self._not_kept:
                self._not_kept.add(entry.index)
                self.notes.append(("entry-not-kept", {"entry": entry.index, "reason": error}))
            return False
        self._is_back(entry.index, "entry-repaired")
        return True

    def _is_back(self, index: Index, event: str) -> None:
        self._holes.pop(index, None)
        for known in (self._asked, self._not_kept):
            known.discard(index)
        self._needed_since_ms.pop(index, None)
        self.repaired_count += 1
        self.notes.append((event, {"entry": index}))

    def need(self, index: Index, now_ms: int) -> None:
        """Note that somebody waits for an entry, if it is damaged."""
        if index in self._holes:
            self._needed_since_ms.setdefault(index, now_ms)

    def became_leader(self) -> None:
        """Reset the waiting times at the start of a leadership, so that it is not handed over again at once."""
        self._needed_since_ms.clear()

    def must_hand_over(self, now_ms: int) -> bool:
        """Return whether a leader should hand over now; True only once in a while."""
        if not self._needed_since_ms or now_ms < self._hand_over_from_ms:
            return False
        entry = min(self._needed_since_ms, key=lambda index: self._needed_since_ms[index])
        assert entry in self._holes, f"entry {entry} is waited for, and not damaged"
        waited_ms = now_ms - self._needed_since_ms[entry]
        if waited_ms < HAND_OVER_MS:
            return False
        self.notes.append(("hands-over", {"damaged_entry": entry, "waited_ms": waited_ms}))
        self._hand_over_from_ms = now_ms + HAND_OVER_PAUSE_MS
        return True

    def forget_from(self, first: Index) -> None:
        """Forget entries that were removed from the log: nobody needs them."""
        self._keep_known(lambda index: index < first)
        self._asking.forget_from(first)

    def forget_before(self, first: Index) -> None:
        """Forget entries that this log has dropped: nobody needs them."""
        self._keep_known(lambda index: index >= first)
        self._asking.forget_before(first)

    def _keep_known(self, is_kept: Callable[[Index], bool]) -> None:
        self._holes = {index: named for index, named in self._holes.items() if is_kept(index)}
        self._needed_since_ms = {
            index: since_ms for index, since_ms in self._needed_since_ms.items() if is_kept(index)
        }
        self._asked = set(filter(is_kept, self._asked))
        self._not_kept = set(filter(is_kept, self._not_kept))

    def is_forgotten(self, index: Index) -> bool:
        """Return whether a damaged entry is one that another member has forgotten, so that it may never come back."""
        return index in self._holes and self._asking.is_forgotten(index)

    def is_lost(self, commit_index: Index) -> bool:
        """Return whether an entry that is not known to be committed is damaged, and others lack it."""
        return self._asking.lacked_by_half(commit_index)

    def next_deadline_ms(self) -> int:
        """Return when `next_request` is due; never when nothing is missing."""
        return NEVER_MS if self._asking.is_done else self._asking.next_ms

    def next_request(self, now_ms: int) -> tuple[NodeId, RepairRequest] | None:
        """Return the member to ask now, and the question.

        Before an entry is asked for again the disk is: it may give it by now. Without that an entry that
        failed to be read once, and that no other member has, would stay lost.
        """
        asking = self._asking
        if now_ms < asking.next_ms:
            return None
        while asking.waits:
            index = asking.waits[0].missing.last_index
            if index not in self._asked or self._is_unreadable(index):
                self._asked.add(index)
                break
            asking.drop_first()
            self._is_back(index, "entry-readable")
        return asking.next_request(now_ms)

    def _is_unreadable(self, index: Index) -> bool:
        try:
            return bool(self._log.damaged(index, Index(index + 1)))
        except OSError:
            return True  # for now: it was damaged when it was last read

    def answered(self, answer: RepairAnswer, now_ms: int) -> None:
        """Write back the entries of an answer; those that the disk does not keep are requested again later.

        Raises:
            DLedgerError: the disk failed.
        """
        for entry in self._asking.answered(answer):
            named = self._holes.get(entry.index)
            if named is not None and not self.mend(entry):
                self._asking.add(named)
                self._asking.next_ms = now_ms + REWRITE_PAUSE_MS
