"""Pops and their long polls (200050, 200054): read, claimed through the log, and answered once that is committed.

While a claim of a queue is on its way nobody else pops there for that group: those that would, wait for its end. What
is answered is what the fold has handed out, never what was read. A pop that finds nothing is held until a message
comes, one in flight is due, a queue in order is free, a group was set back, or its time is over; all that at the
leader, and at the next one if another is elected.

Looks have a share of each turn of the loop, as pulls have (pull_turns.py), and one at many queues goes on in the next
turns. What it has passed may have changed by then: before a pop is held it is looked again if so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from broker.server.handlers.pop_reading import PopPlan, PopReading
from broker.server.handlers.pop_returns import PopReturns
from broker.server.handlers.pull_answers import PullCounts
from broker.server.handlers.pull_turns import PullTurns
from broker.server.requests.commits import Commits
from broker.server.requests.request import HOLD_MS, Handler, PendingRequest
from broker.server.requests.router import Router
from broker.service.conclusions import RequestKind
from broker.service.holds import hold_ms
from broker.service.pop import ANY_QUEUE, PopFields, PopGrant, PopRules
from broker.service.pop_handle import ORDER_REVIVE_QUEUE, info_of
from broker.service.refusal import Refusal
from broker.service.wait_room import WaitRoom
from broker.store.pops import IN_FLIGHT_MAX, PopKey
from broker.store.staging import StagedEntry
from broker.store.state import BrokerState
from broker.store.topics import DataVersion
from dledger import DLedgerError, LogServer
from dledger_mq.message.numbers import QueueId
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand

FORWARDED_HOLD_MS: Final = 5_000
"""The longest hold of a pop that another node passed on: that waits ten seconds for its answer."""

QUEUES_MAX: Final = 64
"""Queues that a pop looks at without a turn for anybody else: 0.7 ms if there is nothing in them."""

CLAIM_WAIT_MS: Final = 2_000
"""So long a pop waits at least for the end of another one's claim."""


_Seen = tuple[DataVersion, int, tuple[int, int]]


class Pop(PendingRequest, eq=False):
    """A pop that is not answered yet.

    Attributes:
        is_notice: True if it only asks whether there is something.
        fields: of its request; set before it is tried.
        held_until_ms: end of its hold, by the monotonic clock; 0 before it was tried.
        is_held: True while it waits.
        is_backlog: False; see `pull_turns.Turn`.
        left: queues that its look has not come to yet, the next one last.
        claimed: queues that it has passed because somebody else was claiming them.
        seen: what its look has begun with; see `PopRequests._seen_of`.
    """

    is_notice: bool = False
    fields: PopFields | None = None
    held_until_ms: int = 0
    is_held: bool = False
    is_backlog: bool = False
    left: list[QueueId] | None = None
    claimed: list[QueueId] | None = None
    seen: _Seen | None = None


