"""One member's replication progress at the leader: what it surely has, what to send next, what is in flight.

Three states. *Probe*: the leader does not know where the logs agree; it sends one request and waits.
*Replicate*: they agree; requests are sent ahead without waiting (pipelining), up to a bound.
*Snapshot*: what the member needs next is no longer in the leader's log; it gets heartbeats only, which
say so, and the leader's view reports it, until it has begun its log anew behind a snapshot.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from dledger.raft.admission import Admission
from dledger.raft.ids import NO_INDEX, Index, NodeId
from dledger.raft.slow_disk import SaveTimer


class ProgressState(Enum):
    """The way in which the leader sends to a member."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True)
class PeerView:
    """The leader's knowledge of a member, for people and for hand-over decisions.

    Attributes:
        match_index: last index that the member surely holds durably.
        next_index: first index of the next request.
        inflight_count, inflight_bytes: requests with entries that are not answered.
        answered_ms: when its last answer came (the leader's clock).
        is_voter: whether its store may vote, and what it confirms is taken (docs/adr/0061).
        is_learner: it only follows, whatever it confirms.
    """

    node_id: NodeId
    state: ProgressState
    match_index: Index
    next_index: Index
    inflight_count: int
    inflight_bytes: int
    answered_ms: int
    is_voter: bool = True
    is_learner: bool = False


@dataclass(slots=True)
class Progress:
    """The leader's mutable record of one member, within one term.

    Invariants: 0 <= match_index < next_index; match_index decreases only when its store was lost;
    requests in `inflight` are in the order in which they were sent, and inflight_bytes is the sum of
    theirs; in probe and snapshot nothing is in flight.

    Attributes:
        is_waiting: in probe: the one request is sent, only heartbeats go out until an answer comes.
        acked_round: the latest round that was answered.
        answered_ms: when that was; when the term began, before any answer. Later by what this node stood
            still since: in that time nobody could be heard.
        rejects_after_round: a rejection of this round or an earlier one is old news: the leader has
            changed `next_index` since.
        inflight: (end, sent at ms, bytes) of each request with entries that are not confirmed; `end` is after
            the last of them.
        saving: how long it takes until it confirms entries.
        is_loading: entries are being read that are to be sent to it next. There is one such read at a time.
        is_far_behind: what it was sent last had to be read, and it lacks much since.
        admission: whether it is counted.
        may_lead: whether it would campaign if it was asked to, as its last answer says.
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
    inflight_bytes: int = 0
    is_loading: bool = False
    is_far_behind: bool = False
    inflight: deque[tuple[Index, int, int]] = field(default_factory=deque)
    admission: Admission = field(default_factory=Admission)
    may_lead: bool = True

    def sent(self, end: Index, *, size_bytes: int, now_ms: int) -> None:
        """Note that entries up to `end` (exclusive) were sent."""
        assert end > self.next_index, f"entries up to {end} from {self.next_index} on"
        self.saving.given(Index(end - 1), now_ms)
        if self.state is ProgressState.REPLICATE:
            self.inflight.append((end, now_ms, size_bytes))
            self.inflight_bytes += size_bytes
            self.next_index = end
        else:
            assert self.state is ProgressState.PROBE, (
                f"entries are sent to {self.node_id} in snapshot"
            )
            assert not self.inflight, f"{len(self.inflight)} requests are in flight in probe"
            self.is_waiting = True

    def succeeded(self, match_index: Index) -> bool:
        """Take an answer: the logs agree up to `match_index`. Return whether that is more than known.

        A success is true whenever it arrives: within a term a follower never removes what once
        agreed with its leader. Requests are answered by what it confirms: a heartbeat is answered while
        the entries sent before it are still being written.
        """
        is_more = match_index > self.match_index
        if is_more:
            self.match_index = match_index
        inflight = self.inflight
        while inflight:
            end, _, size_bytes = inflight[0]
            if end > self.match_index + 1:
                break
            inflight.popleft()
            self.inflight_bytes -= size_bytes
        if self.state is not ProgressState.REPLICATE:
            self.state = ProgressState.REPLICATE
            self.next_index = Index(self.match_index + 1)
        elif self.next_index <= self.match_index:
            self.next_index = Index(self.match_index + 1)
        assert self.inflight_bytes >= 0, (
            f"{-self.inflight_bytes} bytes more were answered than sent"
        )
        assert self.match_index < self.next_index, (
            f"{self.node_id} holds entry {self.match_index}, {self.next_index} is sent next"
        )
        return is_more

    def probe_from(self, next_index: Index, *, last_round: int, is_waiting: bool) -> None:
        """Go back to probe; `last_round` is the latest that was sent to anybody."""
        assert next_index > NO_INDEX, f"the probe of {self.node_id} begins at entry {next_index}"
        self.state = ProgressState.PROBE
        self.next_index = Index(max(next_index, self.match_index + 1))
        self.is_waiting = is_waiting
        self.rejects_after_round = last_round
        self.inflight.clear()
        self.inflight_bytes = 0

    def begin_anew(self, *, after_round: int) -> None:
        """Void what the member confirmed; answers to requests up to `after_round` are ignored from now on."""
        self.acked_round = 0
        self.match_index = NO_INDEX
        self.saving = SaveTimer(self.saving.slow_ms)
        self.probe_from(Index(1), last_round=after_round, is_waiting=False)

    def need_snapshot(self) -> None:
        """Stop sending entries: what it needs next is no longer in the leader's log."""
        assert self.state is not ProgressState.SNAPSHOT, f"{self.node_id} needs one already"
        self.state = ProgressState.SNAPSHOT
        self.inflight.clear()
        self.inflight_bytes = 0

    def view(self, *, is_learner: bool) -> PeerView:
        """Return a frozen copy."""
        return PeerView(
            node_id=self.node_id,
            state=self.state,
            match_index=self.match_index,
            next_index=self.next_index,
            inflight_count=len(self.inflight),
            inflight_bytes=self.inflight_bytes,
            answered_ms=self.answered_ms,
            is_voter=self.admission.is_counted,
            is_learner=is_learner,
        )
