"""Pulls and long polling on any node: read from the applied state, hold what finds nothing (11, 361).

A pull that meets a damaged entry is tried again at every turn until that is back, for a little while; then
it is refused, and its client asks again from the same offset. Nothing is skipped. So is a pull from a topic or
group of which a node that does not lead knows nothing: after a restart it has applied nothing yet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from broker.server.beyond_end import BeyondEnd
from broker.server.origin import Origin, answer
from broker.server.request import HOLD_MS, Handler, PendingRequest, Where
from broker.service.catalog import Creation
from broker.service.conclusions import Kind
from broker.service.holds import HeldPull, HeldPulls, hold_ms
from broker.service.pull import PullOutcome, PullRules, outcome_of
from broker.service.refusal import Refusal
from broker.store.reading import GetResult, get_messages
from broker.store.state import BrokerState
from dledger import EntryDamagedError, LogServer
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import encode_command, make_request
from dledger_mq.remoting.replies import pull_reply_head
from dledger_mq.remoting.requests import PULL_COMMIT_OFFSET, PULL_SUSPEND, PullFields, PullRequest

_NOT_KNOWN = frozenset({ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST})

_COUNT_MAX = 1024
"""Messages in one answer, whatever the client asks for."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A pull with what is needed to answer it."""

    origin: Origin
    opaque: int
    fields: PullFields
    tags: frozenset[int] | None


@dataclass(frozen=True, slots=True)
class _Attempt:
    """Something to do for a pull that perhaps cannot be done now; `go` raises then."""

    origin: Origin
    opaque: int
    deadline_ms: int
    go: Callable[[], None]


class _NotKnownHereError(Exception):
    """This node knows nothing of what is asked for, and need not be right."""


