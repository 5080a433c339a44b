"""Damage that shows while a member runs: what is missing now, and who is asked for it.

Every durable entry's chain CRC is in memory, so each damaged one has its name. The member goes on with
everything else; what needs the entry waits until it is back.
"""

from __future__ import annotations

from dledger.raft.entry import Entry
from dledger.raft.ids import Index, NodeId
from dledger.raft.messages import RepairAnswer, RepairRequest
from dledger.repair.asking import NEVER_MS, Asking
from dledger.storage.damage import Missing
from dledger.storage.segmented_log import SegmentedLog

HOLES_MAX = 1024
"""Damaged entries that are asked for at a time; others are found again when they are read again."""


class LiveRepair:
    """The damaged entries of a running member.

    Attributes:
        repaired_count: entries written back since the start.
        notes: an event and its fields for each thing that happened; the caller takes them away.
    """

    def __init__(self, node_id: NodeId, peers: tuple[NodeId, ...], log: SegmentedLog) -> None:
        self.repaired_count = 0
        self.notes: list[tuple[str, dict[str, object]]] = []
        self._log = log
        self._peers = peers
        self._asking = Asking(node_id, peers, [])
        self._holes: set[int] = set()

    @property
    def can_help(self) -> bool:
        """Whether there is anybody to ask."""
        return bool(self._peers)

    @property
    def missing_count(self) -> int:
        """Damaged entries that are not back yet."""
        return len(self._holes)

    def has_hole(self, index: int) -> bool:
        """Whether an entry is known to be damaged."""
        return index in self._holes

    def look(self, first: Index, end: Index) -> None:
        """Find out which of these entries are damaged; what is in memory is written back at once.

        Raises:
            DLedgerError: the disk failed.
        """
        log = self._log
        for index in log.damaged(first, end):
            if index in self._holes or len(self._holes) >= HOLES_MAX:
                continue
            cached = log.cached(index)
            if cached is not None:
                self.mend(cached)
                continue
            self._holes.add(index)
            self.notes.append(("entry-damaged", {"entry": index}))
            self._asking.add(
                Missing(
                    index,
                    index,
                    log.shape.position_of(index),
                    log.shape.position_of(Index(index + 1)),
                    log.chain_crc_before(index),
                    log.chain_crc_of(index),
                )
            )

    def mend(self, entry: Entry) -> None:
        """Write an entry back that was got from somewhere.

        Raises:
            DLedgerError: it is another one, or the disk failed.
        """
        self._log.mend(entry)
        self._holes.discard(entry.index)
        self.repaired_count += 1
        self.notes.append(("entry-repaired", {"entry": entry.index}))

    def forget_from(self, first: Index) -> None:
        """These entries were removed from the log: nobody needs them."""
        self._holes = {index for index in self._holes if index < first}
        self._asking.forget_from(first)

    def is_lost(self, commit_index: Index) -> bool:
        """Whether an entry that is not known to be committed is damaged, and others lack it."""
        return self._asking.lacked_by_half(commit_index)

    def next_deadline_ms(self) -> int:
        """When `next_request` is due; never when nothing is missing."""
        return NEVER_MS if self._asking.is_done else self._asking.next_ms

    def next_request(self, now_ms: int) -> tuple[NodeId, RepairRequest] | None:
        """Whom to ask now."""
        return self._asking.next_request(now_ms)

    def answered(self, answer: RepairAnswer) -> None:
        """Write back what came.

        Raises:
            DLedgerError: the disk failed.
        """
        for entry in self._asking.answered(answer):
            if self.has_hole(entry.index):
                self.mend(entry)
