"""Pulls and long polling on any node: read from the applied state, hold what finds nothing (11, 361).

A pull goes through four steps: it is *confirmed* that what its client can have seen is applied here, its group and
topic are *checked*, its queue is *read*, and if there is nothing it is *held* until a message comes. A step that cannot
be taken now (nobody confirms, an entry is damaged) is put off and tried again at every tick, for HOLD_MS at most. Then
a pull that meets a damaged entry is refused, and its client asks again from the same offset; one that nobody confirms
is sent to the leader, in the way that sent_away.py says. Nothing is skipped. Why pulls do not wait with the router
stands in docs/adding-a-code.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from broker.server.handlers.held_looks import HeldLook, HeldLooks
from broker.server.handlers.pull_advice import PullAdvice
from broker.server.handlers.pull_answers import PullAnswers
from broker.server.handlers.pull_lane import PullLane
from broker.server.handlers.pull_loads import PullLoads
from broker.server.handlers.pull_places import PullPlaces
from broker.server.handlers.pull_request import Pull
from broker.server.handlers.pull_turns import PullTurns
from broker.server.handlers.sent_away import SentAway
from broker.server.mistakes import Mistakes
from broker.server.requests.commits import Commits
from broker.server.requests.origin import Origin
from broker.server.requests.read_points import NotConfirmed, ReadPoints
from broker.server.requests.request import HOLD_MS, Handler, PendingRequest, Where
from broker.service.catalog import NOTHING_NEW
from broker.service.conclusions import RequestKind
from broker.service.holds import HeldPulls, hold_ms
from broker.service.pull import PullGrant, PullOutcome, PullRules
from broker.service.refusal import Refusal
from broker.service.wait_room import WaitRoom
from broker.store.not_in_memory import NotInMemoryError
from broker.store.state import BrokerState
from dledger import EntryDamagedError, LogServer
from dledger_mq.message.numbers import QueueId, QueueOffset
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.requests import PULL_COMMIT_OFFSET, PULL_SUSPEND, PullFields, PullRequest

_NOT_KNOWN = frozenset({ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST})

_NEVER_MS: Final = 2**62

READ_AT_ONCE_MAX: Final = 64
"""Held pulls that are read in a turn: half a millisecond, as long as nothing is found."""


class _NotKnownHereError(Exception):
    """Raised when this node knows nothing of what is asked for, which others may know."""


_NOT_NOW = (EntryDamagedError, _NotKnownHereError)
_NOT_READ = (EntryDamagedError, NotInMemoryError)


class Pulls:
    """Answers pulls, at once or when a message comes.

    A node that nobody confirms may be behind: what the leader would call illegal (an offset above the queue's end) is
    only not here yet, so it waits like any other pull that is ahead.

    Attributes:
        counts: of those that were answered.
        loads: those that wait for the disk.
        turns: those that wait for the next turn of the loop.
        looks: at those that are held, and at their queues.
        lane: answers those at once that find messages in memory.
        moved_to: returns where a client has to go that does not follow its group's reset; None: nowhere.
        mistakes: what becomes of errors that nobody expects; they go up until somebody says otherwise.
    """

    moved_to: Callable[[Origin, PullFields], QueueOffset | None] = staticmethod(
        lambda _origin, _fields: None
    )
    mistakes = Mistakes()

    def __init__(
        self,
        log: LogServer,
        state: BrokerState,
        commits: Commits,
        rules: PullRules,
        *,
        points: ReadPoints,
        advice: PullAdvice,
        held_max: int,
        long_polling: bool,
        now_ms: Callable[[], int],
        commit_offset: Callable[[Origin, PullFields], None],
    ) -> None:
        """Set up the answers to pulls.

        Args:
            log: the entries that are read.
            state: the fold, with topics and queues.
            commits: groups that a pull creates are staged here.
            rules: who may read what.
            points: confirms that enough is applied here.
            advice: names the node to pull from next.
            held_max: pulls that wait for a message; more are answered at once.
            long_polling: whether pulls wait as long as they ask for.
            now_ms: a clock that never goes back.
            commit_offset: takes the offset that a pull carries.
        """
        self._log, self._state = log, state
        self._commits = commits
        self._rules = rules
        self._points = points
        self._advice = advice
        self._sent_away = SentAway(held_max)
        self._room = WaitRoom()  # for those that wait, for whatever but the disk
        self._held: HeldPulls[Pull] = HeldPulls(held_max, self._room)
        self._held_max = held_max
        self.loads = PullLoads(log.reader, self._resume, self._late_load, most=held_max)
        self.turns, self.looks = PullTurns(self._begin), HeldLooks()
        self._entry_look, self._topic_look, self._role_look = self._ways_to_look()
        self._answers = PullAnswers(log, state, advice, self.loads)
        self.counts = self._answers.counts
        self.long_polling = long_polling
        self._now_ms = now_ms
        self._commit_offset = commit_offset
        self._put_off: list[Pull] = []
        self._unconfirmed: set[Pull] = set()  # wait for their confirmation
        self._is_ending, self._topics_version = False, state.topics.version
        self._by_code, self.lane = self._ways_in()
        points.watch_answers(self._sent_away.forget)

    def _ways_in(self) -> tuple[dict[int, Handler[PullRequest]], PullLane]:
        """Return the handlers, and what answers most pulls before one is asked; both count the same calls."""
        by_code: dict[int, Handler[PullRequest]] = {
            code: Handler(code, self.pull, RequestKind.READ, Where.HERE, request_type=Pull)
            for code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
        }
        lane = PullLane(
            self._log.reader,
            self._state,
            self._rules,
            self._answers,
            turns=self.turns,
            sent_away=self._sent_away,
            commit_offset=self._commit_offset,
            calls_of=lambda code: by_code[code].calls,
            note_mistake=lambda error, what: self.mistakes.note(error, what),
        )
        return by_code, lane

    def _ways_to_look(
        self,
    ) -> tuple[HeldLook[tuple[bytes, QueueId]], HeldLook[Pull], HeldLook[Pull]]:
        """Return how to look after an entry, after a change of topics, and in a new role."""
        held = self._held
        return (
            HeldLook(held.queues, lambda: held.queue_count, self._look_at),
            HeldLook(held.all, lambda: held.count, self._look_for_deleted),
            HeldLook(held.all, lambda: held.count, self._look_in_role, READ_AT_ONCE_MAX),
        )

    @property
    def places(self) -> PullPlaces:
        """The places that groups were given messages up to, by this node."""
        return self._answers.places

    @property
    def held_count(self) -> int:
        """The count of pulls that wait for a message."""
        return self._held.count

    def handlers(self) -> tuple[Handler[PullRequest], ...]:
        """Return the handlers of its codes."""
        return tuple(self._by_code.values())

    def pull(self, request: PendingRequest, command: PullRequest) -> None:
        """Carry out one pull."""
        assert isinstance(request, Pull), "its handler says so"
        request.is_backlog = request.connection in self._answers.backlog_readers
        self.turns.take(request)

    # Confirming, checking and reading.

    def _begin(self, pull: Pull) -> None:
        """Begin with a pull whose turn has come; its wait for that leaves it the whole time for all else."""
        if pull.is_backlog:
            pull.deadline_ms = self._now_ms() + HOLD_MS
        self._go_on(pull)

    def _go_on(self, pull: Pull) -> None:
        """Take a pull's remaining steps, the first of which is its confirmation."""
        self._keep_to(pull, self._take_steps)

    def _take_steps(self, pull: Pull) -> None:
        if pull.is_confirmed or self._confirm(pull):
            self._check_and_read(pull)

    def _keep_to(self, pull: Pull, act: Callable[[Pull], None]) -> None:
        """Run an act, and keep a mistake in it to its pull, which waits for nothing any more then."""
        try:
            act(pull)
        except Exception as error:
            if not self.mistakes.answer(error, pull):
                raise
            self._held.release(pull)
            self._end_wait(pull)

    def _resume(self, pull: Pull) -> None:
        """Go on with a pull for which the disk was read."""
        self.turns.resume(pull, partial(self._keep_to, act=self._check_and_read))

    def _check_and_read(self, pull: Pull) -> None:
        """Take the steps after the confirmation; a pull that cannot go on now is put off, or refused if it is late."""
        try:
            refusal = None if pull.is_checked else self._check(pull)
            if refusal is None:
                self._read_first(pull)
            else:
                pull.answer(refusal.code, refusal.remark)
        except NotInMemoryError as error:
            self.loads.wait(pull, error)
        except _NOT_NOW as error:
            if not self._try_later(pull):
                pull.answer(ResponseCode.SERVICE_NOT_AVAILABLE, str(error))

    def _confirm(self, pull: Pull) -> bool:
        """Return True if a pull may go on now; else it does once this node is confirmed to have applied enough."""
        pull.is_confirmed = self._log.reader.is_current
        if pull.is_confirmed:
            self._sent_away.forget()
            return True
        if self._log.lost_votes.problem:  # there is no leader to send it to
            return True
        if self._is_ending:
            self._not_confirmed(pull, NotConfirmed("this node ends", has_leader=True))
        elif not self._room.enter(pull):
            self._not_confirmed(
                pull, NotConfirmed("pulls that wait keep too much", has_leader=True)
            )
        else:
            self._unconfirmed.add(pull)
            self._points.read(partial(self._confirmed, pull), partial(self._not_confirmed, pull))
        return False

    def _confirmed(self, pull: Pull) -> None:
        """Go on with a pull that may be answered from what is applied here."""
        self._sent_away.forget()
        self._end_wait(pull)
        if not pull.is_closed:
            pull.is_confirmed = True
            self._keep_to(pull, self._check_and_read)

    def _not_confirmed(self, pull: Pull, why: NotConfirmed) -> None:
        """See `_do_without`."""
        self._keep_to(pull, partial(self._do_without, why=why))

    def _do_without(self, pull: Pull, why: NotConfirmed) -> None:
        """Put a pull off that nobody confirms, or send it to the leader when it is late.

        Without a leader, one that is back from there is served. A node that does not even know its topic or group, as
        after a start without a majority, refuses it: "nothing new" would deny what there is.
        """
        self._end_wait(pull)
        if pull.is_closed:
            return
        if not why.has_leader and self._is_back(pull):
            self._check_and_read(pull)
            return
        if self._try_later(pull):
            return
        grant = self._rules.check(pull.fields)
        if isinstance(grant, Refusal) and grant.code in _NOT_KNOWN:
            pull.answer(ResponseCode.SERVICE_NOT_AVAILABLE, self._behind(grant.remark))
            return
        if not why.has_leader:
            self._sent_away.add(pull.connection, pull.place)
        self._answers.send_away(pull)

    def _end_wait(self, pull: Pull) -> None:
        """Note that a pull waits for its confirmation no longer; it may not have."""
        if pull in self._unconfirmed:
            self._unconfirmed.remove(pull)
            self._room.leave(pull)

    def _is_back(self, pull: Pull) -> bool:
        return self._sent_away.is_back(pull.connection, pull.place)

    def _late_load(self, pull: Pull) -> None:
        """Let a pull's client ask again, whose messages the disk does not give in time; it may find them then."""
        self._answers.ask_again(pull)

    def _try_later(self, pull: Pull) -> bool:
        """Keep a pull for the next tick; return False if it is late, too many wait, or this node ends."""
        is_late = self._is_ending or self._now_ms() >= pull.deadline_ms
        is_full = len(self._put_off) >= self._held_max
        if is_late or is_full or not self._room.enter(pull):
            return False
        pull.was_held = True
        self._put_off.append(pull)
        return True

    def _read_anew(self, pull: Pull, grant: PullGrant | None = None) -> None:
        """Read from where it asked, though it was held; `grant` has another filter than it was held with."""
        if grant is not None:
            pull.tags, pull.property_filter = grant.tags, grant.property_filter
        pull.deadline_ms = self._now_ms() + HOLD_MS
        self._go_on(pull)

    def _check_anew(self, pull: Pull) -> None:
        """Begin a pull again with its first step, in its turn: all pulls of a topic may do so together."""
        pull.is_checked = False
        pull.deadline_ms = self._now_ms() + HOLD_MS
        self.turns.take(pull)

    def _try_put_off(self) -> None:
        """Go on with the pulls that were put off, unless they would only hear again that there is no leader."""
        waiting, self._put_off = self._put_off, []
        may_confirm = self._points.can_ask or self._log.lost_votes.problem or self._is_ending
        now_ms = self._now_ms()
        for pull in waiting:
            may_go_on = (
                may_confirm
                or pull.is_confirmed
                or now_ms >= pull.deadline_ms
                or self._is_back(pull)
            )
            if not (may_go_on or pull.is_closed):
                self._put_off.append(pull)
                continue
            self._room.leave(pull)
            if not pull.is_closed:
                self._go_on(pull)

    def _check(self, pull: Pull) -> Refusal | None:
        """Return why a pull may not read, or None; if it may, the offset that it carries is taken.

        Raises:
            _NotKnownHereError: nobody can say yet.
        """
        fields = pull.fields
        grant = self._rules.check(fields)
        if isinstance(grant, Refusal):
            if grant.code in _NOT_KNOWN and not pull.is_confirmed:
                raise _NotKnownHereError(self._log.lost_votes.problem or self._behind(grant.remark))
            return grant
        if grant.creation is not NOTHING_NEW and self._log.is_serving:
            self._commits.create(grant.creation)
        if fields.sys_flag & PULL_COMMIT_OFFSET and fields.commit_offset >= 0:
            self._commit_offset(pull.origin, fields)
        pull.is_checked = True
        pull.tags, pull.property_filter = grant.tags, grant.property_filter
        if pull.was_held:  # what it waits for now is another thing
            pull.deadline_ms = self._now_ms() + HOLD_MS
        return None

    def _read_first(self, pull: Pull) -> None:
        """Answer a pull with what is there, or hold it until a message comes.

        Raises:
            EntryDamagedError, NotInMemoryError: neither was done.
        """
        fields = pull.fields
        target = self.moved_to(pull.origin, fields)
        if target is not None:
            self._answers.move(pull, target)
            return
        pull.next_offset = fields.queue_offset
        result, outcome = self._answers.read(pull)
        if outcome.code == ResponseCode.PULL_OFFSET_MOVED:
            self._answers.note_overflow(fields, result)
        if outcome.code == ResponseCode.PULL_NOT_FOUND and self._hold(pull):
            return
        self._answers.give(pull, result, outcome)

    def _behind(self, remark: str | None) -> str:
        return f"{remark} So node {self._log.node_id} says, which does not lead and may be behind."

    # Holding.

    def _hold(self, pull: Pull) -> bool:
        """Keep a pull that found nothing, if its client wants that (F1, F2)."""
        fields = pull.fields
        if self._is_ending or not fields.sys_flag & PULL_SUSPEND:
            return False
        wait_ms = hold_ms(fields.suspend_timeout_millis, long_polling=self.long_polling)
        if wait_ms <= 0:
            return False
        pull.held_until_ms = self._now_ms() + wait_ms
        return self._held.hold(pull)

    def applied(self) -> None:
        """Answer the held pulls that now find something, since entries were applied."""
        self.turns.note_new()
        if not self._held.count:
            return
        if self._topics_version != self._state.topics.version:
            self._topics_version = self._state.topics.version
            self.looks.begin(self._topic_look)
        self.looks.begin(self._entry_look)

    def _look_at(self, queues: Sequence[tuple[bytes, QueueId]]) -> None:
        """Answer the pulls on some queues for which there is something."""
        for pull in self._held.reached(queues, self._state.queues.by_key):
            self._look_again(pull)

    def _look_for_deleted(self, pulls: Sequence[Pull]) -> None:
        """Begin those pulls anew that wait where nothing will come: their topic was deleted, perhaps made again.

        A new topic's queue begins at 0, below what they wait for.
        """
        for pull in pulls:
            if not pull.is_held:
                continue
            topic, queue_id = pull.place
            queue = self._state.queues.by_key.get((topic.encode(), queue_id))
            end = queue.max_offset if queue is not None else 0
            if pull.next_offset > end or topic not in self._state.topics:
                self._held.release(pull)
                self._check_anew(pull)

    def role_changed(self) -> None:
        """Look at the held pulls again that nobody confirmed: in its new role the node may judge them otherwise."""
        self.looks.begin(self._role_look)

    def _look_in_role(self, pulls: Sequence[Pull]) -> None:
        """Read those of some pulls again that nobody confirmed, in the role that the node has now."""
        for pull in pulls:
            if not pull.is_confirmed:
                self._look_again(pull)

    def leave(self) -> bool:
        """Send readers of backlogs to the leader from now on; return True if some may be here."""
        return self._advice.leave()

    def answer_held(self) -> None:
        """Answer all pulls that wait, since this node ends: their clients pull again, from the leader if they know it.

        No pull waits from now on.
        """
        self._is_ending = True
        self.loads.end()
        self._end_holds(_NEVER_MS)
        self._try_put_off()
        for pull in tuple(self._unconfirmed):
            self._not_confirmed(pull, NotConfirmed("this node ends", has_leader=True))

    def expire(self, now_ms: int) -> None:
        """Go on with the pulls that were put off, and answer those whose time is over."""
        self.loads.expire(now_ms)
        self._try_put_off()
        self._end_holds(now_ms)

    def _end_holds(self, now_ms: int) -> None:
        """Answer the pulls whose time is over by then with what is there (F8)."""
        for pull in self._held.take_due(now_ms):
            self._keep_to(pull, self._end_hold)

    def _end_hold(self, pull: Pull) -> None:
        """Answer a pull that is held no longer."""
        if not self._answers.is_sure(pull):
            self._answers.send_away(pull)
            return
        newer = self._newer_grant(pull)
        if newer is not None:
            self._read_anew(pull, newer)
            return
        try:
            result, outcome = self._answers.read(pull)
        except _NOT_READ:
            self._read_anew(pull)
            return
        skipped = pull.next_offset > pull.fields.queue_offset
        if skipped and outcome.code == ResponseCode.PULL_NOT_FOUND:
            # What came meanwhile did not match: let the client go on after it (F7).
            outcome = PullOutcome(
                ResponseCode.PULL_RETRY_IMMEDIATELY, outcome.next_offset, outcome.max_offset
            )
        self._answers.give(pull, result, outcome)

    def connection_closed(self, number: int) -> None:
        """Drop the pulls of a connection."""
        self._held.connection_closed(number)
        self._sent_away.connection_closed(number)
        self._answers.backlog_readers.discard(number)

    def _look_again(self, pull: Pull) -> None:
        """Look for what a held pull may find now; drop one whose client is gone."""
        if not pull.is_held:
            return  # since what was done for another one
        if pull.is_closed:
            self._held.release(pull)
        else:
            self._keep_to(pull, self._read_held)

    def _read_held(self, pull: Pull) -> None:
        """Answer a pull that finds something now."""
        try:
            result, outcome = self._answers.read(pull)
        except _NOT_READ:
            self._held.release(pull)
            self._read_anew(pull)
            return
        if outcome.code == ResponseCode.PULL_NOT_FOUND:
            return
        is_through = outcome.next_offset >= result.max_offset
        if outcome.code == ResponseCode.PULL_RETRY_IMMEDIATELY and is_through:
            # Messages came, none of them wanted: keep waiting after them. After more than one read examines, the
            # client asks for the rest: nothing else might come that makes us look at it.
            assert outcome.next_offset >= pull.next_offset, (
                f"a held pull goes back from {pull.next_offset} to {outcome.next_offset}"
            )
            pull.next_offset = outcome.next_offset
            return
        self._held.release(pull)
        newer = self._newer_grant(pull)
        if newer is None and self._answers.is_sure(pull):
            self._answers.give(pull, result, outcome)
        else:  # as the group wants it now, or once the leader that there may be by now has confirmed it
            self._read_anew(pull, newer)

    def _newer_grant(self, pull: Pull) -> PullGrant | None:
        """Return the grant of now, if a pull passed over messages by another filter than its group has by now.

        What was passed over while it was held may be wanted now, and its client would never ask for it again.
        """
        if pull.next_offset == pull.fields.queue_offset:
            return None
        grant = self._rules.check(pull.fields)
        if isinstance(grant, Refusal):
            return None
        if (grant.tags, grant.property_filter) == (pull.tags, pull.property_filter):
            return None
        return grant