class Pulls:
    """Answers pulls, at once or when a message comes.

    A node that does not lead, or has yet to apply what is committed, may be behind: what the leader would call
    illegal (an offset above the queue's end) is only not here yet, so it waits like any other pull that is ahead.
    """

    def __init__(
        self,
        log: LogServer,
        state: BrokerState,
        rules: PullRules,
        *,
        held_max: int,
        long_polling: bool,
        now_ms: Callable[[], int],
        commit_offset: Callable[[Origin, PullFields], None],
        create: Callable[[Creation], None],
    ) -> None:
        """Prepare. `commit_offset` takes the offset that a pull carries; `create` a new group."""
        self._log = log
        self._state = state
        self._rules = rules
        self._held = HeldPulls(held_max)
        self._long_polling = long_polling
        self._now_ms = now_ms
        self._commit_offset = commit_offset
        self._create = create
        self._beyond_end = BeyondEnd()
        self._held_max = held_max
        self._put_off: list[_Attempt] = []
        self._topics_version = state.topics.version

    @property
    def held_count(self) -> int:
        """Pulls that wait for a message."""
        return self._held.count

    def handlers(self) -> tuple[Handler[PullRequest], ...]:
        """What it takes."""
        codes = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
        return tuple(Handler(code, self.pull, Kind.READ, Where.HERE) for code in codes)

    def pull(self, request: PendingRequest, command: PullRequest) -> None:
        """One pull."""
        self._check_or_wait(request.origin, request.opaque, command.fields)

    def _check_or_wait(self, origin: Origin, opaque: int, fields: PullFields) -> None:
        now_ms = self._now_ms()
        go = partial(self._check, origin, opaque, fields)
        self._attempt(_Attempt(origin, opaque, now_ms + HOLD_MS, go), now_ms)

    def _check(self, origin: Origin, opaque: int, fields: PullFields) -> None:
        """Refuse, or begin.

        Raises:
            _NotKnownHereError: neither was done.
        """
        grant = self._rules.check(fields)
        if isinstance(grant, Refusal):
            if grant.code in _NOT_KNOWN and not self._is_authoritative():
                raise _NotKnownHereError(self._log.lost_votes.problem or self._behind(grant.remark))
            answer(origin, opaque, grant.code, grant.remark)
            return
        if grant.creation:
            self._create(grant.creation)
        if fields.sys_flag & PULL_COMMIT_OFFSET and fields.commit_offset >= 0:
            self._commit_offset(origin, fields)
        self._begin_or_wait(_Asked(origin, opaque, fields, grant.tags))

    def _begin_or_wait(self, asked: _Asked) -> None:
        now_ms = self._now_ms()
        go = partial(self._begin, asked)
        self._attempt(_Attempt(asked.origin, asked.opaque, now_ms + HOLD_MS, go), now_ms)

    def _attempt(self, attempt: _Attempt, now_ms: int) -> None:
        """Do it now, or at one of the next turns, or refuse."""
        try:
            attempt.go()
        except (EntryDamagedError, _NotKnownHereError) as error:
            if now_ms < attempt.deadline_ms and len(self._put_off) < self._held_max:
                self._put_off.append(attempt)
            else:
                code = ResponseCode.SERVICE_NOT_AVAILABLE
                answer(attempt.origin, attempt.opaque, code, str(error))

    def _begin(self, asked: _Asked) -> None:
        """Answer, or hold.

        Raises:
            EntryDamagedError: neither was done.
        """
        offset = asked.fields.queue_offset
        result = self._read(asked, offset)
        outcome = self._outcome(result, offset)
        if outcome.code == ResponseCode.PULL_OFFSET_MOVED:
            self._note_beyond_end(asked.fields, result)
        if outcome.code == ResponseCode.PULL_NOT_FOUND and self._hold(asked):
            return
        _answer(asked, result, outcome)

    def _try_put_off(self, now_ms: int) -> None:
        waiting, self._put_off = self._put_off, []
        for attempt in waiting:
            if not attempt.origin.is_closed:
                self._attempt(attempt, now_ms)

    def _note_beyond_end(self, fields: PullFields, result: GetResult) -> None:
        """Offsets below the queue's start are a matter of course: retention removed what was there."""
        if fields.queue_offset > result.max_offset:
            self._beyond_end.note(
                self._log.node_id,
                fields.consumer_group,
                fields.topic,
                fields.queue_id,
                offset=fields.queue_offset,
                max_offset=result.max_offset,
            )

    def _hold(self, asked: _Asked) -> bool:
        """Keep a pull that found nothing, if its client wants that (F1, F2)."""
        fields = asked.fields
        if not fields.sys_flag & PULL_SUSPEND:
            return False
        wait_ms = hold_ms(fields.suspend_timeout_millis, long_polling=self._long_polling)
        held = HeldPull(
            fields.topic,
            fields.queue_id,
            fields.queue_offset,
            self._now_ms() + wait_ms,
            asked.origin.number,
            asked,
        )
        return wait_ms > 0 and self._held.hold(held)

    def applied(self) -> None:
        """Entries were applied: answer the held pulls that now find something."""
        held = self._held
        if not held.count:
            return
        if self._topics_version != self._state.topics.version:
            self._topics_version = self._state.topics.version
            self._look_at_deleted()
        by_key = self._state.queues.by_key
        for topic, queue_id in held.queues():
            queue = by_key.get((topic.encode(), queue_id))
            if queue is None:
                continue
            for pull in held.waiting_on(topic, queue_id):
                if queue.max_offset > pull.next_offset:
                    self._look_again(pull)

    def _look_at_deleted(self) -> None:
        """Begin the pulls anew that wait where nothing will come: their topic was deleted, perhaps made again.

        A new topic's queue begins at 0, below what they wait for.
        """
        for topic, queue_id in self._held.queues():
            queue = self._state.queues.by_key.get((topic.encode(), queue_id))
            end = queue.max_offset if queue is not None else 0
            for pull in self._held.waiting_on(topic, queue_id):
                if pull.next_offset > end or topic not in self._state.topics:
                    asked: _Asked = pull.request
                    self._held.release(pull)
                    self._check_or_wait(asked.origin, asked.opaque, asked.fields)

    def look_at_all(self) -> None:
        """The node's role changed: what was only not here yet may be illegal now, and the other way."""
        for topic, queue_id in self._held.queues():
            for pull in self._held.waiting_on(topic, queue_id):
                self._look_again(pull)

    def expire(self, now_ms: int) -> None:
        """Answer the pulls whose time is over with what is there (F8)."""
        self._try_put_off(now_ms)
        for pull in self._held.take_due(now_ms):
            if self._begins_anew(pull):
                continue
            asked: _Asked = pull.request
            try:
                result = self._read(asked, pull.next_offset)
            except EntryDamagedError:
                self._begin_or_wait(asked)
                continue
            outcome = self._outcome(result, pull.next_offset)
            skipped = pull.next_offset > asked.fields.queue_offset
            if skipped and outcome.code == ResponseCode.PULL_NOT_FOUND:
                # What came meanwhile did not match: let the client go on behind it (F7).
                outcome = PullOutcome(
                    ResponseCode.PULL_RETRY_IMMEDIATELY, outcome.next_offset, outcome.max_offset
                )
            _answer(asked, result, outcome)

    def connection_closed(self, number: int) -> None:
        """Drop the pulls of a connection."""
        self._held.connection_closed(number)

    def _look_again(self, pull: HeldPull) -> None:
        asked: _Asked = pull.request
        if asked.origin.is_closed:
            self._held.release(pull)
            return
        try:
            result = self._read(asked, pull.next_offset)
        except EntryDamagedError:
            self._held.release(pull)
            self._begin_or_wait(asked)
            return
        outcome = self._outcome(result, pull.next_offset)
        if outcome.code == ResponseCode.PULL_NOT_FOUND:
            return
        if outcome.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
            # Messages came, none with a wanted tag: keep waiting behind them.
            pull.next_offset = outcome.next_offset
            return
        if not self._begins_anew(pull):
            self._held.release(pull)
            _answer(asked, result, outcome)

    def _begins_anew(self, pull: HeldPull) -> bool:
        """Read again from where it asked when its group wants other tags by now than those that it was led by.

        What was passed over while it was held may be wanted now, and its client would never ask for it again.
        """
        asked: _Asked = pull.request
        if pull.next_offset == asked.fields.queue_offset:
            return False
        grant = self._rules.check(asked.fields)
        if isinstance(grant, Refusal) or grant.tags == asked.tags:
            return False
        self._held.release(pull)
        self._begin_or_wait(replace(asked, tags=grant.tags))
        return True

    def _read(self, asked: _Asked, offset: int) -> GetResult:
        fields = asked.fields
        return get_messages(
            self._state,
            self._log.reader,
            fields.topic,
            fields.queue_id,
            offset,
            count_max=min(max(1, fields.max_msg_nums), _COUNT_MAX),
            log_end=self._log.reader.committed_position,
            bytes_max=fields.max_msg_bytes or 2**31 - 1,
            tag_hashes=asked.tags,
        )

    def _behind(self, remark: str | None) -> str:
        return f"{remark} So node {self._log.node_id} says, which does not lead and may be behind."

    def _outcome(self, result: GetResult, offset: int) -> PullOutcome:
        return outcome_of(result, offset, is_authoritative=self._is_authoritative())

    def _is_authoritative(self) -> bool:
        """Whether what is not known here does not exist: nobody can have been shown more, by any node."""
        return self._log.reader.is_current


def _answer(asked: _Asked, result: GetResult, outcome: PullOutcome) -> None:
    head = pull_reply_head(
        asked.opaque,
        outcome.code,
        next_begin_offset=outcome.next_offset,
        min_offset=result.min_offset,
        max_offset=outcome.max_offset,
        body_bytes=sum(len(record) for record in result.records),
        remark=result.status.value.encode(),
    )
    asked.origin.send(b"".join((head, *result.records)))


def offset_commit_forward(address: str, fields: PullFields) -> tuple[dict[str, str], bytes]:
    """The offset that a pull carries, as a request to be passed on to the leader: ext and body."""
    frame = encode_command(
        make_request(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            0,
            {
                "consumerGroup": fields.consumer_group,
                "topic": fields.topic,
                "queueId": str(fields.queue_id),
                "commitOffset": str(fields.commit_offset),
            },
            is_oneway=True,
        )
    )
    return {"address": address}, frame
