"""What is in flight and not handed out again: to the dead letters, or back to the group's retry topic (R16, R19).

A message that was handed out as often as its group wants goes to the dead letters when it is due. One that nobody has
popped for RETURN_MS since it was due goes to the group's retry topic, where also those find it who pull: so a group may
change from popping to pulling. Copies, and the record that takes the originals out of flight, are one entry. What is
being acknowledged, or claimed, is let alone until that is decided.

While a group has no members nobody of it pulls, and what nobody pops waits where it lies: RocketMQ's proxy, which
sends no heartbeats for consumers, pops for a group, and not from its retry topic.

A message popped in order is not returned: the group stands before it, so whoever pulls gets it from there.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from broker.server.handlers.plan_staging import stage_plan
from broker.server.handlers.pop_reading import PopReading, is_spent
from broker.server.requests.commits import Commits, OnCommit
from broker.service.refusal import Refusal
from broker.service.send import MessagePlan, SendPlan
from broker.service.send_back import SendBackRules
from broker.store.control import ChangeInvisible, DropPopped
from broker.store.due_queues import DuePlace
from broker.store.groups import SubscriptionGroupConfig
from broker.store.pops import IN_FLIGHT_MAX, InFlight, PopKey
from broker.store.state import BrokerState
from dledger import EntryDamagedError, LogServer
from dledger_mq.message.errors import RecordError
from dledger_mq.message.numbers import QueueOffset
from dledger_mq.message.record import StoredMessage, decode_record

_log = logging.getLogger(__name__)

RETURN_MS: Final = 60_000
"""So long after it was due a message waits for somebody who pops."""

RETURNS_MAX: Final = 256
"""Messages of one queue that are returned together."""

RETURNING_MAX: Final = 2048
"""Messages that are being returned; who sends and pops needs room in the log, too."""

_RETURN_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of the messages of one queue that are returned together."""

LOOK_MS: Final = 500
"""From the end of a round in which nothing was returned to the next one."""

SLICE_MS: Final = 10
"""Of a round without a turn for anybody else."""

SLICE_QUEUES_MAX: Final = 1024
"""Queues that a slice looks at."""

STUCK_MS: Final = 30_000
"""So long a queue is let alone of which no message was returned, since it waits or could not be."""

WAITING_MAX: Final = IN_FLIGHT_MAX // 2
"""Messages in flight, of all groups, beyond which none waits for somebody who pops: who does needs the room."""


