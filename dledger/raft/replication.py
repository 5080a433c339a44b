"""Replication of the leader's log to the others: progress, pipelining, heartbeats, rounds.

Every request is numbered and timed (rounds.py). A heartbeat is a request without entries whose
prev_index is next_index - 1: a member that misses something rejects it, so a lost request is noticed
one heartbeat later, and a lost answer is repaired by the heartbeat's own. Source: Raft paper 5.3,
thesis 10.2.1.

Entries that are not in memory are asked for, one request after the other for each member, and sent when they were read
(`LoadEntries`, docs/adr/0187); until then the member gets heartbeats, as one that has everything does. So does it get
all that follows until it is nearly there (docs/adr/0212).
"""

from __future__ import annotations

from typing import Final

from dledger.raft.core import Core
from dledger.raft.effects import LoadEntries, SendEntries
from dledger.raft.events import EntriesLoaded
from dledger.raft.ids import NO_INDEX, Index, NodeId
from dledger.raft.messages import AppendResponse
from dledger.raft.progress import Progress, ProgressState
from dledger.raft.quorum import majority, reached_by_majority
from dledger.raft.rounds import RoundClock
from dledger.raft.slow_disk import SaveTimer

SLICE_REQUESTS: Final = 2
"""Full requests that follow one answer: nobody else is served while they are made and sent.

With one a window would never fill; with two it doubles from answer to answer.
"""

LOAD_BYTES_MAX: Final = 128 * 1024
"""Of old entries at a time, unless one has more. A member writes and folds what it gets in one go: short turns leave
the processor to others in between."""

NEAR_BYTES: Final = 1024 * 1024
"""A member that lacks no more than that is nearly there."""


