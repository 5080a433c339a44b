"""One member as the leader sees it: what it surely has, what to send it next, what is under way.

Three states. *Probe*: the leader does not know where the logs agree; it sends one request and waits.
*Replicate*: they agree; requests are sent ahead without waiting (pipelining), up to a bound.
*Snapshot*: what the member needs next is no longer in the leader's log; it gets heartbeats only, and
the leader's view reports it, until it has found its log elsewhere.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from dledger.raft.ids import NO_INDEX, Index, NodeId
from dledger.raft.slow_disk import SaveTimer


class ProgressState(Enum):
    """How the leader sends to a member."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True)
class PeerView:
    """What the leader knows of a member, for people and for hand-over decisions.

    Attributes:
        match_index: last index that the member surely holds durably.
        next_index: first index of the next request.
        inflight_count, inflight_bytes: requests with entries that are not answered.
        answered_ms: when its last answer came (the leader's clock).
    """

    node_id: NodeId
    state: ProgressState
    match_index: Index
    next_index: Index
    inflight_count: int
    inflight_bytes: int
    answered_ms: int
    is_voter: bool = True


@dataclass(slots=True)
class Progress:
    """The leader's mutable record of one member, within one term.

    Invariants: 0 <= match_index < next_index; match_index decreases only when its store
    was lost; requests in `inflight`
    are in the order in which they were sent; in probe and snapshot nothing is in flight.

    Attributes:
        is_waiting: in probe: the one request is sent, only heartbeats go out until an answer comes.
        acked_round: the latest round that was answered.
        answered_ms: when that was; the start of the term before any answer. Later by what this node stood
            still since: in that time nobody could be heard.
        rejects_after_round: a rejection of this round or an earlier one is old news: the leader has
            changed `next_index` since.
        is_voter: False when its store began empty; then it is counted for nothing.
        store: number of that store; kept when it is admitted, so that late answers are known.
        rejoin_index: the entry that must be committed without it, and be held by it, before it is
            admitted; None until that entry exists.
        match_round: the latest request that was sent to anybody when `match_index` moved.
        has_gone_back: it is no-voter here because its log is shorter than it has confirmed in this term:
            an older copy of its store, which it takes for whole itself.
        heard_round: the latest request that was sent to anybody when that number was heard.
        inflight: (end, sent at ms, bytes) of each request with entries that are not confirmed; `end` is behind
            the last of them.
        saving: how long it takes until it confirms entries.
    """

    node_id: NodeId
    next_index: Index
    answered_ms: int
    saving: SaveTimer
    state: ProgressState = ProgressState.PROBE
    match_index: Index = NO_INDEX
    is_waiting: bool = False
    acked_round: int = 0
    rejects_after_round: int = 0
    is_voter: bool = True
    store: int = 0
    rejoin_index: Index | None = None
    match_round: int = 0
    has_gone_back: bool = False
    heard_round: int = 0
    inflight_bytes: int = 0
    inflight: deque[tuple[int, int, int]] = field(default_factory=deque)

    def sent(self, end: Index, *, size_bytes: int, now_ms: int) -> None:
        """Entries up to `end` (exclusive) were sent."""
        self.saving.given(Index(end - 1), now_ms)
        if self.state is ProgressState.REPLICATE:
            self.inflight.append((end, now_ms, size_bytes))
            self.inflight_bytes += size_bytes
            self.next_index = end
        else:
            self.is_waiting = True

    def succeeded(self, match_index: Index) -> bool:
        """An answer says that the logs agree up to `match_index`; whether that is more than known.

        A success is true whenever it arrives: within a term a follower never removes what once
        agreed with its leader. Requests are answered by what it confirms: a heartbeat is answered while
        the entries sent before it are still being written.
        """
        is_more = match_index > self.match_index
        if is_more:
            self.match_index = match_index
        inflight = self.inflight
        while inflight and inflight[0][0] <= self.match_index + 1:
            self.inflight_bytes -= inflight.popleft()[2]
        if self.state is not ProgressState.REPLICATE:
            self.state = ProgressState.REPLICATE
            self.next_index = Index(self.match_index + 1)
        elif self.next_index <= self.match_index:
            self.next_index = Index(self.match_index + 1)
        return is_more

    def probe_from(self, next_index: Index, *, last_round: int, is_waiting: bool) -> None:
        """Go back to probe; `last_round` is the latest that was sent to anybody."""
        self.state = ProgressState.PROBE
        self.next_index = Index(max(next_index, self.match_index + 1))
        self.is_waiting = is_waiting
        self.rejects_after_round = last_round
        self.inflight.clear()
        self.inflight_bytes = 0

    def counts(self, response_round: int, store: int, *, last_round: int) -> bool:
        """Whether an answer is of the store that the member has now; notes who became a voter.

        A request that was sent after a number was heard reaches only what came after the store of that
        number, or that store itself: whoever answers it as a voter was admitted. So a number that comes
        late, of a store before, does no harm for long.

        Args:
            response_round: the request that it answers.
            store: what the answer says of the store.
            last_round: the latest request that was sent to anybody.
        """
        if store:
            if store != self.store:
                self._lost_store(response_round, store)
                self.heard_round = last_round
            # A voter by now: what it answered before it was admitted may still arrive.
            return not self.is_voter
        if not self.is_voter:
            # What the lost store had answered may still arrive too.
            if response_round <= self.heard_round:
                return False
            self.is_voter = not self.has_gone_back
        return True

    def goes_back(self, response_round: int, last_index: Index) -> bool:
        """Whether a rejection shows that the member lost what it had confirmed in this very term.

        The request was sent after the leader had heard of `match_index`, so the member had it then.
        """
        return self.is_voter and response_round > self.match_round and last_index < self.match_index

    def note_gone_back(self, response_round: int, *, last_round: int) -> None:
        """Count it for nothing until it has caught up with an entry that the others committed."""
        self._lost_store(response_round, self.store)
        self.has_gone_back = True
        self.heard_round = last_round

    def trust_again(self) -> None:
        """It holds all that it can have confirmed before."""
        self.has_gone_back = False
        self.is_voter = True

    def _lost_store(self, round_: int, store: int) -> None:
        """It answers `round_` with a store that began empty: all that it confirmed before is void."""
        self.is_voter = self.has_gone_back = False
        self.store = store
        self.rejoin_index = None
        self.acked_round = 0
        self.match_index = NO_INDEX
        self.saving = SaveTimer(self.saving.slow_ms)
        self.probe_from(Index(1), last_round=round_ - 1, is_waiting=False)

    def need_snapshot(self) -> None:
        """What it needs next is no longer in the leader's log."""
        self.state = ProgressState.SNAPSHOT
        self.inflight.clear()
        self.inflight_bytes = 0

    def view(self) -> PeerView:
        """A frozen copy."""
        return PeerView(
            node_id=self.node_id,
            state=self.state,
            match_index=self.match_index,
            next_index=self.next_index,
            inflight_count=len(self.inflight),
            inflight_bytes=self.inflight_bytes,
            answered_ms=self.answered_ms,
            is_voter=self.is_voter,
        )