class PopRequests:
    """Answers pops while this node leads.

    Attributes:
        turns: those that wait for the next turn of the loop.
    """

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
        self.turns = PullTurns[Pop](self._take_turn)
        self._held: dict[tuple[str, str], dict[int, Pop]] = {}
        self._held_count = self._number = 0
        self._room = WaitRoom()  # for those that are held
        self._seen: dict[str, tuple[int, int]] = {}
        self._versions = (state.topics.version, state.offsets.moved_count)

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
        if self.turns.waiting_count >= self._held_max:
            self._nothing(pop, ResponseCode.POLLING_FULL, "too many pops wait")
        else:
            self._try(pop)

    def _try(self, pop: Pop) -> None:
        """Look for a pop, from the beginning, when its turn has come."""
        pop.left = None
        self.turns.take(pop)

    def _take_turn(self, pop: Pop) -> None:
        """Begin or go on with a look; nobody looks any more when this node has ceased to lead."""
        pop.deadline_ms = self._now_ms() + HOLD_MS
        if self._log.is_serving:
            self._router.attempt(pop, partial(self._look, pop))
        else:
            self._router.park(pop)

    def _look(self, pop: Pop) -> None:
        """Claim for a pop what there is, or let it wait: in the next turns, if it has many queues.

        Raises:
            NotInMemoryError, EntryDamagedError: neither was done.
        """
        fields = pop.fields
        assert fields is not None, "it was read"
        if self._commits.deletes(fields.topic) or self._commits.deletes_group(fields.group):
            # A claim would stand behind the deletion: it would take what is sent to the topic that is made anew, or put
            # messages into the flight of a group that there is not, from which nobody would ever take them back.
            self._router.when_staged_committed(pop, partial(self._try, pop))
            return
        while True:
            if self._commits.is_full:
                pop.refuse_as_busy()
                return
            grant = self._rules.check(fields)
            if isinstance(grant, Refusal):
                pop.answer(grant.code, grant.remark)
                return
            self._commits.create(grant.creation)
            if pop.left is None:
                pop.left, pop.claimed = self._queues(fields, grant), []
                pop.seen = self._seen_of(fields.topic)
            if self._look_at_some(pop, grant, pop.left):
                return
            if not pop.left:
                self._wait_for_claims(pop)
                if not self._has_changed(pop):
                    self._wait(pop)
                    return
            if self.turns.put_off(pop):
                return

    def _look_at_some(self, pop: Pop, grant: PopGrant, left: list[QueueId]) -> bool:
        """Look at the next queues; return whether something was found, and is claimed.

        Raises:
            NotInMemoryError, EntryDamagedError: the next one is that which cannot be read.
        """
        fields = pop.fields
        assert fields is not None, "it was read"
        assert pop.claimed is not None, "its look has begun"
        may_wait = self._router.may_wait_for_disk(pop)
        for _ in range(min(len(left), QUEUES_MAX)):
            queue_id = left[-1]
            if (fields.group, fields.topic, queue_id) in self._returns.claimed:
                pop.claimed.append(left.pop())
                continue
            plan = self._reading.plan(fields, grant, queue_id, may_wait=may_wait)
            left.pop()
            if plan is not None and pop.is_notice and (plan.records or plan.spent or plan.is_cut):
                # A notice moves no group on, so it would never see what lies behind: the pop that follows does.
                self._answer_notice(pop, has_messages=True)
                return True
            if plan is not None and not pop.is_notice:
                self._claim(pop, grant, plan)
                return True
        return False

    def _has_changed(self, pop: Pop) -> bool:
        """Return whether a look that found nothing has passed what is different now; then it has queues left.

        One whose time is over has found nothing in it.
        """
        fields = pop.fields
        assert fields is not None, "it was read"
        if self._now_ms() >= pop.held_until_ms:
            return False
        if pop.seen != self._seen_of(fields.topic):
            pop.left = None
            return True
        free, claimed = list[QueueId](), list[QueueId]()
        for each in pop.claimed or ():
            is_claimed = (fields.group, fields.topic, each) in self._returns.claimed
            (claimed if is_claimed else free).append(each)
        pop.left, pop.claimed = free, claimed
        return bool(free)

    def _seen_of(self, topic: str) -> _Seen:
        """Return what changes when there may be something in a topic that was not there before.

        These are the version of the table of topics, the moves of groups by tools, and all that was put in the topic.
        """
        state = self._state
        return state.topics.version, state.offsets.moved_count, state.topic_put_totals(topic)

    def _queues(self, fields: PopFields, grant: PopGrant) -> list[QueueId]:
        """Return the queues that a pop looks at, from a random one on (R6): the first is the last."""
        count = grant.topic.read_queue_count
        if fields.queue_id != ANY_QUEUE:
            return [fields.queue_id]
        first = self._pick(count) if count else 0
        if fields.is_ordered and fields.attempt_id:
            had = self._state.pops.queue_of_attempt(fields.group, fields.topic, fields.attempt_id)
            if had is not None:  # what a lost answer handed out waits for nobody else
                first = had
        return [QueueId((first + step) % count) for step in reversed(range(count))]

    # Claiming.

    def _claim(self, pop: Pop, grant: PopGrant, plan: PopPlan) -> None:
        """Stage a claim, with what is not handed out any more, as one entry."""
        place = self._returns.stage(plan.key, grant.group, spent=plan.spent, gone=plan.gone)
        if plan.command is not None:
            place = self._commits.stage_control(plan.command)
        if place is None:  # nothing of it can be staged now; other consumers come after it
            pop.claimed = [plan.key[2]]
            self._wait_for_claims(pop)
            self._wait(pop)
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
        """Return how many messages the group was never handed out: of the queue that a pop names, or of the topic."""
        topic, stands = fields.topic, self._state.offsets.of(fields.group, fields.topic)
        if fields.queue_id == ANY_QUEUE:
            queues = self._state.queues.of_topic(topic)
            bounds = [(each.key[1], each.min_offset, each.max_offset) for each in queues]
        else:  # a look at all the others costs more than the pop
            bounds = [(fields.queue_id, *self._state.queues.min_max(topic, fields.queue_id))]
        return sum(max(0, end - max(low, stands.get(each, 0))) for each, low, end in bounds)

    # Waiting.

    def _wait_for_claims(self, pop: Pop) -> None:
        """Let a pop that has passed what others claim wait for the end of that, once, though it has no time."""
        if pop.claimed and not pop.was_held:
            pop.was_held = True
            pop.held_until_ms = max(pop.held_until_ms, self._now_ms() + CLAIM_WAIT_MS)

    def _wait(self, pop: Pop) -> None:
        """Keep a pop until there may be something, or answer that there is nothing."""
        now_ms = self._now_ms()
        fields = pop.fields
        assert fields is not None, "it was read"
        table = self._state.pops
        if not (pop.is_notice or table.has_room(fields.group, fields.count_max)):
            text = (
                f"too many messages are in flight: {table.of_group(fields.group)} of {fields.group}, "
                f"and {IN_FLIGHT_MAX - table.count} are left for all groups"
            )
            self._nothing(pop, ResponseCode.POLLING_FULL, text)
        elif now_ms >= pop.held_until_ms:
            self._nothing(pop, ResponseCode.POLLING_TIMEOUT, "no new message")
        elif self._held_count >= self._held_max or not self._room.enter(pop):
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

    def freed(self, key: PopKey) -> None:
        """Look again for who waits for a queue in order, of which all is acknowledged now."""
        if self._log.is_serving:
            self._wake(key[0], key[1])

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
            self._room.leave(pop)
        return waiting

    def applied(self) -> None:
        """Look again for the pops of topics to which messages came, or which may be gone.

        And for all of them after a reset: which group it was is not worth knowing, since resets are rare.
        """
        if not self._held_count:
            self._seen.clear()
            return
        versions = (self._state.topics.version, self._state.offsets.moved_count)
        is_all_new = versions != self._versions
        self._versions = versions
        for topic, group in list(self._held):
            if is_all_new or self._state.topic_put_totals(topic) != self._seen.get(topic):
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