class PopReturns:
    """Stages what leaves the flight without an acknowledgement, while this node leads.

    A round goes over all queues that are due, in the order in which they are, in slices between which others have
    their turn. The next one begins at once, or some time later if nothing was returned.

    Attributes:
        claimed: queues of which a claim, or a return, is on its way.
        return_ms: so long after it was due a message waits for somebody who pops.
        has_members: whether consumers of a group send heartbeats.
    """

    def __init__(
        self,
        log: LogServer,
        state: BrokerState,
        commits: Commits,
        *,
        rules: SendBackRules,
        reading: PopReading,
        has_members: Callable[[str], bool],
        now_ms: Callable[[], int],
    ) -> None:
        """Set up the returns; `now_ms` is a clock that never goes back."""
        self.claimed: set[PopKey] = set()
        self.return_ms = RETURN_MS
        self.has_members = has_members
        self._log = log
        self._state = state
        self._commits = commits
        self._rules = rules
        self._reading = reading
        self._now_ms = now_ms
        self._changing: dict[tuple[PopKey, QueueOffset], int] = {}
        self._next_look_ms = 0
        self._last: DuePlace | None = None
        self._has_returned = False
        self._returning = 0
        self._stuck: OrderedDict[PopKey, int] = OrderedDict()
        """Until when queues are let alone; those that were looked at first come first."""

    def changing(self, key: PopKey, offsets: Iterable[QueueOffset]) -> Callable[[object], None]:
        """Let messages alone that are being acknowledged, until what this returns is called."""
        names = [(key, offset) for offset in offsets]
        for name in names:
            self._changing[name] = self._changing.get(name, 0) + 1

        def decided(_error: object) -> None:
            for name in names:
                left = self._changing.pop(name) - 1
                if left:
                    self._changing[name] = left

        return decided

    def stage(
        self,
        key: PopKey,
        group: SubscriptionGroupConfig,
        *,
        spent: Iterable[tuple[InFlight, StoredMessage]] = (),
        unwanted: Iterable[tuple[InFlight, StoredMessage]] = (),
        gone: Iterable[InFlight] = (),
    ) -> int | None:
        """Stage copies and the record that takes the originals out; return its place, None if there is nothing.

        What cannot be copied now, say because its topic takes nothing, is tried again a minute later.

        Args:
            key: the queue.
            group: whose messages they are.
            spent: to the dead letters.
            unwanted: to the retry topic.
            gone: nowhere, since the log no longer has them.
        """
        place = None
        left = [each for each in gone if (key, each.offset) not in self._changing]
        for is_dead, messages in ((True, spent), (False, unwanted)):
            for each, message in messages:
                if (key, each.offset) in self._changing:
                    continue
                if self._copy(group, message, each.times, is_dead=is_dead):
                    left.append(each)
                else:  # what lies behind it goes ahead of it
                    later = ChangeInvisible(*key, each.offset, each.popped_ms, RETURN_MS)
                    place = self._commits.stage_control(later)
        if left:
            handles = [(each.offset, each.popped_ms) for each in left]
            place = self._commits.stage_control(DropPopped(*key, handles))
        return place

    def _copy(
        self, group: SubscriptionGroupConfig, message: StoredMessage, times: int, *, is_dead: bool
    ) -> bool:
        """Stage the copy of a message; return False if it has to stay in flight."""
        plan = self._rules.hand_on(message, group, is_dead=is_dead)
        if isinstance(plan, Refusal):
            _log.warning("a popped message of %s stays in flight: %s", group.name, plan.remark)
            return False
        self._commits.create(plan.creation)
        copy = SendPlan(
            plan.topic,
            plan.queue_id,
            message.sys_flag,
            message.reconsume_times + times,
            0,
            (MessagePlan(message.flag, message.body, plan.properties, b""),),
        )
        try:
            stage_plan(self._commits.staging, copy, message.born_timestamp_ms, message.born_host)
        except RecordError as error:
            _log.warning("a popped message of %s stays in flight: %s", group.name, error)
            return False
        return True

    def tick(self, now_ms: int) -> None:
        """Return what nobody pops any more, as much as a slice holds; `now_ms` is monotonic."""
        if now_ms < self._next_look_ms or not self._log.is_serving:
            return
        while self._stuck and next(iter(self._stuck.values())) <= now_ms:
            self._stuck.popitem(last=False)
        limit_ms = self._reading.time_ms() - self.return_ms
        places = self._state.pops.due_queues.due(limit_ms, self._last, SLICE_QUEUES_MAX)
        for place in places:
            if (
                self._returning >= RETURNING_MAX
                or self._commits.is_full
                or self._now_ms() - now_ms >= SLICE_MS
            ):
                return
            self._last = place
            self._look(place[1], limit_ms, now_ms)
        if len(places) < SLICE_QUEUES_MAX:
            # A round passes also those that are let alone: that may be half a million queues that wait.
            self._next_look_ms = now_ms + (0 if self._has_returned else LOOK_MS + len(self._stuck))
            self._last, self._has_returned = None, False

    def _look(self, key: PopKey, limit_ms: int, now_ms: int) -> None:
        """Return what is due of one queue, unless somebody has it in hand, or nothing was returned a moment ago."""
        if key in self._stuck or key in self.claimed:
            return
        queue = self._state.pops.queue(key)
        if queue is None:
            return
        try:
            is_whole = self._return(key, queue.due(limit_ms, RETURNS_MAX))
        except EntryDamagedError as error:
            _log.warning("popped messages of %s wait: %s", key, error)
            is_whole = False
        if not is_whole:
            self._stuck[key] = now_ms + STUCK_MS

    def _return(self, key: PopKey, due: list[InFlight]) -> bool:
        """Return messages of one queue; return whether any was.

        Raises:
            EntryDamagedError: one cannot be read now; nothing was done.
        """
        group = self._state.groups.get(key[0])
        if group is None:  # with its deletion nothing of it is in flight any more
            return False
        spent: list[tuple[InFlight, StoredMessage]] = []
        unwanted: list[tuple[InFlight, StoredMessage]] = []
        gone: list[InFlight] = []
        total = 0
        for each in self._leaving(key, group, due):
            record = self._reading.message(key, each.offset, may_wait=False)
            if record is None:
                gone.append(each)
                continue
            total += len(record)
            if total > _RETURN_BYTES_MAX and (spent or unwanted):
                break
            message = decode_record(bytes(record))
            is_dead = is_spent(message.reconsume_times, each.times, group.retry_times_max)
            (spent if is_dead else unwanted).append((each, message))
        place = self.stage(key, group, spent=spent, unwanted=unwanted, gone=gone)
        if place is None:
            return False
        count = len(spent) + len(unwanted) + len(gone)
        self._has_returned = True
        self.claimed.add(key)
        self._returning += count

        def decided(*_outcome: object) -> None:
            self.claimed.discard(key)
            self._returning -= count
            assert self._returning >= 0, f"{self._returning} messages are being returned"

        self._commits.wait(place, OnCommit(decided, decided))
        return True

    def _leaving(
        self, key: PopKey, group: SubscriptionGroupConfig, due: list[InFlight]
    ) -> list[InFlight]:
        """Return what does not wait any longer for somebody who pops."""
        if self.has_members(key[0]) or self._state.pops.count > WAITING_MAX:
            return due
        low, _ = self._state.queues.min_max(key[1], key[2])
        limit = group.retry_times_max
        return [each for each in due if each.offset < low or is_spent(0, each.times, limit)]
