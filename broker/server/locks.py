"""Orderly locks through the log (41, 42): every node knows them, a failover forgets none."""

from __future__ import annotations

from broker.server.commits import Commits
from broker.server.committers import Committers
from broker.server.gate import Errand, Gate
from broker.server.origin import answer
from broker.store.control import LockQueues, UnlockQueues
from broker.store.locks import QueueLocks
from broker.store.staging import StagedEntry
from dledger import DLedgerError
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.group_bodies import LockRequest, decode_lock_request, encode_lock_reply
from dledger_mq.remoting.header import RemotingCommand

_QUEUE_ID_MAX = 2**31 - 1


class Locks:
    """Takes lock requests while this node leads."""

    def __init__(
        self, commits: Commits, gate: Gate, locks: QueueLocks, committers: Committers
    ) -> None:
        self._commits = commits
        self._gate = gate
        self._locks = locks
        self._committers = committers

    def lock(self, errand: Errand, request: RemotingCommand) -> None:
        """LOCK_BATCH_MQ: answered with what is held once the record is committed.

        Raises:
            BodyError: the body is no lock request.
        """
        if self._commits.is_full:
            errand.refuse_as_busy()
            return
        wanted = decode_lock_request(request.body)
        self._committers.has_locked(wanted.consumer_group, errand.origin.address, wanted.client_id)
        command = LockQueues(wanted.consumer_group, wanted.client_id, _queues(wanted))
        self._commits.wait(self._commits.stage_control(command), _LockWaiter(self, errand, wanted))

    def unlock(self, errand: Errand, request: RemotingCommand) -> None:
        """UNLOCK_BATCH_MQ.

        Raises:
            BodyError: the body is no lock request.
        """
        if self._commits.is_full:
            errand.refuse_as_busy()  # it expires
            return
        wanted = decode_lock_request(request.body)
        command = UnlockQueues(wanted.consumer_group, wanted.client_id, _queues(wanted))
        self._commits.wait(self._commits.stage_control(command), _LockWaiter(self, errand, None))

    def decided(
        self, errand: Errand, wanted: LockRequest | None, staged: StagedEntry, place: int
    ) -> None:
        """Answer with the granted queues, spelled as the client spelled them."""
        if errand.is_oneway:
            return
        if wanted is None:
            answer(errand.origin, errand.opaque, ResponseCode.SUCCESS)
            return
        granted = set(self._locks.granted_at(staged.physical_offset(place)) or ())
        held = [queue for queue in wanted.mq_set if (queue.topic, queue.queue_id) in granted]
        answer(errand.origin, errand.opaque, ResponseCode.SUCCESS, body=encode_lock_reply(held))

    def failed(self, errand: Errand, error: DLedgerError) -> None:
        """Ask the next leader: locking twice is the same as once."""
        self._gate.again(errand, error)


class _LockWaiter:
    __slots__ = ("_errand", "_locks", "_wanted")

    def __init__(self, locks: Locks, errand: Errand, wanted: LockRequest | None) -> None:
        self._locks = locks
        self._errand = errand
        self._wanted = wanted

    def committed(self, staged: StagedEntry, place: int) -> None:
        self._locks.decided(self._errand, self._wanted, staged, place)

    def failed(self, error: DLedgerError) -> None:
        self._locks.failed(self._errand, error)


def _queues(wanted: LockRequest) -> list[tuple[str, int]]:
    return [
        (queue.topic, queue.queue_id)
        for queue in wanted.mq_set
        if 0 <= queue.queue_id <= _QUEUE_ID_MAX
    ]
