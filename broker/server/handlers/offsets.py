"""Consumer offsets and queue bounds: committed through the log in batches, read linearizably (14, 15, 29-32)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from broker.server.handlers.committers import Committers
from broker.server.handlers.resets import ResetRequests
from broker.server.requests.commits import Commits, OnCommit
from broker.server.requests.origin import Origin
from broker.server.requests.questions import Question
from broker.server.requests.request import Handler, PendingRequest
from broker.server.requests.router import Router
from broker.service.conclusions import RequestKind
from broker.service.offsets import (
    PendingOffsets,
    QueuePlace,
    beyond_end_remark,
    consumer_offset,
    fenced_remark,
    is_beyond_end,
    no_room_remark,
)
from broker.service.strangers import NAME_LENGTH_MAX, has_room_for_offset
from broker.store.control import CommitOffsets
from broker.store.lookups import earliest_store_time, offset_by_time
from broker.store.queue_search import Search
from broker.store.record_reader import MessageGoneError
from broker.store.staging import StagedEntry
from broker.store.state import BrokerState
from dledger import DLedgerError, LogServer
from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset
from dledger_mq.remoting import fields
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand, encode_command, make_request
from dledger_mq.remoting.requests import PullFields

COMMIT_INTERVAL_MS = 100
"""Offset commits gather this long; consumers commit every few seconds, but there are many of them."""

PENDING_MAX = 10_000
"""Commits, and requests that wait for theirs, that gather at most before they are staged."""


class Offsets:
    """Answers requests about consumer offsets and queue bounds while this node leads."""

    def __init__(
        self,
        log: LogServer,
        state: BrokerState,
        commits: Commits,
        router: Router,
        *,
        committers: Committers,
        resets: ResetRequests,
        now_ms: Callable[[], int],
    ) -> None:
        """Set up the answers.

        Args:
            log: who leads, and what is committed.
            state: the fold, with offsets and queues.
            commits: offsets are staged here.
            router: brings a request to the leader, and waits for a commit.
            committers: who may commit the offsets of an ordered group.
            resets: who may commit after a reset; carries out the resets of old tools.
            now_ms: a clock that never goes back.
        """
        self._log = log
        self._state = state
        self._commits = commits
        self._router = router
        self._committers = committers
        self._resets = resets
        self._now_ms = now_ms
        self._pending = PendingOffsets()
        self._waiting: list[_Commit] = []
        self._asking_count = 0
        self._staged_ms = 0
        commits.stage_gathered = self._stage

    def handlers(self) -> tuple[Handler[RemotingCommand], ...]:
        """Return the handlers of its codes. Reads are confirmed when their fields are read, or later."""
        code, read = RequestCode, RequestKind.READ
        return (
            Handler(
                code.QUERY_CONSUMER_OFFSET, self.query, RequestKind.QUESTION, request_type=Question
            ),
            Handler(code.UPDATE_CONSUMER_OFFSET, self.update, RequestKind.UPDATE),
            Handler(code.SEARCH_OFFSET_BY_TIMESTAMP, self.by_time, read),
            Handler(code.GET_MAX_OFFSET, self.max_offset, read),
            Handler(code.GET_MIN_OFFSET, self.min_offset, read),
            Handler(code.GET_EARLIEST_MSG_STORETIME, self.earliest_time, read),
        )

    def update(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out UPDATE_CONSUMER_OFFSET: answered when it is committed, and refused beyond the queue's end.

        Or under names of which nothing exists, if too much is kept for more of these.

        Raises:
            FieldError: a field is missing or impossible.
        """
        ext = command.ext
        group, topic = fields.text(ext, "consumerGroup"), fields.text(ext, "topic")
        offset = QueueOffset(fields.int64(ext, "commitOffset"))
        queue_id = QueueId(fields.int32(ext, "queueId"))
        if queue_id < 0 or max(len(group), len(topic)) > NAME_LENGTH_MAX:
            request.refuse(
                ResponseCode.SYSTEM_ERROR,
                f"there is no queue {queue_id}, or a name is longer than {NAME_LENGTH_MAX}: nothing was stored",
            )
            return
        place = (group, topic, queue_id)
        if self._is_nowhere(place, offset):
            # A node that leads no more, or has yet to apply what is committed, must not say that.
            act = partial(self._judge, request, command, place, offset)
            self._router.when_confirmed(request, act)
        else:
            self._take(request, command, place, offset)

    def _judge(
        self,
        request: PendingRequest,
        command: RemotingCommand,
        place: QueuePlace,
        offset: QueueOffset,
    ) -> None:
        """Refuse a commit that was nowhere before it was confirmed that this node leads, if it still is."""
        if self._is_beyond_end(place, offset):
            gone = self._commits.deletes(place[1])
            end = QueueOffset(0) if gone else self._state.queues.end(*place[1:])
            request.refuse(ResponseCode.INVALID_PARAMETER, beyond_end_remark(place, offset, end))
        elif self._is_nowhere(place, offset):
            request.refuse(ResponseCode.INVALID_PARAMETER, no_room_remark(place, offset))
        else:
            self._take(request, command, place, offset)

    def _take(
        self,
        request: PendingRequest,
        command: RemotingCommand,
        place: QueuePlace,
        offset: QueueOffset,
    ) -> None:
        """Take a commit in, with the next ones."""
        if not self._has_room:
            request.refuse_as_busy()
            return
        self._make_room()
        if self._is_reset(place, offset, request, command):
            self._resets.set_offset(request, place, offset)
            return
        given_id = command.ext.get("clientId", "")[:NAME_LENGTH_MAX]
        client_id = self.note(*place, offset, address=request.origin.address, given_id=given_id)
        if offset < 0:  # Node commits -1 for "unknown"
            request.answer(ResponseCode.SUCCESS)
        elif not request.is_oneway:
            self._waiting.append(_Commit(request, place, client_id))

    def _is_reset(
        self,
        place: QueuePlace,
        offset: QueueOffset,
        request: PendingRequest,
        command: RemotingCommand,
    ) -> bool:
        """Return whether a commit is an old tool's that takes a group back which has no live members.

        Such a tool has looked where the group is; consumers never do, and ours say who they are.
        """
        if request.is_oneway or "clientId" in command.ext:
            return False
        stored = self._state.offsets.get(*place)
        if stored is None or not 0 <= offset < stored or self._commits.is_full:
            return False
        return self._resets.is_by_tool(place[0], request.origin.address)

    def note(
        self,
        group: str,
        topic: str,
        queue_id: QueueId,
        offset: QueueOffset,
        *,
        address: str,
        given_id: str = "",
    ) -> str:
        """Take an offset into the next commit; gives the client id under which it is judged.

        Nothing is taken while too much is pending, and nothing that a request is refused: consumers say where they are
        again and again.

        `address` is the client's, `given_id` the client id that it gave itself.
        """
        if offset < 0 or queue_id < 0 or max(len(group), len(topic)) > NAME_LENGTH_MAX:
            return ""
        if not self._has_room or self._is_nowhere((group, topic, queue_id), offset):
            return ""
        self._make_room()
        client_id = self._committers.who(group, topic, queue_id, address=address, given_id=given_id)
        self._pending.add((group, topic, queue_id), offset, client_id=client_id)
        return client_id

    def _is_nowhere(self, place: QueuePlace, offset: QueueOffset) -> bool:
        """Return whether a commit names a place where nothing is yet, or nothing that exists and too much is kept."""
        return self._is_beyond_end(place, offset) or not (
            offset < 0 or has_room_for_offset(self._state, *place)
        )

    def _is_beyond_end(self, place: QueuePlace, offset: QueueOffset) -> bool:
        """Return whether a commit names a place where nothing is yet, where it would stand in the log.

        Behind the deletion of its topic that is any but 0: an offset of the topic of before would let the group pass
        over the first messages of the one that is made anew.
        """
        if offset > 0 and self._commits.deletes(place[1]):
            return True
        return is_beyond_end(self._state, place, offset)

    def pulled(self, origin: Origin, pull: PullFields) -> None:
        """Commit the offset that a pull carried (E14) with the next ones, here or at the leader."""
        if self._log.is_serving:
            self.note(
                pull.consumer_group,
                pull.topic,
                pull.queue_id,
                pull.commit_offset,
                address=origin.address,
            )
        else:
            self._router.send_to_leader(origin.address, _update_frame(pull))

    @property
    def _has_gathered_all(self) -> bool:
        return max(len(self._pending), len(self._waiting)) >= PENDING_MAX

    @property
    def _has_room(self) -> bool:
        """True while one more can be taken in, perhaps after what gathered was staged."""
        can_stage = not self._commits.is_full and self._asking_count < PENDING_MAX
        return can_stage or not self._has_gathered_all

    def _make_room(self) -> None:
        """Stage the gathered commits if no more may gather."""
        if self._has_gathered_all:
            self._stage()

    def tick(self, now_ms: int) -> None:
        """Stage the gathered commits every COMMIT_INTERVAL_MS, unless enough of them are in flight."""
        if now_ms - self._staged_ms >= COMMIT_INTERVAL_MS and not self._commits.is_full:
            self._stage()

    def _stage(self) -> None:
        """Stage what has gathered.

        The clients are answered when the last record, and with it all of them, is committed.
        """
        if not (self._pending or self._waiting) or not self._log.is_serving:
            return
        self._staged_ms = self._now_ms()
        waiting, self._waiting = self._waiting, []
        begun = self._commits.staged_end
        try:
            self._stage_all(waiting)
        except Exception as error:
            if not self._router.mistakes.answer(error, *(each.request for each in waiting)):
                raise
            self._commits.drop_unfinished(begun)

    def _stage_all(self, waiting: list[_Commit]) -> None:
        """Stage all offsets that are pending; `waiting` are the commits among them that want an answer."""
        places = [
            self._commits.stage_control(CommitOffsets(commits)) for commits in self._pending.take()
        ]
        if places:
            back = [places[-1] - place for place in places]
            self._commits.wait(
                places[-1],
                OnCommit(
                    partial(self._committed, waiting, back), partial(self._unconfirmed, waiting)
                ),
            )
            self._asking_count += len(waiting)
        else:
            for commit in waiting:
                commit.request.answer(ResponseCode.SUCCESS)

    def _committed(
        self, waiting: list[_Commit], back: list[int], staged: StagedEntry, place: int
    ) -> None:
        """Answer the commits of one batch, whose records stand so far before the last one (`back`)."""
        self._asking_count -= len(waiting)
        try:
            self._answer_committed(waiting, back, staged, place)
        except Exception as error:
            if not self._router.mistakes.answer(error, *(each.request for each in waiting)):
                raise

    def _answer_committed(
        self, waiting: list[_Commit], back: list[int], staged: StagedEntry, place: int
    ) -> None:
        """Answer that they are stored, or, where another client holds the lock of a queue, that they are not."""
        locks = self._state.locks
        fenced = {
            row for steps in back for row in locks.fenced_at(staged.physical_offset(place - steps))
        }
        for commit in waiting:
            if (commit.place, commit.client_id) in fenced:
                text = fenced_remark(commit.place, commit.client_id, locks.owner(*commit.place))
                commit.request.answer(ResponseCode.SYSTEM_ERROR, text)
            else:
                commit.request.answer(ResponseCode.SUCCESS)

    def _unconfirmed(self, waiting: list[_Commit], error: DLedgerError) -> None:
        self._asking_count -= len(waiting)
        for commit in waiting:
            self._router.unconfirmed(commit.request, error)

    def lost(self) -> None:
        """Park what waits for the next leader, since leadership is lost; offsets that came with pulls are dropped."""
        self._pending = PendingOffsets()
        waiting, self._waiting = self._waiting, []
        for commit in waiting:
            self._router.park(commit.request)

    def query(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer QUERY_CONSUMER_OFFSET, after commits that are on their way, so that none is overlooked.

        That commit may be of an entry that was proposed before the query, and what becomes of it says nothing about
        who leads by now. So the leader is confirmed afterwards, as for any other read.

        Raises:
            FieldError: a field is missing or impossible.
        """
        key, answer = self._query(request, command)
        given_id = command.ext.get("clientId", "")[:NAME_LENGTH_MAX]
        act = partial(self._resets.admit_first, request, key, given_id, answer)
        if self._pending.has(key):
            if self._commits.is_full:
                self._router.park(request)
                return
            self._stage()
        # What is staged or on its way may be for this queue. Queries are rare, so they wait for all of it.
        self._router.when_staged_confirmed(request, act)

    def _query(
        self, request: PendingRequest, command: RemotingCommand
    ) -> tuple[QueuePlace, Callable[[], None]]:
        """Return the queue asked for, and the function that answers."""
        ext = command.ext
        group, topic = fields.text(ext, "consumerGroup"), fields.text(ext, "topic")
        queue_id = QueueId(fields.int32(ext, "queueId"))
        zero_if_missing = fields.boolean(ext, "setZeroIfNotFound", default=True)
        place = (group, topic, queue_id)
        return place, partial(self._answer_query, request, place, zero_if_missing=zero_if_missing)

    def _answer_query(
        self, request: PendingRequest, place: QueuePlace, *, zero_if_missing: bool
    ) -> None:
        """Answer with the group's offset; QUERY_NOT_FOUND leaves the choice of a start to the client."""
        offset = consumer_offset(
            self._state,
            *place,
            zero_if_missing=zero_if_missing,
            log_end=PhysicalOffset(self._log.reader.committed_position),
        )
        if offset is None:
            request.answer(
                ResponseCode.QUERY_NOT_FOUND,
                "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
            )
        else:
            _number(request, "offset", offset)

    def max_offset(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer GET_MAX_OFFSET; an unknown queue has 0.

        Raises:
            FieldError: a field is missing or impossible.
        """
        topic, queue_id = _queue(command)
        self._router.when_confirmed(
            request, lambda: _number(request, "offset", self._bounds(request, topic, queue_id)[1])
        )

    def min_offset(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer GET_MIN_OFFSET; an unknown queue has 0.

        Raises:
            FieldError: a field is missing or impossible.
        """
        topic, queue_id = _queue(command)
        self._router.when_confirmed(
            request, lambda: _number(request, "offset", self._bounds(request, topic, queue_id)[0])
        )

    def _bounds(
        self, request: PendingRequest, topic: str, queue_id: QueueId
    ) -> tuple[QueueOffset, QueueOffset]:
        may_wait = self._router.may_wait_for_disk(request)
        return self._state.queues.min_max(topic, queue_id, without_waiting=may_wait)

    def by_time(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer SEARCH_OFFSET_BY_TIMESTAMP.

        Raises:
            FieldError: a field is missing or impossible.
        """
        topic, queue_id = _queue(command)
        time_ms = fields.int64(command.ext, "timestamp")
        is_upper = command.ext.get("boundaryType", "lower").lower() == "upper"
        search = Search()

        def act() -> None:
            try:
                offset = offset_by_time(
                    self._state,
                    self._log.reader,
                    topic,
                    queue_id,
                    time_ms=time_ms,
                    is_upper=is_upper,
                    search=search if self._router.may_wait_for_disk(request) else None,
                )
            except MessageGoneError as error:
                request.answer(ResponseCode.SYSTEM_ERROR, str(error))
            else:
                _number(request, "offset", offset)

        self._router.when_confirmed(request, act)

    def earliest_time(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer GET_EARLIEST_MSG_STORETIME; -1 without messages.

        Raises:
            FieldError: a field is missing or impossible.
        """
        topic, queue_id = _queue(command)

        def act() -> None:
            may_wait = self._router.may_wait_for_disk(request)
            stored_ms = earliest_store_time(
                self._state, self._log.reader, topic, queue_id, may_wait=may_wait
            )
            _number(request, "timestamp", -1 if stored_ms is None else stored_ms)

        self._router.when_confirmed(request, act)


@dataclass(frozen=True, slots=True)
class _Commit:
    """An offset commit whose client wants an answer."""

    request: PendingRequest
    place: QueuePlace
    client_id: str


def _queue(command: RemotingCommand) -> tuple[str, QueueId]:
    return fields.text(command.ext, "topic"), QueueId(fields.int32(command.ext, "queueId"))


def _update_frame(pull: PullFields) -> bytes:
    """Build the request that commits the offset which a pull carries."""
    ext = {
        "consumerGroup": pull.consumer_group,
        "topic": pull.topic,
        "queueId": str(pull.queue_id),
        "commitOffset": str(pull.commit_offset),
    }
    return encode_command(make_request(RequestCode.UPDATE_CONSUMER_OFFSET, 0, ext, is_oneway=True))


def _number(request: PendingRequest, name: str, value: int) -> None:
    request.answer(ResponseCode.SUCCESS, ext={name: str(value)})
