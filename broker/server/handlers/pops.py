"""Pops and their long polls (200050, 200054): read, claimed through the log, and answered once that is committed.

While a claim of a queue is on its way nobody else pops there for that group: those that would, wait for its end. What
is answered is what the fold has handed out, never what was read. A pop that finds nothing is held until a message
comes, one in flight is due, or its time is over; all that at the leader, and at the next one if another is elected.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from broker.server.handlers.pop_reading import PopPlan, PopReading
from broker.server.handlers.pop_returns import PopReturns
from broker.server.handlers.pull_answers import PullCounts
from broker.server.requests.commits import Commits
from broker.server.requests.request import HOLD_MS, Handler, PendingRequest
from broker.server.requests.router import Router
from broker.service.conclusions import RequestKind
from broker.service.holds import hold_ms
from broker.service.pop import ANY_QUEUE, PopFields, PopGrant, PopRules
from broker.service.pop_handle import ORDER_REVIVE_QUEUE, info_of
from broker.service.refusal import Refusal
from broker.store.pops import IN_FLIGHT_MAX, PopKey
from broker.store.staging import StagedEntry
from broker.store.state import BrokerState
from dledger import DLedgerError, LogServer
from dledger_mq.message.numbers import QueueId
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand

FORWARDED_HOLD_MS: Final = 5_000
"""The longest hold of a pop that another node passed on: that waits ten seconds for its answer."""

CLAIM_WAIT_MS: Final = 2_000
"""So long a pop waits at least for the end of another one's claim."""


class Pop(PendingRequest, eq=False):
    """A pop that is not answered yet.

    Attributes:
        is_notice: True if it only asks whether there is something.
        fields: of its request; set before it is tried.
        held_until_ms: end of its hold, by the monotonic clock; 0 before it was tried.
        is_held: True while it waits.
    """

    is_notice: bool = False
    fields: PopFields | None = None
    held_until_ms: int = 0
    is_held: bool = False


