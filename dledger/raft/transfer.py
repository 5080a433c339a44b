"""Handing over leadership: on request, to a preferred leader (thesis 3.10), or because the own disk is slow.

The leader takes no proposals, waits until the target has the whole log and all of it is committed (so
that nobody who waits for a proposal is left without an answer), gives up its lease and sends the target
`TimeoutNow`: campaign at once. If no new term is seen in time it goes on leading, without a lease:
the target may still get that message, and then the others may vote for it at once. The message does not wait
for the own disk: it confirms nothing, and a disk that is slow may be the very reason.
"""

from __future__ import annotations

from dataclasses import dataclass

from dledger.errors import (
    AckTimeoutError,
    LeadershipLostError,
    TransferFailedError,
    TransferringError,
)
from dledger.raft.core import Core
from dledger.raft.effects import Failed, HandsOver, Outcome, Resolve, TransferDone, Waits
from dledger.raft.events import TransferRequested
from dledger.raft.ids import Index, NodeId
from dledger.raft.messages import TimeoutNow
from dledger.raft.progress import Progress, ProgressState
from dledger.raft.quorum import majority
from dledger.raft.replication import Replication
from dledger.raft.slow_disk import FACTOR, is_too_slow_to_lead, leader_slowness

PREFERRED_CHECK_MS = 1_000
"""Pause between two looks of a leader that is not preferred for one that is."""

PREFERRED_RETRY_MS = 30_000
"""Pause after such a hand-over failed: each try refuses proposals for up to transfer_timeout_ms."""

GIVE_BACK_MS = 60_000
"""Time after which who handed over may have the lead again because it is preferred: it may be about to stop, and then
serves clients that have yet to learn of the new leader (docs/node.md)."""

CLOSE_REQUESTS = 4
"""Full requests that a member may lack which is handed the lead: it gets them within a round or two."""

SLOW_DISK_PAUSE_MS = 30_000
"""A node hands over for its slow disk once in this time, whatever comes of it."""


@dataclass(slots=True)
class _Transfer:
    """A hand-over under way.

    Attributes:
        token: of the caller that asked for it; None when the leader itself began it.
        is_sent: the target has its `TimeoutNow`, or may have.
    """

    target: NodeId
    token: int | None
    deadline_ms: int
    is_sent: bool = False