class Replication:
    """The members' progress within one term, and everything that is sent to them.

    Attributes:
        peers: progress by member, in the configured order, voters and learners.
        is_term_durable: whether whatever is sent in this term may be known to others: a voter that is alone elects
            itself, and its own disk is the only one that remembers it. Those that others elected have told them before.
        rounds: numbers and send times of the requests.
        own_saving: how long this node takes until its own disk has entries.
    """

    __slots__ = (
        "_core",
        "_lost_after_ms",
        "_voters",
        "is_term_durable",
        "own_saving",
        "peers",
        "rounds",
    )

    def __init__(self, core: Core) -> None:
        self._core = core
        config = core.config
        # Heartbeats find a gap within one interval. A member that answers nothing for so long gets
        # no more entries until it answers; a slow disk does not reach it, since heartbeats are answered.
        self._lost_after_ms = 2 * config.heartbeat_interval_ms + config.lease_ms
        self.rounds = RoundClock(config.lease_ms)
        self.own_saving = SaveTimer(config.slow_disk_ms)
        self.is_term_durable = bool(core.other_voters)
        self.peers: dict[NodeId, Progress] = {}
        self._voters: tuple[Progress, ...] = ()
        self.configured()

    def configured(self) -> None:
        """Follow the configuration in force: it is about these members from here on, and about no others."""
        core = self._core
        before, next_index = self.peers, Index(core.log.last_index + 1)
        self.peers = {
            peer: before.get(peer)
            or Progress(peer, next_index, core.now_ms, SaveTimer(core.config.slow_disk_ms))
            for peer in core.peers
        }
        self._voters = tuple(self.peers[voter] for voter in core.other_voters)

    def voters(self) -> list[Progress]:
        """Return the other voters whose answers are taken for what they say."""
        return [peer for peer in self._voters if peer.admission.is_counted]

    def confirmed_round(self) -> int:
        """Return the latest round such that a majority has answered it or a later one.

        The leader itself confirms even the next round: a group of one need not send any.
        """
        values = [peer.acked_round if peer.admission.is_counted else 0 for peer in self._voters]
        if self._core.is_counted:
            values.append(self.rounds.last_round + 1)
        return reached_by_majority(values)

    def answered_by_majority_ms(self) -> int:
        """Return the latest time, in ms, since which a majority (this node included, if it votes) has answered."""
        values = [peer.answered_ms if peer.admission.is_counted else 0 for peer in self._voters]
        if self._core.is_counted:
            values.append(self._core.now_ms)
        return reached_by_majority(values)

    def matches(self) -> list[Index]:
        """Return the last durable equal index of each voter."""
        values = [
            peer.match_index if peer.admission.is_counted else NO_INDEX for peer in self._voters
        ]
        if self._core.is_counted:
            values.append(self._core.durable_index)
        return values

    def stood_still(self, length_ms: int) -> None:
        """Disregard the time in which this process stood still: the members' silence in it means nothing."""
        now_ms = self._core.now_ms
        for peer in self.peers.values():
            peer.answered_ms = min(now_ms, peer.answered_ms + length_ms)

    def saved(self) -> None:
        """Note that more of this node's own log is durable, and with an entry of the term the term itself."""
        core = self._core
        self.own_saving.holds(core.durable_index, core.now_ms)
        if not self.is_term_durable and core.log.term_of(core.durable_index) == core.term:
            self.is_term_durable = True
            self.heartbeat_all()

    def send_new(self, first: Index) -> None:
        """Send every member what it has room for: entries were appended, from `first` on.

        A member that lacks older ones gets them as it answers: there are requests that it has not answered.
        """
        self.own_saving.given(self._core.log.last_index, self._core.now_ms)
        for peer in self.peers.values():
            if peer.next_index >= first or not peer.inflight:
                self.fill(peer)

    def fill(self, peer: Progress) -> None:
        """Send a member the next slice of the entries that it lacks, as far as its window allows.

        If nothing can tell now where they stand, its next answer brings this about again.
        """
        try:
            self._fill(peer)
        except OSError:
            return

    def _fill(self, peer: Progress) -> None:
        """Raise OSError before anything is sent, or asked for, of which the place is not known."""
        core = self._core
        log = core.log
        config = core.config
        last_index = log.last_index
        if not self.is_term_durable:
            return
        if peer.state is ProgressState.REPLICATE:
            if peer.next_index < log.first_index:
                peer.need_snapshot()
                return
            end_bytes = peer.inflight_bytes + SLICE_REQUESTS * config.entries_bytes_max
            while (
                peer.next_index <= last_index
                and peer.inflight_bytes < end_bytes
                and len(peer.inflight) < config.inflight_requests_max
                and peer.inflight_bytes < config.inflight_bytes_max
            ):
                if self._is_old(peer):
                    self._load(peer)
                    return
                self._send_entries(peer)
        elif peer.state is ProgressState.PROBE and not peer.is_waiting:
            if log.term_of(Index(peer.next_index - 1)) is None:
                peer.need_snapshot()
            elif peer.next_index <= last_index and not self._is_old(peer):
                self._send_entries(peer)
            else:
                self.heartbeat(peer)  # tells as well where the logs agree, and reads nothing

    def loaded(self, event: EntriesLoaded) -> None:
        """Send a member the entries that were read for it, if they still are what it needs next, and go on."""
        peer = self.peers.get(event.peer)
        if peer is None:
            return  # it was removed
        peer.is_loading = False
        if event.end == event.first:
            return
        if (
            peer.state is ProgressState.REPLICATE
            and peer.next_index == event.first >= self._core.log.first_index
        ):
            try:
                self._send_up_to(peer, event.end)
            except OSError:
                return
        self.fill(peer)

    def _is_old(self, peer: Progress) -> bool:
        """Return whether what a member needs next is to be loaded. What is not durable is in memory.

        Who was sent what was loaded gets the rest so, too, though memory has the newest: or all of that would come at
        once, at no rate. Only what others get by now goes out as it does to them.
        """
        core, first = self._core, peer.next_index
        if first > core.durable_index:
            return False
        if first < core.first_in_memory():
            return True
        log = core.log
        if log.position_of(Index(log.last_index + 1)) - log.position_of(first) <= NEAR_BYTES:
            peer.is_far_behind = False
        return peer.is_far_behind

    def _load(self, peer: Progress) -> None:
        """Ask for the entries of a member's next request, unless they are being read."""
        if peer.is_loading:
            return
        core = self._core
        in_memory = core.first_in_memory()
        end_max = in_memory if peer.next_index < in_memory else Index(core.durable_index + 1)
        end = min(self._end_of_request(peer, LOAD_BYTES_MAX), end_max)
        peer.is_loading = peer.is_far_behind = True
        core.emit(LoadEntries(peer.node_id, core.term, peer.next_index, end))

    def is_waited_for(self, member: NodeId) -> bool:
        """Return whether nothing is committed until a member has caught up: too few other voters are there."""
        core = self._core
        if member not in core.other_voters:
            return False
        others = [each for each in self.voters() if each.node_id != member]
        alive_after_ms = core.now_ms - self._lost_after_ms
        count = sum(
            each.match_index >= core.commit_index and each.answered_ms > alive_after_ms
            for each in others
        )
        return count + core.is_counted < majority(core.voter_count)

    def heartbeat_all(self) -> None:
        """Send every member a request without entries."""
        now_ms = self._core.now_ms
        if not self.is_term_durable:
            return
        for peer in self.peers.values():
            if peer.inflight:
                _, sent_ms, _ = peer.inflight[0]
                silent_since_ms = max(sent_ms, peer.answered_ms)
                if now_ms - silent_since_ms >= self._lost_after_ms:
                    self._pause(peer)
            self.heartbeat(peer)

    def heartbeat(self, peer: Progress) -> None:
        """Send one member a request without entries."""
        log = self._core.log
        first = peer.next_index
        if peer.state is ProgressState.SNAPSHOT or first < log.first_index:
            first = log.first_index
        self._send(peer, first, first)
        if peer.state is ProgressState.PROBE:
            peer.is_waiting = True

    def answered(self, response: AppendResponse) -> bool:
        """Take a member's answer of this term; return whether its match index has moved."""
        peer = self.peers[response.source]
        admission = peer.admission
        last_round = self.rounds.last_round
        # What no correct member answers was refused before (`RaftNode.step`).
        assert response.round <= last_round, (
            f"round {response.round} is answered after {last_round}"
        )
        assert response.match_index <= self._core.log.last_index, (
            f"{peer.node_id} holds entry {response.match_index}, the last is {self._core.log.last_index}"
        )
        follows = admission.take_answer(response.round, response.store, last_round=last_round)
        if follows.is_void:
            peer.begin_anew(after_round=response.round - 1)
        if not follows.is_taken:
            return False
        if not response.success and admission.shows_loss(
            response.round, last_index=response.last_index, match_index=peer.match_index
        ):
            admission.went_back(last_round=last_round)
            peer.begin_anew(after_round=response.round - 1)
        peer.answered_ms = self._core.now_ms
        peer.may_lead = response.may_lead
        peer.acked_round = max(peer.acked_round, response.round)
        has_moved = False
        if response.success:
            has_moved = peer.succeeded(response.match_index)
            if has_moved:
                admission.confirmed_round = last_round
                peer.saving.holds(peer.match_index, self._core.now_ms)
            if not admission.is_counted:
                admission.count_again(
                    match_index=peer.match_index, commit_index=self._core.commit_index
                )
        elif response.round > peer.rejects_after_round:
            next_index = self._next_after_conflict(response)
            peer.probe_from(next_index, last_round=last_round, is_waiting=False)
        if (
            peer.next_index <= self._core.log.last_index
            or peer.state is not ProgressState.REPLICATE
        ):
            self.fill(peer)
        return has_moved

    def unreachable(self, node_id: NodeId) -> None:
        """Go back to probing a member by heartbeats: requests sent to it may be lost."""
        self._pause(self.peers[node_id])

    def _pause(self, peer: Progress) -> None:
        """Return to probe, in which only heartbeats are sent until the member answers."""
        if peer.state is ProgressState.REPLICATE:
            peer.probe_from(
                Index(peer.match_index + 1), last_round=self.rounds.last_round, is_waiting=True
            )

    def _next_after_conflict(self, response: AppendResponse) -> Index:
        """Go back by a whole term at once (paper, end of 5.3); return the index to send next.

        If the own log has entries of the follower's conflicting term, the logs can agree at the
        last of them; if not, none of that term's entries at the follower can stay.
        """
        log = self._core.log
        next_index = response.conflict_index
        if response.conflict_term:
            last = log.last_index_of_term(response.conflict_term)
            if last is not None:
                next_index = Index(last + 1)
        return Index(max(1, min(next_index, log.last_index + 1)))

    def _end_of_request(self, peer: Progress, bytes_max: int) -> Index:
        """Return where the next request ends: it fits the bytes of one request, and of what is in flight."""
        config = self._core.config
        room = config.inflight_bytes_max - peer.inflight_bytes
        return self._core.log.end_within(
            peer.next_index,
            bytes_max=min(config.entries_bytes_max, bytes_max, room),
            count_max=config.entries_count_max,
        )

    def _send_entries(self, peer: Progress) -> None:
        self._send_up_to(peer, self._end_of_request(peer, self._core.config.entries_bytes_max))

    def _send_up_to(self, peer: Progress, end: Index) -> None:
        """Send one request with the entries that a member needs next, up to `end`."""
        log, first = self._core.log, peer.next_index
        size_bytes = log.position_of(end) - log.position_of(first)
        self._send(peer, first, end)
        peer.sent(end, size_bytes=size_bytes, now_ms=self._core.now_ms)

    def _send(self, peer: Progress, first: Index, end: Index) -> None:
        """Emit one request with the entries first..end-1; none: a heartbeat."""
        core = self._core
        assert first <= end <= core.log.last_index + 1, (
            f"entries {first}..{end - 1} are sent, the last is {core.log.last_index}"
        )
        prev_index = Index(first - 1)
        prev_term = core.log.term_of(prev_index)
        assert prev_term is not None, f"entry {prev_index} is not in the log"
        first_kept = core.log.first_index if peer.next_index < core.log.first_index else NO_INDEX
        round_ = self.rounds.start(core.now_ms)
        admission = peer.admission
        admits = (
            0
            if admission.is_counted
            else admission.admits(match_index=peer.match_index, commit_index=core.commit_index)
        )
        core.emit(
            SendEntries(
                to=peer.node_id,
                term=core.term,
                prev_index=prev_index,
                prev_term=prev_term,
                first=first,
                end=end,
                commit_index=core.commit_index,
                round=round_,
                admits=admits,
                first_kept=first_kept,
                members=core.configurations.committed(core.log, core.commit_index)
                if first_kept
                else None,
            )
        )