class PopRequests:
    """Answers pops while this node leads."""

    def __init__(
        self,
        log: LogServer,
        state: BrokerState,
        commits: Commits,
        router: Router,
        *,
        rules: PopRules,
        reading: PopReading,
        returns: PopReturns,
        counts: PullCounts,
        held_max: int,
        long_polling: bool,
        pick: Callable[[int], int],
        now_ms: Callable[[], int],
    ) -> None:
        """Set up the answers to pops.

        Args:
            log: whoever leads it answers.
            state: the fold, with what is in flight.
            commits: claims are staged here.
            router: waits for their commit, and for the disk.
            rules: who may pop what.
            reading: looks into queues.
            returns: stages what is not handed out any more; it knows which queues are being claimed.
            counts: of what is given to groups.
            held_max: pops that wait; more are refused.
            long_polling: whether pops wait as long as they ask for.
            pick: returns a random number from 0 on, below its argument.
            now_ms: a clock that never goes back.
        """
        self._log = log
        self._state = state
        self._commits = commits
        self._router = router
        self._rules = rules
        self._reading = reading
        self._returns = returns
        self._counts = counts
        self._held_max = held_max
        self.long_polling = long_polling
        self._pick = pick
        self._now_ms = now_ms
        self._held: dict[tuple[str, str], dict[int, Pop]] = {}
        self._held_count = 0
        self._number = 0
        self._seen: dict[str, tuple[int, int]] = {}
        self._topics_version = state.topics.version

    @property
    def held_count(self) -> int:
        """The count of pops that wait."""
        return self._held_count

    def handlers(self) -> tuple[Handler[RemotingCommand], ...]:
        """Return the handlers of its codes."""
        code, update = RequestCode, RequestKind.UPDATE
        return (
            Handler(code.POP_MESSAGE, self.pop, update, is_confirmed=True, request_type=Pop),
            Handler(
                code.NOTIFICATION,
                self.notice,
                RequestKind.READ,
                is_confirmed=True,
                request_type=Pop,
            ),
        )

    def pop(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out POP_MESSAGE: answered with what was handed out, once that is committed.

        Raises:
            FieldError: a field is missing or impossible.
        """
        assert isinstance(request, Pop), "its handler says so"
        request.fields = PopFields.read(command.ext)
        self._begin(request)

    def notice(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out NOTIFICATION: whether a pop would find something, perhaps after a while.

        Raises:
            FieldError: a field is missing or impossible.
        """
        assert isinstance(request, Pop), "its handler says so"
        request.is_notice = True
        request.fields = PopFields.read_notice(command.ext)
        self._begin(request)

    # Looking.

    def _begin(self, pop: Pop) -> None:
        assert pop.fields is not None, "it was read"
        wait_ms = hold_ms(pop.fields.poll_ms, long_polling=self.long_polling)
        if pop.origin.is_forwarded:
            wait_ms = min(wait_ms, FORWARDED_HOLD_MS)
        pop.held_until_ms = self._now_ms() + wait_ms
        self._look(pop)

    def _try(self, pop: Pop) -> None:
        """Look for a pop that has waited."""
        pop.deadline_ms = self._now_ms() + HOLD_MS
        if not pop.is_closed:
            self._router.attempt(pop, partial(self._look, pop))

    def _look(self, pop: Pop) -> None:
        """Claim for a pop what there is, or let it wait.

        Raises:
            NotInMemoryError, EntryDamagedError: neither was done.
        """
        fields = pop.fields
        assert fields is not None, "it was read"
        if self._commits.is_full:
            pop.refuse_as_busy()
            return
        grant = self._rules.check(fields)
        if isinstance(grant, Refusal):
            pop.answer(grant.code, grant.remark)
            return
        self._commits.create(grant.creation)
        may_wait = self._router.may_wait_for_disk(pop)
        is_claimed = False
        for queue_id in self._queues(fields, grant):
            if (fields.group, fields.topic, queue_id) in self._returns.claimed:
                is_claimed = True
                continue
            plan = self._reading.plan(fields, grant, queue_id, may_wait=may_wait)
            if plan is not None and pop.is_notice and (plan.records or plan.spent):
                self._answer_notice(pop, has_messages=True)
                return
            if plan is not None and not pop.is_notice:
                self._claim(pop, grant, plan)
                return
        self._wait(pop, is_claimed=is_claimed)

    def _queues(self, fields: PopFields, grant: PopGrant) -> list[QueueId]:
        """Return the queues that a pop looks at, from a random one on (R6)."""
        count = grant.topic.read_queue_count
        if fields.queue_id != ANY_QUEUE:
            return [fields.queue_id]
        first = self._pick(count) if count else 0
        return [QueueId((first + step) % count) for step in range(count)]

    # Claiming.

    def _claim(self, pop: Pop, grant: PopGrant, plan: PopPlan) -> None:
        """Stage a claim, with what is not handed out any more, as one entry."""
        place = self._returns.stage(plan.key, grant.group, spent=plan.spent, gone=plan.gone)
        if plan.command is not None:
            place = self._commits.stage_control(plan.command)
        if place is None:  # nothing of it can be staged now; other consumers come after it
            self._wait(pop, is_claimed=True)
            return
        self._returns.claimed.add(plan.key)
        self._router.when_committed(
            pop, place, partial(self._claimed, pop, plan), ended=partial(self._ended, plan.key)
        )

    def _ended(self, key: PopKey, _error: DLedgerError | None) -> None:
        """Let others pop where a claim is decided, one way or the other."""
        self._returns.claimed.discard(key)
        if self._log.is_serving:
            self._wake(key[0], key[1])

    def _claimed(self, pop: Pop, plan: PopPlan, staged: StagedEntry, place: int) -> None:
        """Answer with what was handed out; look again if that is nothing."""
        fields = pop.fields
        assert fields is not None, "it was read"
        outcome = self._state.pops.outcome(staged.physical_offset(place))
        if plan.command is None or outcome is None or not outcome.popped_ms:
            self._try(pop)
            return
        again = {offset for offset, _ in plan.command.again}
        offsets = sorted(
            offset
            for offset in plan.counts
            if (offset in outcome.again if offset in again else outcome.is_taken)
        )
        assert offsets, f"{plan.key}: {outcome} hands out nothing of {sorted(plan.counts)}"
        body = b"".join(plan.records[offset] for offset in offsets)
        counts = [plan.counts[offset] for offset in offsets] if fields.is_ordered else []
        ext = self._ext(fields, outcome.popped_ms)
        ext.update(info_of(fields.topic, plan.key[2], offsets, in_order=counts))
        pop.answer(ResponseCode.SUCCESS, "FOUND", ext, body)
        self._counts.give(fields.group, fields.topic, len(offsets), len(body))

    def _ext(self, fields: PopFields, popped_ms: int) -> dict[str, str]:
        """Return what clients read of every answer."""
        return {
            "popTime": str(popped_ms),
            "invisibleTime": str(fields.invisible_ms),
            "reviveQid": str(ORDER_REVIVE_QUEUE if fields.is_ordered else 0),
            "restNum": str(self._rest(fields)),
        }

    def _rest(self, fields: PopFields) -> int:
        """Return how many messages of a topic the group was never handed out."""
        stands = self._state.offsets.of(fields.group, fields.topic)
        queues = self._state.queues.of_topic(fields.topic)
        return sum(
            max(0, queue.max_offset - max(queue.min_offset, stands.get(queue.key[1], 0)))
            for queue in queues
        )

    # Waiting.

    def _wait(self, pop: Pop, *, is_claimed: bool) -> None:
        """Keep a pop until there may be something, or answer that there is nothing."""
        now_ms = self._now_ms()
        if is_claimed and not pop.was_held:
            pop.was_held = True
            pop.held_until_ms = max(pop.held_until_ms, now_ms + CLAIM_WAIT_MS)
        fields = pop.fields
        assert fields is not None, "it was read"
        if self._state.pops.count + fields.count_max > IN_FLIGHT_MAX and not pop.is_notice:
            self._nothing(pop, ResponseCode.POLLING_FULL, "too many messages are in flight")
        elif now_ms >= pop.held_until_ms:
            self._nothing(pop, ResponseCode.POLLING_TIMEOUT, "no new message")
        elif self._held_count >= self._held_max:
            self._nothing(pop, ResponseCode.POLLING_FULL, "too many pops wait")
        else:
            self._number += 1
            pop.is_held = True
            self._held.setdefault((fields.topic, fields.group), {})[self._number] = pop
            self._held_count += 1
            self._seen.setdefault(fields.topic, self._state.topic_put_totals(fields.topic))

    def _nothing(self, pop: Pop, code: ResponseCode, remark: str) -> None:
        """Answer that there is nothing, or not now."""
        assert pop.fields is not None, "it was read"
        if pop.is_notice:
            self._answer_notice(pop, has_messages=False, is_full=code == ResponseCode.POLLING_FULL)
        else:
            pop.answer(code, remark, self._ext(pop.fields, self._state.last_store_ms))

    def _answer_notice(self, pop: Pop, *, has_messages: bool, is_full: bool = False) -> None:
        """Answer a notice."""
        ext = {"hasMsg": str(has_messages).lower(), "pollingFull": str(is_full).lower()}
        pop.answer(ResponseCode.SUCCESS, None, ext)

    def _wake(self, group: str, topic: str) -> None:
        """Look again for all pops of a group in a topic that wait."""
        for pop in self._take(topic, group):
            self._try(pop)

    def _take(self, topic: str, group: str) -> list[Pop]:
        waiting = list(self._held.pop((topic, group), {}).values())
        self._held_count -= len(waiting)
        assert self._held_count >= 0, f"{self._held_count} pops wait"
        for pop in waiting:
            pop.is_held = False
        return waiting

    def applied(self) -> None:
        """Look again for the pops of topics to which messages came, or which may be gone."""
        if not self._held_count:
            self._seen.clear()
            return
        is_new_table = self._topics_version != self._state.topics.version
        self._topics_version = self._state.topics.version
        for topic, group in list(self._held):
            if is_new_table or self._state.topic_put_totals(topic) != self._seen.get(topic):
                self._wake(group, topic)
        self._seen = {topic: self._state.topic_put_totals(topic) for topic, _ in self._held}

    def expire(self, now_ms: int) -> None:
        """Answer the pops whose time is over by then, and look again for those of groups with something due."""
        time_ms = self._reading.time_ms() if self._held_count else 0
        for topic, group in list(self._held):
            waiting = self._held[topic, group].values()
            is_over = any(now_ms >= pop.held_until_ms or pop.is_closed for pop in waiting)
            if is_over or self._state.pops.is_due(group, topic, time_ms):
                self._wake(group, topic)

    def lost(self) -> None:
        """Bring the pops that wait to whoever leads next."""
        for topic, group in list(self._held):
            for pop in self._take(topic, group):
                pop.deadline_ms = self._now_ms() + HOLD_MS
                if not pop.is_closed:
                    self._router.park(pop)
