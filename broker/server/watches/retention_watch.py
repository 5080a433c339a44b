"""Retention at the leader: every few seconds it lets the group forget what is due, unless something needs it.

Every member looks at the room on its own disk; the followers report theirs to the leader. What is due is decided by
broker/service/retention.py, what is needed by broker/store/needs.py, and the fold forgets it (docs/retention.md).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from broker.server.requests.commits import Commits
from broker.server.watches.age_holds import ClockDoubt, DueByAge, FirstForgetting, LogPace
from broker.server.watches.topic_retention import TopicRetention
from broker.service.retention import (
    LogFacts,
    RetentionRules,
    SegmentStart,
    decide,
    hands_over_for_room,
    refuses_sends,
)
from broker.store.control import ForgetBefore
from broker.store.lookups import check_loaded, earliest_store_ms, position_by_time
from broker.store.needs import Need, oldest_need, oldest_pin
from broker.store.not_in_memory import NotLoadedError
from broker.store.retention import JUMP_MS, ForgetCause
from broker.store.staging import StagedEntry
from broker.store.state import BrokerState
from dledger import DLedgerError, LogServer, NodeId, Position
from dledger.raft.entry import Entry
from dledger.runtime.events_log import log_event
from dledger_mq.message.numbers import PhysicalOffset, StoreTimeMs
from dledger_mq.remoting.codes import DISK_FULL

LOOK_MS: Final = 1_000
"""Between two looks at the own disk: a nearly full one fills quickly."""

ASKED_ROUNDS: Final = 20
"""Rounds for which an operator's wish holds, as RocketMQ's: what is due may be more than one round takes."""

COMPLAINT_MS: Final = 3_600_000

HAND_OVER_PAUSE_MS: Final = 30_000
"""A leader whose disk is nearly full hands over once in this time, whatever comes of it."""

READS_MAX: Final = 8
"""Reads beside the loop for one round; one does, or two, unless what was read leaves memory at once."""

_RESERVED_KEY: Final = "fileReservedTime"


class HeldUp:
    """The thing that keeps messages which are due.

    Attributes:
        what: what it is, for people.
        position: where it stands; None: nowhere.
        since_ms: when it was seen first, in this node's time.
    """

    def __init__(self, what: str, position: PhysicalOffset | None, since_ms: int) -> None:
        self.what = what
        self.position = position
        self.since_ms = since_ms

    @property
    def text(self) -> str:
        """The thing and its place, for people."""
        return self.what if self.position is None else f"{self.what}, at position {self.position}"


class RetentionWatch:
    """Lets the group forget while this node leads.

    Attributes:
        held_up: what keeps messages that are due; None: nothing does.
        used_percent: share of the own disk that is in use; None: unknown.
    """

    def __init__(
        self,
        log: LogServer,
        state: BrokerState,
        commits: Commits,
        rules: RetentionRules,
        *,
        own_percent: Callable[[], float | None],
        follower_percents: Callable[[], Mapping[str, float]],
        refuse_sends: Callable[[str], None],
        hand_over: Callable[[NodeId], None],
        wall_ms: Callable[[], int],
        local_hour: Callable[[int], int],
    ) -> None:
        """Set up the watch.

        Args:
            log: who leads, and where the log begins and ends.
            state: what is needed and forgotten.
            commits: takes the record.
            rules: what is due.
            own_percent: returns the share of the own disk that is in use; None: the disk cannot say.
            follower_percents: returns those of the followers that are known.
            refuse_sends: takes the reason for which sends are refused from here on; empty: they are taken.
            hand_over: begins to hand leadership to a member.
            wall_ms: this node's time; ages are counted by it, or by the newest record if that is later.
            local_hour: returns the hour of the local day at such a time.
        """
        self.held_up: HeldUp | None = None
        self.used_percent: float | None = None
        self._log = log
        self._state = state
        self._commits = commits
        self.rules = rules
        self._own_percent = own_percent
        self._follower_percents = follower_percents
        self._refuse_sends = refuse_sends
        self._hand_over = hand_over
        self._wall_ms = wall_ms
        self._local_hour = local_hour
        self._now_ms = self._next_look_ms = self._next_round_ms = 0
        self._next_complaint_ms = self._next_hand_over_ms = self._asked_rounds = 0
        self._overrun, self._full_learners = set[str](), frozenset[str]()
        self._topics = TopicRetention(log, state, commits)
        self._pace = LogPace()
        self._doubt, self._first = ClockDoubt(), FirstForgetting()
        self._is_leading = self._is_waiting = self._is_refusing = False
        self._is_reading = self._may_wait = False
        self._starts: dict[Position, SegmentStart] = {}
        """By the beginning of a segment: where the next one begins."""

    def ask(self) -> str:
        """Let what is due go in the next rounds, whatever the hour; an operator wants it.

        Returns why nothing of it goes now; empty: some does, or nothing is due.
        """
        self._asked_rounds = ASKED_ROUNDS
        self._topics.ask()
        self._next_look_ms = self._next_round_ms = 0
        self.tick(self._now_ms, may_wait=False)
        return "" if self._is_waiting or self.held_up is None else self.held_up.text

    def tick(self, now_ms: int, *, may_wait: bool = True) -> None:
        """Look at the disk, and while this node leads let the group forget.

        Args:
            now_ms: monotonic.
            may_wait: whether what says how much is due may be read beside the loop first.
        """
        self._now_ms = now_ms
        if now_ms < self._next_look_ms:
            return
        self._next_look_ms = now_ms + min(LOOK_MS, self.rules.round_ms)
        self.used_percent = self._own_percent()
        self._look_at_room()
        self._look_at_learners()
        leap = self._pace.look(
            now_ms, wall_ms=self._wall_ms(), last_store_ms=self._state.last_store_ms
        )
        if not self._log.is_serving:
            self._is_leading, self.held_up = False, None
            return
        self._hand_over_for_room(now_ms)
        if not self._is_leading:
            self._is_leading = True
            self._doubt, self._first = ClockDoubt(), FirstForgetting()
        self._doubt.note(leap)
        is_busy = self._is_waiting or self._commits.is_full or (self._is_reading and may_wait)
        if now_ms >= self._next_round_ms and not is_busy:
            self._next_round_ms = now_ms + self.rules.round_ms
            self._asked_rounds = max(0, self._asked_rounds - 1)
            self._round(reads_left=READS_MAX if may_wait else 0)

    def _round(self, *, reads_left: int) -> None:
        """Forget what is due; what says how much that is may be read beside the loop first, so many times."""
        self._may_wait = reads_left > 0
        try:
            self._forget(self._now_ms)
        except NotLoadedError as error:
            self._is_reading = True
            self._log.reader.load(error.places, partial(self._go_on, reads_left - 1))
        except DLedgerError as error:  # an entry cannot be read now; the next round tries again
            self._log_event(logging.WARNING, "retention-waits", reason=error)

    def _go_on(self, reads_left: int) -> None:
        """Go on with a round for which an entry was read."""
        self._is_reading = False
        if self._log.is_serving and not self._is_waiting and not self._commits.is_full:
            self._round(reads_left=reads_left)

    # Room.

    def _look_at_room(self) -> None:
        """Refuse sends, or take them again, as the room on the disks says."""
        reason = self._why_refused()
        if bool(reason) == self._is_refusing:
            return
        self._is_refusing = bool(reason)
        self._refuse_sends(reason)
        self._log_event(
            logging.ERROR if reason else logging.WARNING,
            "sends-refused" if reason else "sends-taken-again",
            reason=reason.removeprefix(DISK_FULL) or "there is room on the disk",
        )

    def _look_at_learners(self) -> None:
        """Say once which learners' disks are nearly full: nothing is forgotten or refused for them.

        The leader says it of all, and each learner of itself.
        """
        learners = self._log.roster.in_force.learners
        percents = {name: used for name, used in self._percents().items() if name in learners}
        full = frozenset(name for name, used in percents.items() if refuses_sends(self.rules, used))
        for name in sorted(full - self._full_learners):
            self._log_event(
                logging.WARNING,
                "learner-disk-nearly-full",
                learner=name,
                used_percent=round(percents[name]),
                reason="a learner does not count: the group goes on, and neither forgets nor refuses for it",
            )
        self._full_learners = full

    def _percents(self) -> dict[str, float]:
        """Return the shares of their disks that are in use, of this node and of those that have told theirs."""
        percents = dict(self._follower_percents())
        if self.used_percent is not None:
            percents[self._log.node_id] = self.used_percent
        return percents

    def _counted_percents(self) -> dict[str, float]:
        """Return those of the members whose disks decide: the voters, and a leader, which may be leaving."""
        counted = {*self._log.roster.in_force.voters}
        if self._log.is_serving:
            counted.add(self._log.node_id)
        return {name: used for name, used in self._percents().items() if name in counted}

    def _hand_over_for_room(self, now_ms: int) -> None:
        """Let the voter with the most room lead if there is none here: it need not delete, or refuse, for this disk."""
        if now_ms < self._next_hand_over_ms:
            return
        percents, used = self._follower_percents(), self.used_percent
        voters = [each for each in self._log.roster.in_force.voters if each in percents]
        fit = [each for each in voters if hands_over_for_room(self.rules, used, percents[each])]
        if not fit:
            return
        target = min(fit, key=lambda each: percents[each])
        self._next_hand_over_ms = now_ms + HAND_OVER_PAUSE_MS
        self._log_event(
            logging.WARNING,
            "hands-over-for-room",
            to=target,
            used_percent=round(used or 0),
            used_there_percent=round(percents[target]),
        )
        self._next_round_ms = max(self._next_round_ms, now_ms + self.rules.round_ms)
        self._hand_over(target)

    def _why_refused(self) -> str:
        """Return why sends are to be refused; empty: they are taken."""
        own = str(self._log.node_id)
        percents = self._counted_percents()
        full = {node for node, used in percents.items() if refuses_sends(self.rules, used)}
        voters = self._log.roster.in_force.voters
        full_count = len(full.intersection(voters))
        if own not in full and 2 * (len(voters) - full_count) > len(voters):
            return ""
        shown = ", ".join(f"{node} {percents[node]:.0f} %" for node in sorted(full))
        return (
            f"{DISK_FULL}service not available now: the disk is nearly full ({shown} in use), sends are refused "
            f"above {self.rules.warning_percent} % (diskSpaceWarningLevelRatio), reads go on"
        )

    # Rounds.

    def _forget(self, steady_ms: int) -> None:
        """Write the record if something is due and not needed.

        Raises:
            DLedgerError: the entry with which the kept part is to begin cannot be read.
        """
        wall_ms, last_ms = self._wall_ms(), self._state.last_store_ms
        now_ms = max(wall_ms, last_ms)
        end = PhysicalOffset(self._log.reader.applied_position)
        doubt = self._doubt.reason(
            steady_ms,
            wall_ms=wall_ms,
            last_store_ms=last_ms,
            retention=self._state.retention,
            shortest_ms=min(self.rules.reserved_ms, self._topics.shortest_ms() or JUMP_MS),
        )
        need = oldest_need(self._state, StoreTimeMs(now_ms), end=end)
        # A time that is doubted ends no pin: what goes for its size would go at once.
        pin = oldest_pin(self._state.retention.pins, StoreTimeMs(self._doubt.sure_ms), end=end)
        facts = self._facts(now_ms, need, pin)
        hold = doubt or self._grace(steady_ms, wall_ms, facts)
        freely = decide(self.rules, facts, partial(self._next_start, end=facts.end))
        decision = decide(self.rules, facts, partial(self._ageless, facts)) if hold else freely
        if hold and decision != freely:
            self._complain(hold, None, steady_ms)
        elif keepers := [
            each for each in (need, pin) if each and each.physical_offset == decision.held_up_at
        ]:
            self._complain(keepers[0].what, keepers[0].physical_offset, steady_ms)
        else:
            self.held_up = None
        if decision.start is not None:
            self._write(decision.start, decision.cause)
        if not hold:
            self._topics.tick(steady_ms, now_ms)

    def _ageless(self, facts: LogFacts, beginning: Position) -> SegmentStart | None:
        """Return where the next segment begins, as if nobody knew when."""
        start = self._next_start(beginning, end=facts.end)
        return None if start is None else replace(start, stored_ms=None)

    def _grace(self, steady_ms: int, wall_ms: int, facts: LogFacts) -> str:
        """Return why what is due does not go yet, in a group that keeps a setting for the first time; empty: it may.

        Whoever sets another key than that of RocketMQ, or sets it while brokers run, knows that it holds.
        """
        has_chosen = self.rules.is_any_hour or _RESERVED_KEY in self._state.settings.values()
        if self._state.retention.move_count or has_chosen or facts.is_asked:
            self._first.end()
        return self._first.reason(
            steady_ms,
            wall_ms=wall_ms,
            reserved_ms=self.rules.reserved_ms,
            look=partial(self._due_by_age, facts),
        )

    def _due_by_age(self, facts: LogFacts) -> DueByAge:
        segment_bytes = facts.segment_bytes
        due_to = position_by_time(
            self._log.reader,
            facts.beginning,
            end=facts.end,
            time_ms=facts.now_ms - self.rules.reserved_ms,
            within_bytes=segment_bytes,
        )
        due_bytes = due_to - facts.beginning
        return DueByAge(due_bytes if due_bytes >= segment_bytes else 0, facts.end - facts.beginning)

    def _facts(self, now_ms: int, need: Need | None, pin: Need | None) -> LogFacts:
        """Return the stand of the log, and of the fullest disk that counts."""
        reader = self._log.reader
        return LogFacts(
            now_ms=now_ms,
            hour=self._local_hour(now_ms),
            used_percent=max(self._counted_percents().values(), default=None),
            own_used_percent=self.used_percent,
            beginning=self._state.retention.position,
            given_back=reader.first_position,
            end=reader.applied_position,
            segment_bytes=self._log.config.segment_size_bytes,
            needed_from=None if need is None else need.physical_offset,
            pinned_from=None if pin is None else pin.physical_offset,
            is_asked=self._asked_rounds > 0,
        )

    def _next_start(self, beginning: Position, *, end: Position) -> SegmentStart | None:
        """Return the first entry that had no room in the segment that begins at a position; read once.

        Raises:
            DLedgerError: it cannot be read.
            NotLoadedError: it is not in memory, and this round may wait.
        """
        known = self._starts.get(beginning)
        if known is not None:
            return known
        beyond = Position(beginning + self._log.config.segment_size_bytes)
        if beyond >= end:
            return None
        entry = self._entry_at(beyond)
        if entry.position <= beginning:  # it is larger than a segment, and has one of its own
            if entry.end_position >= end:
                return None
            entry = self._entry_at(entry.end_position)
        stored_ms = earliest_store_ms(
            self._log.reader, entry.position, end=end, may_wait=self._may_wait
        )
        start = SegmentStart(entry.index, entry.position, stored_ms)
        if stored_ms is not None:
            kept_from = self._state.retention.position
            self._starts = {at: each for at, each in self._starts.items() if at >= kept_from}
            self._starts[beginning] = start
        return start

    def _entry_at(self, position: Position) -> Entry:
        if self._may_wait:
            check_loaded(self._log.reader, position)
        return self._log.reader.entry_at(position)

    def _write(self, start: SegmentStart, cause: ForgetCause) -> None:
        place = self._commits.stage_control(ForgetBefore(start.index, start.position, cause))
        self._is_waiting = True
        self._commits.wait(place, self)

    def committed(self, staged: StagedEntry, place: int) -> None:
        """See `Waiter`."""
        self._is_waiting = False
        refusal = self._state.refusals.at(staged.physical_offset(place))
        if refusal is not None:
            self._log_event(
                logging.INFO, "retention-waits", reason=f"{refusal.kind.name}: {refusal.detail}"
            )
            return
        retention = self._state.retention
        self._log_event(
            logging.INFO,
            "forgotten",
            before_entry=retention.index,
            before_position=retention.position,
            cause=retention.cause,
        )
        self._report_overrun()

    def _report_overrun(self) -> None:
        """Say once which pins were not waited for any longer."""
        pins = {name: pin for name, pin in self._state.retention.pins.items() if pin.is_overrun}
        for name, pin in pins.items():
            if name not in self._overrun:
                self._log_event(
                    logging.WARNING, "pin-overrun", name=name, position=pin.position, by=pin.by
                )
        self._overrun = set(pins)

    def failed(self, error: DLedgerError) -> None:
        """See `Waiter`: whoever leads decides anew."""
        self._is_waiting = False

    def _complain(self, what: str, position: PhysicalOffset | None, steady_ms: int) -> None:
        """Note and report, now and then, what keeps messages that are due."""
        wall_ms, held_up = self._wall_ms(), self.held_up
        if held_up is None or held_up.what != what:
            held_up = HeldUp(what, position, wall_ms)
            self._next_complaint_ms = steady_ms
        held_up.position = position
        self.held_up = held_up
        if steady_ms < self._next_complaint_ms:
            return
        self._next_complaint_ms = steady_ms + COMPLAINT_MS
        if position is None:
            self._log_event(logging.WARNING, "retention-waits", reason=what)
            return
        self._log_event(
            logging.WARNING,
            "retention-held-up",
            by=what,
            at_position=position,
            since_s=(wall_ms - held_up.since_ms) // 1000,
        )

    def _log_event(self, level: int, event: str, **fields: object) -> None:
        log_event(level, event, node=self._log.node_id, **fields)
