"""Asking the other members for lost entries, one range and one member at a time.

An answer is believed for its chain CRC only: its last entry must be the one that was named, and the
others must lead to it. So it does not matter who sends it, in which state, or whether the entries are
committed. Answers bring the end of a range first; what they bring names the entry before it, and so the
range shrinks from its end until the entries join what stands before it.

Members are asked in turn. One that does not answer in time is passed over, and asked again in the next
round; a range that nobody can help with now lets the others go first.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from dledger.codec.chain import preceding_chain_crc
from dledger.codec.entry import EntryFormatError, chain_crc, check_entry
from dledger.raft.entry import Entry
from dledger.raft.ids import Index, NodeId
from dledger.raft.messages import RepairAnswer, RepairRequest
from dledger.raft.quorum import majority
from dledger.storage.damage import Missing

ANSWER_TIMEOUT_MS: Final = 1000
"""A member answers from its own disk; a slow one is passed over."""

ROUND_PAUSE_MS: Final = 250
"""Nobody could help with any range: wait before asking everybody again."""

NEVER_MS: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Wait:
    """A range that is asked for.

    Attributes:
        lacking: the members that do not have its last entry.
        forgetting: the members whose logs begin after its last entry.
    """

    missing: Missing
    lacking: frozenset[NodeId] = frozenset()
    forgetting: frozenset[NodeId] = frozenset()


class RepairRequests:
    """The ranges that are still missing, and the members that have been asked for them.

    Invariants: at most one request is under way; `_tried` is about the first range; no two ranges overlap.

    Attributes:
        waits: in the order in which they are asked for.
        next_ms: when `next_request` should be asked again.
    """

    def __init__(
        self,
        node_id: NodeId,
        peers: tuple[NodeId, ...],
        missing: list[Missing],
        *,
        voters: tuple[frozenset[NodeId], ...] = (),
    ) -> None:
        """Begin to ask.

        Args:
            node_id: this member.
            peers: whom to ask.
            missing: what for.
            voters: of each configuration under which it may have been committed, this member among them or not; by
                default this member and its peers are the only one.
        """
        self.waits = deque(map(Wait, missing))
        self._voters = voters or (frozenset({node_id, *peers}),)
        self.next_ms = 0
        self._node_id = node_id
        self._peers = peers
        self._number = 0
        self._asked: NodeId | None = None
        self._tried: list[NodeId] = []
        self._fruitless_count = 0
        self._preferred = 0

    def peers_changed(self, peers: tuple[NodeId, ...]) -> None:
        """Ask these members from now on, and forget what others have said."""
        self._peers = peers
        self._voters = (frozenset({self._node_id, *peers}),)
        self.waits = deque(
            replace(wait, lacking=wait.lacking.intersection(peers)) for wait in self.waits
        )
        self._asked = None
        self._tried.clear()
        self._preferred = 0
        self.next_ms = 0

    @property
    def is_done(self) -> bool:
        """True once nothing is missing any more."""
        return not self.waits

    def add(self, missing: Missing) -> None:
        """Ask for another range as well; known ranges are not taken twice."""
        if all(
            wait.missing.last_index < missing.first_index
            or missing.last_index < wait.missing.first_index
            for wait in self.waits
        ):
            self.waits.append(Wait(missing))
            self.next_ms = 0

    def drop_first(self) -> None:
        """Stop asking for the first range: its entries are here after all."""
        assert self.waits, "nothing is asked for"
        self.waits.popleft()
        self._asked = None
        self._tried.clear()
        self.next_ms = 0

    def forget_from(self, first: Index) -> None:
        """Stop asking for these entries: nobody needs them any more."""
        self.waits = deque(wait for wait in self.waits if wait.missing.last_index < first)
        self._asked = None
        self._tried.clear()
        self.next_ms = 0

    def forget_before(self, first: Index) -> None:
        """Stop asking for the entries before `first`, and for ranges that begin there."""
        self.waits = deque(wait for wait in self.waits if wait.missing.first_index >= first)
        self._asked = None
        self._tried.clear()
        self.next_ms = 0

    def is_forgotten(self, index: Index) -> bool:
        """Return whether another member has forgotten this entry, which is asked for by itself."""
        return any(wait.forgetting and wait.missing.last_index == index for wait in self.waits)

    def next_request(self, now_ms: int) -> tuple[NodeId, RepairRequest] | None:
        """Return the member to ask now and the request for it; None: wait for an answer, or until `next_ms`."""
        if not self.waits:
            self.next_ms = NEVER_MS
            return None
        if now_ms < self.next_ms:
            return None
        self._asked = None
        assert len(self._tried) <= len(self._peers), f"{self._tried} were asked of {self._peers}"
        if len(self._tried) == len(self._peers):
            self._rotate()
            self._fruitless_count += 1
            if self._fruitless_count >= len(self.waits):
                self._fruitless_count = 0
                self.next_ms = now_ms + ROUND_PAUSE_MS
                return None
        places = range(self._preferred, self._preferred + len(self._peers))
        turn = [self._peers[place % len(self._peers)] for place in places]
        peer = next(each for each in turn if each not in self._tried)
        self._tried.append(peer)
        self._asked = peer
        self._number += 1
        self.next_ms = now_ms + ANSWER_TIMEOUT_MS
        wanted = self.waits[0].missing
        return peer, RepairRequest(
            source=self._node_id,
            number=self._number,
            first_index=wanted.first_index,
            last_index=wanted.last_index,
            last_chain_crc=wanted.last_chain_crc,
        )

    def answered(self, answer: RepairAnswer) -> tuple[Entry, ...]:
        """Take an answer, and return the entries that it brings, every one verified.

        They are counted as here from now on: if writing them fails, begin anew.
        """
        if answer.source != self._asked or answer.number != self._number or not self.waits:
            return ()
        self._asked = None
        self.next_ms = 0
        wait = self.waits[0]
        wanted = wait.missing
        if not answer.entries:
            if answer.lacks:
                self.waits[0] = replace(wait, lacking=wait.lacking | {answer.source})
            elif answer.has_forgotten:
                self.waits[0] = replace(wait, forgetting=wait.forgetting | {answer.source})
            return ()
        if not _fits(wanted, answer.entries):
            return ()
        self.waits.popleft()
        self._tried.clear()
        self._fruitless_count = 0
        self._preferred = self._peers.index(answer.source)
        first = answer.entries[0]
        if first.index > wanted.first_index:
            rest = replace(
                wanted,
                last_index=Index(first.index - 1),
                end_position=first.position,
                last_chain_crc=preceding_chain_crc(first.header),
                is_tail=False,
            )
            self.waits.appendleft(Wait(rest))
        return answer.entries

    def unknown_to_all(self) -> Missing | None:
        """Return a range inside the log whose last entry no other member has, so that its name must be wrong."""
        return next(
            (
                wait.missing
                for wait in self.waits
                if not wait.missing.is_tail and len(wait.lacking) == len(self._peers)
            ),
            None,
        )

    def forgotten_by_all(self) -> Missing | None:
        """Return a range that no other member can give, and that some have forgotten: so it was committed."""
        return next(
            (
                wait.missing
                for wait in self.waits
                if wait.forgetting and len(wait.forgetting | wait.lacking) == len(self._peers)
            ),
            None,
        )

    def never_committed(self) -> Missing | None:
        """Return the range at the log's end, when a majority does not have its last entry, whoever was to commit it."""
        return next(
            (
                wait.missing
                for wait in self.waits
                if wait.missing.is_tail
                and all(
                    len(wait.lacking & voters) >= majority(len(voters)) for voters in self._voters
                )
            ),
            None,
        )

    def give_up(self, missing: Missing) -> None:
        """Stop asking for a range that is asked for."""
        place = next(place for place, wait in enumerate(self.waits) if wait.missing is missing)
        del self.waits[place]

    def lacked_by_half(self, beyond: Index) -> bool:
        """Return whether half of the others lack an entry that is missing here, beyond this index."""
        return any(
            wait.missing.last_index > beyond and 2 * len(wait.lacking) >= len(self._peers)
            for wait in self.waits
        )

    def _rotate(self) -> None:
        """Move the first range to the end, since no member can provide it now."""
        self.waits.rotate(-1)
        self._tried.clear()


def _fits(wanted: Missing, entries: tuple[Entry, ...]) -> bool:
    """Return whether these are the entries that were named, in every byte."""
    first, last = entries[0], entries[-1]
    is_whole = first.index == wanted.first_index
    if (
        first.index < wanted.first_index
        or last.index != wanted.last_index
        or last.end_position != wanted.end_position
        or (first.position != wanted.position if is_whole else first.position < wanted.position)
    ):
        return False
    if any(
        (after.index, after.position) != (before.index + 1, before.end_position)
        for before, after in pairwise(entries)
    ):
        return False
    prev = wanted.prev_chain_crc if is_whole else None
    try:
        for entry in entries:
            check_entry(entry, prev)
            prev = chain_crc(entry)
    except EntryFormatError:
        return False
    return prev == wanted.last_chain_crc
