"""Orderly locks through the log (41, 42): every node knows them, a failover forgets none."""

from __future__ import annotations

from functools import partial

from broker.server.handlers.committers import ID_LENGTH_MAX, Committers
from broker.server.requests.commits import Commits
from broker.server.requests.request import Handler, PendingRequest
from broker.server.requests.router import Router
from broker.service.conclusions import RequestKind
from broker.service.strangers import NAME_LENGTH_MAX, lockable
from broker.store.control import LockQueues, UnlockQueues
from broker.store.staging import StagedEntry
from broker.store.state import BrokerState
from dledger_mq.message.numbers import QueueId
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.group_bodies import LockRequest, decode_lock_request, encode_lock_reply
from dledger_mq.remoting.header import RemotingCommand

_QUEUE_ID_MAX = 2**31 - 1


class Locks:
    """Takes lock requests while this node leads."""

    def __init__(
        self,
        commits: Commits,
        router: Router,
        state: BrokerState,
        committers: Committers,
    ) -> None:
        self._commits = commits
        self._router = router
        self._state = state
        self._committers = committers

    def handlers(self) -> tuple[Handler[RemotingCommand], ...]:
        """Return the handlers of its codes."""
        return (
            Handler(RequestCode.LOCK_BATCH_MQ, self.lock, RequestKind.UPDATE),
            Handler(RequestCode.UNLOCK_BATCH_MQ, self.unlock, RequestKind.UPDATE),
        )

    def lock(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out LOCK_BATCH_MQ: answered with what is held once the record is committed.

        Raises:
            BodyError: the body is no lock request.
        """
        if self._commits.is_full:
            request.refuse_as_busy()
            return
        wanted = decode_lock_request(command.body)
        group = wanted.consumer_group
        if len(group) > NAME_LENGTH_MAX:
            text = f"the group's name is longer than {NAME_LENGTH_MAX}: nothing was locked"
            request.refuse(ResponseCode.SYSTEM_ERROR, text)
            return
        self._committers.has_locked(
            group, address=request.origin.address, client_id=wanted.client_id
        )
        # Of what may not be locked nothing is said but that it was not granted. All the same the log is asked: only it
        # knows that this node still leads.
        queues = lockable(self._state, group, _queues(wanted))
        place = self._commits.stage_control(
            LockQueues(group, wanted.client_id[:ID_LENGTH_MAX], queues)
        )
        self._router.when_committed(request, place, partial(self._locked, request, wanted))

    def unlock(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out UNLOCK_BATCH_MQ.

        Raises:
            BodyError: the body is no lock request.
        """
        if self._commits.is_full:
            request.refuse_as_busy()  # it expires
            return
        wanted = decode_lock_request(command.body)
        place = self._commits.stage_control(
            UnlockQueues(wanted.consumer_group, wanted.client_id[:ID_LENGTH_MAX], _queues(wanted))
        )
        self._router.when_committed(
            request, place, lambda _staged, _place: request.answer(ResponseCode.SUCCESS)
        )

    def _locked(
        self, request: PendingRequest, wanted: LockRequest, staged: StagedEntry, place: int
    ) -> None:
        """Answer with the granted queues, spelled as the client spelled them."""
        granted = set(self._state.locks.granted_at(staged.physical_offset(place)) or ())
        held = [queue for queue in wanted.mq_set if (queue.topic, queue.queue_id) in granted]
        request.answer(ResponseCode.SUCCESS, body=encode_lock_reply(held))


def _queues(wanted: LockRequest) -> list[tuple[str, QueueId]]:
    return [
        (queue.topic, QueueId(queue.queue_id))
        for queue in wanted.mq_set
        if 0 <= queue.queue_id <= _QUEUE_ID_MAX
    ]