class Handover:
    """The hand-overs of one term.

    Attributes:
        has_given_up_lease: a target was sent `TimeoutNow` in this term; from then on a majority may
            elect it without regard to the promises that the lease rests on.
    """

    __slots__ = (
        "_check_deadline_ms",
        "_core",
        "_is_seeking",
        "_replication",
        "_transfer",
        "has_given_up_lease",
    )

    def __init__(self, core: Core, replication: Replication) -> None:
        self._core = core
        self._replication = replication
        self._transfer: _Transfer | None = None
        self.has_given_up_lease = False
        preferred = core.config.preferred_leaders
        self._is_seeking = bool(preferred) and core.node_id not in preferred
        self._check_deadline_ms = core.now_ms + PREFERRED_CHECK_MS

    @property
    def target(self) -> NodeId | None:
        """The member to which leadership is being handed; None while it is not."""
        return self._transfer.target if self._transfer else None

    def next_deadline_ms(self, otherwise_ms: int) -> int:
        """Return when to call `tick` at the latest, or `otherwise_ms` if that is sooner."""
        if self._transfer is not None:
            return min(otherwise_ms, self._transfer.deadline_ms)
        return min(otherwise_ms, self._check_deadline_ms) if self._is_seeking else otherwise_ms

    def request(self, event: TransferRequested) -> None:
        """Begin a hand-over, or refuse it at once."""
        core = self._core
        if self._transfer is not None:
            error = TransferringError(f"leadership is being handed to {self._transfer.target}")
            core.emit(Resolve(event.token, Failed(error)))
            return
        target = event.target if event.target is not None else self._best_target()
        if target is None or target not in core.other_voters:
            names = ", ".join(core.other_voters) or "nobody"
            error_text = (
                f"leadership cannot be handed to {target or 'any member'}: "
                f"{core.node_id} leads, the others are {names}"
            )
            core.emit(Resolve(event.token, Failed(TransferFailedError(error_text))))
            return
        if not self._replication.peers[target].may_lead:
            self._refuse(event.token, target)
            return
        self._begin(target, event.token)

    def leave(self) -> None:
        """Begin to hand over to the best voter, if there is one: this node is no member any more."""
        target = self._best_target()
        if self._transfer is None and target is not None:
            self._begin(target, None)

    def tick(self) -> None:
        """Abandon a hand-over that takes too long; begin one if another member should lead instead."""
        core = self._core
        transfer = self._transfer
        if transfer is not None:
            if core.now_ms >= transfer.deadline_ms:
                self._give_up(transfer)
        elif self._is_seeking and core.now_ms >= self._check_deadline_ms:
            self._check_deadline_ms = core.now_ms + PREFERRED_CHECK_MS
            target = self._preferred_target()
            if target is not None:
                self._begin(target, None)
        if self._transfer is None and core.now_ms >= core.slow_disk_pause_until_ms:
            self._hand_over_for_slow_disk()

    def heartbeat(self) -> None:
        """Send the target its `TimeoutNow` once more, in case it was lost."""
        if self._transfer is not None and self._transfer.is_sent:
            self._send_timeout_now(self._transfer)

    def advanced(self) -> None:
        """Complete the hand-over if its target has caught up; called when a member answers or more is committed."""
        transfer = self._transfer
        if transfer is None or transfer.is_sent:
            return
        peer = self._replication.peers[transfer.target]
        if not peer.may_lead:
            self._transfer = None
            self._refuse(transfer.token, transfer.target)
            return
        match_index = peer.match_index
        if match_index == self._core.log.last_index == self._core.commit_index:
            self._send_timeout_now(transfer)

    def lost(self, *, is_new_term: bool) -> None:
        """Resolve the hand-over under way: this node leads no longer."""
        transfer = self._transfer
        self._transfer = None
        if transfer is None or transfer.token is None:
            return
        outcome: Outcome
        if not transfer.is_sent:
            outcome = Failed(
                TransferFailedError(f"leadership was lost before {transfer.target} was ready")
            )
        elif is_new_term:
            outcome = TransferDone(transfer.target)
        else:
            outcome = Failed(
                LeadershipLostError(
                    f"{transfer.target} was asked to campaign; no new term was seen"
                )
            )
        self._core.emit(Resolve(transfer.token, outcome))

    def _begin(self, target: NodeId, token: int | None) -> None:
        core = self._core
        assert self._transfer is None, f"a hand-over to {target} begins during {self._transfer}"
        deadline_ms = core.now_ms + core.config.transfer_timeout_ms
        self._transfer = _Transfer(target, token, deadline_ms)
        self.advanced()

    def _send_timeout_now(self, transfer: _Transfer) -> None:
        core = self._core
        transfer.is_sent = True
        self.has_given_up_lease = True
        core.send(transfer.target, TimeoutNow(core.term, core.node_id), Waits.NOTHING)

    def _refuse(self, token: int | None, target: NodeId) -> None:
        """Tell the caller that a member cannot be handed the lead: it would not campaign."""
        if token is not None:
            text = f"{target} has lost its state and may not lead before it has another member's"
            self._core.emit(Resolve(token, Failed(TransferFailedError(text))))

    def _give_up(self, transfer: _Transfer) -> None:
        core = self._core
        self._transfer = None
        self._check_deadline_ms = core.now_ms + PREFERRED_RETRY_MS
        if transfer.token is None:
            return
        what = f"{transfer.target} did not take over within {core.config.transfer_timeout_ms} ms"
        # Once it was asked, it may still be elected: only then the outcome is open.
        error = AckTimeoutError(what) if transfer.is_sent else TransferFailedError(what)
        core.emit(Resolve(transfer.token, Failed(error)))

    def _best_target(self) -> NodeId | None:
        """Return the answering member that may lead with most of the log; the first in the configured order of equals.

        One that has just handed over comes after others that are close: it may be about to stop, as this one.
        """
        answering = [
            peer
            for peer in self._replication.voters()
            if self._is_answering(peer) and peer.may_lead
        ]
        if not answering:
            return None

        def fitness(peer: Progress) -> tuple[bool, Index]:
            stays = self._is_close(peer) and not self._has_just_handed_over(peer.node_id)
            return stays, peer.match_index

        return max(answering, key=fitness).node_id

    def _preferred_target(self) -> NodeId | None:
        """Return a preferred member that could take over at once, and whose disk is not slow."""
        core = self._core
        for node_id in core.config.preferred_leaders:
            peer = self._replication.peers.get(node_id)
            if peer is None or node_id not in core.other_voters:
                continue
            if not self._is_close(peer) or self._has_just_handed_over(node_id):
                continue
            others = [
                self._replication.own_saving,
                *(each.saving for each in self._replication.voters() if each is not peer),
            ]
            if not is_too_slow_to_lead(
                peer.saving, others, majority=majority(core.voter_count), now_ms=core.now_ms
            ):
                return node_id
        return None

    def _has_just_handed_over(self, node_id: NodeId) -> bool:
        core = self._core
        return node_id == core.handed_over_by and core.now_ms - core.handed_over_ms < GIVE_BACK_MS

    def _hand_over_for_slow_disk(self) -> None:
        """Hand over to a member that is close and fast, if the own disk is too slow beside the others'."""
        core = self._core
        slowness = leader_slowness(
            self._replication.own_saving,
            [peer.saving for peer in self._replication.voters()],
            majority=majority(core.voter_count),
            now_ms=core.now_ms,
        )
        if slowness is None:
            return
        fit = [
            peer
            for peer in self._replication.voters()
            if self._is_close(peer)
            and FACTOR * peer.saving.takes_ms(core.now_ms) <= slowness.own_ms
        ]
        if not fit:
            return
        target = max(fit, key=lambda peer: peer.match_index).node_id
        core.slow_disk_pause_until_ms = core.now_ms + SLOW_DISK_PAUSE_MS
        core.emit(HandsOver(target, slowness.own_ms, slowness.others_ms))
        self._begin(target, None)

    def _is_close(self, peer: Progress) -> bool:
        """Return whether the member may lead, answers and is at most a few requests behind."""
        return (
            peer.may_lead
            and peer.state is ProgressState.REPLICATE
            and self._is_answering(peer)
            # What it has yet to confirm may have been forgotten since it was sent.
            and peer.match_index + 1 >= self._core.log.first_index
            and self._behind_bytes(peer) <= CLOSE_REQUESTS * self._core.config.entries_bytes_max
        )

    def _is_answering(self, peer: Progress) -> bool:
        # In a term's first moments nobody has answered yet; then acked_round is 0.
        is_recent = self._core.now_ms - peer.answered_ms < self._core.config.election_timeout_min_ms
        return peer.acked_round > 0 and is_recent and peer.admission.is_counted

    def _behind_bytes(self, peer: Progress) -> int:
        log = self._core.log
        try:
            return log.end_position - log.position_of(Index(peer.match_index + 1))
        except OSError:  # nothing can tell it now: it is old, at any rate
            return log.end_position - log.first_position
