"""Retention at the leader: when it writes the record, what holds it up, and when sends are refused."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from broker.server.watches.age_holds import BEHIND_MAX_MS, DOUBT_MS, GRACE_MS
from broker.server.watches.retention_watch import (
    ASKED_ROUNDS,
    COMPLAINT_MS,
    HAND_OVER_PAUSE_MS,
    LOOK_MS,
    READS_MAX,
    RetentionWatch,
)
from broker.service.retention import ROUND_MS, RetentionRules
from broker.store import recent_sends
from broker.store.control import PutSettings
from broker.store.recent_sends import AGE_MAX_MS
from broker.store.retention import JUMP_MS
from dledger import LogServer, NodeId, NotLeaderError, Term
from dledger.raft.configuration import Configuration
from dledger_mq.message.numbers import QueueId
from dledger_mq.remoting.codes import DISK_FULL, ResponseCode
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.header import decode_command
from tests.unit.server.lone_leader import Asker, LoneLeader

MEMBERS = Configuration(tuple(NodeId(f"n{number}") for number in range(3)), (NodeId("n3"),))
SEGMENT = 4096
AGE_MS = 600_000
RULES = RetentionRules(reserved_ms=AGE_MS, is_any_hour=True)


class Bench:
    """A leader whose watch is driven by hand."""

    def __init__(self, rules: RetentionRules = RULES) -> None:
        self.leader = LoneLeader()
        self.log = self.leader.log
        self.own_percent: float | None = 20.0
        self.percents: dict[str, float] = {}
        self.hour = 12
        self.refusals: list[str] = []
        self.handed_to: list[NodeId] = []
        self.steady_ms = 0
        self.cold = set[int]()
        self.loads: list[tuple[Sequence[tuple[int, int]], Callable[[], None]]] = []
        self.read_on_the_loop = 0
        server = SimpleNamespace(
            node_id="n0",
            config=SimpleNamespace(segment_size_bytes=SEGMENT),
            roster=SimpleNamespace(in_force=MEMBERS),
            reader=self,
            is_serving=True,
        )
        self.server = server
        self.watch = RetentionWatch(
            cast("LogServer", server),
            self.leader.state,
            self.leader.commits,
            rules,
            own_percent=lambda: self.own_percent,
            follower_percents=lambda: self.percents,
            refuse_sends=self.refusals.append,
            hand_over=self.handed_to.append,
            wall_ms=lambda: self.leader.now_ms,
            local_hour=lambda at_ms: self.hour,
        )

    # The part of a reader that the watch uses.

    first_position = 0

    @property
    def applied_position(self) -> int:
        return self.log.end_position

    def entry_at(self, position: int) -> object:
        entry = self.log.entry_at(position)  # type: ignore[arg-type] # a position
        self.read_on_the_loop += entry.index in self.cold
        return entry

    def span_at(self, position: int, size_bytes: int, *, only_memory: bool = False) -> object:
        if only_memory and self.log.entry_at(position).index in self.cold:  # type: ignore[arg-type]
            return None
        return self.log.span_at(position, size_bytes)  # type: ignore[arg-type] # a position

    def load(self, places: Sequence[tuple[int, int]], done: Callable[[], None]) -> None:
        self.loads.append((places, done))

    def end_load(self, *, brings: bool = True) -> None:
        """Let the oldest read beside the loop end."""
        places, done = self.loads.pop(0)
        if brings:
            self.cold -= {self.log.entry_at(place).index for place, _ in places}  # type: ignore[arg-type]
        done()

    # What happens.

    def fill(self, segments: int, **named: str) -> None:
        """Send until the log is that many segments longer."""
        end = self.log.end_position + segments * SEGMENT
        while self.log.end_position < end:
            self.leader.send(b"x" * 900, **named, KEYS=str(self.log.end_position))
            self.leader.commit()

    def pass_ms(self, pass_ms: int, step_ms: int = ROUND_MS) -> None:
        """Let time pass, with the watch at work."""
        end_ms = self.steady_ms + pass_ms
        while self.steady_ms < end_ms:
            step_ms = min(step_ms, end_ms - self.steady_ms)
            self.steady_ms += step_ms
            self.leader.now_ms += step_ms
            self.watch.tick(self.steady_ms)
            self.leader.commit()

    def lead_anew(self) -> None:
        """Let another member lead, as a watch sees it."""
        self.server.is_serving = False
        self.pass_ms(LOOK_MS)
        self.server.is_serving = True

    @property
    def beginning(self) -> int:
        return self.leader.state.retention.position

    @property
    def min_offset(self) -> int:
        low, _ = self.leader.state.queues.min_max("T", QueueId(0))
        return low


def test_what_is_older_than_the_reserved_time_is_forgotten_in_whole_segments() -> None:
    bench = Bench()
    bench.fill(3)
    bench.pass_ms(AGE_MS - ROUND_MS)
    assert bench.beginning == 0
    bench.fill(2)
    bench.pass_ms(2 * ROUND_MS)
    assert 2 * SEGMENT < bench.beginning <= 3 * SEGMENT
    assert bench.min_offset > 0
    kept_ms = bench.leader.stored()[0].store_timestamp_ms
    assert kept_ms >= bench.leader.now_ms - AGE_MS - 2 * ROUND_MS
    assert bench.leader.state.retention.cause == "time"


def test_only_the_hours_that_were_named_count() -> None:
    bench = Bench(RetentionRules(reserved_ms=AGE_MS, delete_hours=frozenset({4})))
    bench.fill(3)
    bench.pass_ms(2 * AGE_MS)
    assert bench.beginning == 0
    bench.hour = 4
    bench.pass_ms(ROUND_MS)
    assert bench.beginning > SEGMENT


def test_an_operator_needs_no_hour_and_asks_for_some_rounds() -> None:
    bench = Bench(RetentionRules(reserved_ms=AGE_MS, delete_hours=frozenset()))
    bench.fill(2)
    bench.watch.ask()
    bench.pass_ms(2 * ROUND_MS)
    assert bench.beginning == 0, "it is too young"
    bench.pass_ms(2 * AGE_MS)
    assert bench.beginning == 0, "the operator's wish is over"
    bench.watch.ask()
    bench.pass_ms(1)
    assert bench.beginning > SEGMENT / 2
    assert bench.leader.state.retention.cause == "operator"
    assert ASKED_ROUNDS * ROUND_MS < AGE_MS


def test_a_follower_forgets_nothing_on_its_own() -> None:
    bench = Bench()
    bench.fill(3)
    bench.server.is_serving = False
    bench.pass_ms(2 * AGE_MS)
    assert bench.log.open_count == 0
    assert bench.beginning == 0


def test_a_record_that_is_lost_is_written_again() -> None:
    bench = Bench()
    bench.fill(3)
    bench.steady_ms += 2 * AGE_MS
    bench.leader.now_ms += 2 * AGE_MS
    bench.watch.tick(bench.steady_ms)
    bench.leader.commits.flush()
    assert bench.log.open_count == 1
    bench.watch.tick(bench.steady_ms + ROUND_MS)
    bench.leader.commits.flush()
    assert bench.log.open_count == 1, "one at a time"
    bench.log.lose()
    bench.leader.commits.lost(NotLeaderError(None, Term(1)))
    assert bench.beginning == 0
    bench.pass_ms(2 * ROUND_MS)
    assert bench.beginning > 0


def test_an_entry_that_cannot_be_read_now_is_waited_for() -> None:
    bench = Bench()
    bench.fill(3)
    bench.log.damaged = {entry.index for entry in bench.log.entries}
    bench.pass_ms(2 * AGE_MS)
    assert bench.beginning == 0
    bench.log.damaged = set()
    bench.pass_ms(ROUND_MS)
    assert bench.beginning > SEGMENT


# What holds it up.


def test_what_waits_is_kept_and_named_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    bench = Bench()
    bench.leader.send(b"late", DELAY="18")
    bench.leader.commit()
    waiting = bench.leader.state.schedule.oldest_waiting()
    assert waiting is not None
    bench.fill(3)
    bench.pass_ms(AGE_MS + 2 * AGE_MAX_MS)
    assert bench.beginning == 0
    held_up = bench.watch.held_up
    assert held_up is not None
    assert held_up.position == waiting
    bench.pass_ms(COMPLAINT_MS, step_ms=60_000)
    lines = [line for line in caplog.messages if line.startswith("retention-held-up")]
    assert len(lines) == 2
    assert f"by='a delayed message that is not delivered' at_position={waiting} " in lines[0]
    assert " since_s=0" in lines[0]
    assert " since_s=3600" in lines[1]


def test_once_it_is_delivered_the_rest_goes() -> None:
    bench = Bench()
    bench.leader.send(b"late", DELAY="18")
    bench.leader.commit()
    bench.fill(3)
    bench.pass_ms(2 * AGE_MS)
    assert bench.watch.held_up is not None
    bench.leader.now_ms += 7_200_000
    bench.steady_ms += 7_200_000
    bench.leader.delays.tick()
    bench.leader.commit()
    bench.pass_ms(2 * ROUND_MS)
    assert bench.watch.held_up is None
    assert bench.beginning > SEGMENT
    assert bench.leader.stored()[-1].body == b"late"


# Wrong clocks.

YEARS_MS = 14 * 365 * 86_400_000
HOUR_MS = 3_600_000


def test_a_clock_that_is_far_ahead_is_doubted_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    bench = Bench()
    bench.fill(3)
    bench.leader.now_ms += JUMP_MS + 1
    bench.pass_ms(DOUBT_MS - ROUND_MS, step_ms=60_000)
    assert bench.beginning == 0
    (line,) = [line for line in caplog.messages if line.startswith("retention-waits")]
    assert "to 3 days later at once: nothing goes by its age for 60 minutes; stop this node" in line
    bench.pass_ms(60_000 + 2 * ROUND_MS)
    assert bench.beginning > SEGMENT


def test_a_record_with_the_wrong_time_makes_every_new_leader_wait() -> None:
    bench = Bench()
    bench.fill(3)
    bench.leader.now_ms += YEARS_MS
    bench.pass_ms(DOUBT_MS // 2, step_ms=60_000)
    bench.leader.send(b"from the future")
    bench.leader.commit()
    bench.pass_ms(DOUBT_MS // 2 - 2 * 60_000, step_ms=60_000)
    assert bench.beginning == 0
    bench.lead_anew()  # its clock is as wrong
    bench.pass_ms(DOUBT_MS - 60_000, step_ms=60_000)
    assert bench.beginning == 0
    bench.pass_ms(4 * 60_000)
    assert bench.beginning > SEGMENT, "somebody had the time to stop it"


def test_nothing_goes_by_age_while_the_clock_is_behind_what_was_written_with_a_wrong_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    bench = Bench()
    bench.fill(3)
    bench.leader.now_ms += YEARS_MS
    bench.leader.send(b"from the future")
    bench.leader.commit()
    bench.leader.now_ms -= YEARS_MS
    bench.lead_anew()
    bench.watch.ask()  # not even then: no age is known
    bench.pass_ms(5 * DOUBT_MS, step_ms=60_000)
    assert bench.beginning == 0
    assert bench.watch.held_up is not None
    assert bench.watch.held_up.what.startswith(
        "this node's clock is behind the newest message, of 2037-"
    )
    assert len([line for line in caplog.messages if "set retentionBytes" in line]) == 6


def test_a_clock_that_goes_back_a_little_is_no_reason() -> None:
    bench = Bench()
    bench.fill(3)
    bench.leader.now_ms += 10 * AGE_MS
    bench.fill(1)
    bench.leader.now_ms -= BEHIND_MAX_MS
    bench.lead_anew()
    bench.steady_ms += ROUND_MS
    bench.watch.tick(bench.steady_ms)
    bench.leader.commit()
    assert bench.beginning > SEGMENT


def test_the_size_is_held_while_the_time_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_sends, "NEEDED_BYTES_MAX", SEGMENT)
    bench = Bench(RetentionRules(bytes_max=4 * SEGMENT))
    bench.leader.now_ms += YEARS_MS
    bench.fill(1, UNIQ_KEY="u")
    bench.leader.now_ms -= YEARS_MS
    for _ in range(8):
        bench.fill(1, UNIQ_KEY="u")
        bench.pass_ms(ROUND_MS)
    assert bench.log.end_position - bench.beginning < 6 * SEGMENT
    assert bench.leader.state.retention.cause == "size"


@pytest.mark.parametrize("sends", [False, True])
def test_a_leap_by_less_than_three_days_is_doubted_where_it_makes_everything_old(
    caplog: pytest.LogCaptureFixture, *, sends: bool
) -> None:
    caplog.set_level(logging.WARNING)
    bench = Bench(RetentionRules(reserved_ms=24 * HOUR_MS, is_any_hour=True))
    bench.fill(6)
    bench.pass_ms(5 * ROUND_MS)
    bench.leader.now_ms += 71 * HOUR_MS
    if sends:  # at once, so that nothing is ahead of the newest record
        bench.fill(1)
    bench.pass_ms(DOUBT_MS - ROUND_MS, step_ms=60_000)
    assert bench.beginning == 0
    first, *_ = [line for line in caplog.messages if line.startswith("retention-waits")]
    assert "to 71 hours later at once: nothing goes by its age" in first
    bench.pass_ms(3 * 60_000)
    assert bench.beginning > SEGMENT


def test_a_group_that_was_idle_is_not_doubted() -> None:
    bench = Bench(RetentionRules(reserved_ms=24 * HOUR_MS, is_any_hour=True))
    bench.fill(4)
    bench.pass_ms(23 * HOUR_MS, step_ms=60_000)
    assert bench.beginning == 0
    bench.pass_ms(HOUR_MS + 2 * 60_000, step_ms=60_000)
    assert bench.beginning > SEGMENT


def test_a_follower_that_catches_up_sees_no_leap() -> None:
    bench = Bench(RetentionRules(reserved_ms=24 * HOUR_MS, is_any_hour=True))
    bench.server.is_serving = False
    for _ in range(3):
        bench.fill(1)
        bench.pass_ms(ROUND_MS)
        bench.leader.now_ms += 30 * HOUR_MS
    bench.fill(1)
    bench.pass_ms(ROUND_MS)
    bench.server.is_serving = True
    bench.pass_ms(2 * ROUND_MS)
    assert bench.beginning > SEGMENT


# The first time.

OLD = RetentionRules(reserved_ms=72 * 3_600_000, delete_hours=frozenset(range(24)))


def old_log(segments: int = 5) -> Bench:
    """A group that has kept everything so far, most of it too old, and is led anew."""
    bench = Bench(OLD)
    bench.server.is_serving = False
    for _ in range(segments):
        bench.fill(1)
        bench.pass_ms(40 * 3_600_000, step_ms=3_600_000)
    bench.fill(2)
    bench.server.is_serving = True
    return bench


def test_what_goes_for_the_first_time_is_told_a_day_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    bench = old_log()
    bench.pass_ms(GRACE_MS - ROUND_MS, step_ms=60_000)
    assert bench.beginning == 0
    first, *again = [line for line in caplog.messages if line.startswith("retention-waits")]
    assert "nothing was ever deleted here, and 0 MiB of 0 MiB of the log are older than 72" in first
    assert "set fileReservedTime to more hours now" in first
    assert len(again) == 23
    bench.pass_ms(2 * 60_000)
    assert bench.beginning > SEGMENT
    bench.lead_anew()
    bench.fill(1)
    bench.pass_ms(40 * 3_600_000, step_ms=3_600_000)
    assert bench.watch.held_up is None, "it was told"


def test_nothing_is_said_where_nothing_is_due(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(OLD)
    bench.fill(3)
    bench.pass_ms(70 * 3_600_000, step_ms=3_600_000)
    assert bench.beginning == 0
    bench.fill(1)
    bench.pass_ms(4 * 3_600_000, step_ms=3_600_000)
    assert bench.beginning > SEGMENT, "what becomes due under a leader goes as it does"
    assert not caplog.messages


@pytest.mark.parametrize("how", ["asked", "set", "seconds"])
def test_an_operator_who_knows_is_not_waited_for(how: str) -> None:
    bench = old_log()
    bench.pass_ms(10 * ROUND_MS)
    assert bench.beginning == 0
    if how == "asked":
        bench.watch.ask()
    elif how == "set":
        bench.leader.commits.stage_control(PutSettings({"fileReservedTime": "72"}, "1.2.3.4:5"))
    else:
        bench.watch.rules = RetentionRules(reserved_ms=72 * 3_600_000, is_any_hour=True)
    bench.pass_ms(2 * ROUND_MS)
    assert bench.beginning > SEGMENT


def test_a_full_disk_does_not_wait_for_anybody() -> None:
    bench = old_log()
    bench.percents["n2"] = 80.0
    bench.pass_ms(5 * ROUND_MS)
    assert bench.beginning == 0, "fairly full: only what is old goes, and that waits"
    bench.own_percent, bench.percents = 86.0, {"n2": 82.0}
    bench.pass_ms(ROUND_MS)
    assert bench.beginning > 0


# Room on disks.


def test_a_nearly_full_disk_lets_the_oldest_go_whatever_its_age() -> None:
    bench = Bench(RetentionRules())
    bench.fill(5)
    bench.pass_ms(2 * AGE_MAX_MS)  # so that no send may be repeated
    bench.percents["n2"] = 99.0
    bench.pass_ms(10 * ROUND_MS)
    assert bench.beginning == 0, "what is on another one's disk may be anything"
    bench.own_percent = 86.0
    bench.pass_ms(ROUND_MS)
    assert SEGMENT - 2_000 < bench.beginning <= SEGMENT
    bench.pass_ms(ROUND_MS)
    first = bench.beginning
    bench.pass_ms(10 * ROUND_MS)
    assert bench.beginning <= 2 * SEGMENT, "its bytes were not given back"
    bench.first_position = bench.beginning
    bench.pass_ms(ROUND_MS)
    assert bench.beginning > first
    assert bench.leader.state.retention.cause == "disk"


@pytest.mark.parametrize(
    ("own", "others", "refuses"),
    [
        (90.0, {}, False),
        (91.0, {}, True),
        (None, {}, False),
        (20.0, {"n1": 95.0}, False),
        (20.0, {"n1": 95.0, "n2": 91.0}, True),
        (20.0, {"n1": 95.0, "n3": 99.0, "gone": 99.0}, False),
    ],
)
def test_sends_are_refused_when_the_leaders_disk_or_those_of_a_majority_are_nearly_full(
    own: float | None, others: dict[str, float], *, refuses: bool
) -> None:
    bench = Bench()
    bench.own_percent, bench.percents = own, others
    bench.pass_ms(LOOK_MS)
    assert bool(bench.refusals) is refuses
    bench.own_percent, bench.percents = 50.0, {}
    bench.pass_ms(2 * LOOK_MS)
    assert bench.refusals[1:] == ([""] if refuses else [])


def test_a_learners_full_disk_is_told_and_nothing_is_forgotten_or_refused_for_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of three voters and the learner n3: one voter's disk at the same level lets what is old go at any hour."""
    caplog.set_level(logging.WARNING)
    bench = Bench(RetentionRules(reserved_ms=AGE_MS, delete_hours=frozenset({4})))
    bench.fill(3)
    bench.percents = {"n1": 20.0, "n3": 99.0}
    bench.pass_ms(2 * AGE_MS)
    assert (bench.beginning, bench.refusals) == (0, [])
    told = [each.getMessage() for each in caplog.records if "learner-disk" in each.getMessage()]
    assert len(told) == 1
    assert "learner=n3 used_percent=99" in told[0]
    bench.percents = {"n1": 99.0, "n3": 20.0}
    bench.pass_ms(2 * ROUND_MS)
    assert bench.beginning > 0
    bench.percents["n3"] = 99.0  # full again: told again
    bench.pass_ms(LOOK_MS)
    assert sum("learner-disk" in each.getMessage() for each in caplog.records) == 2


def test_a_learner_says_so_of_itself_and_not_that_sends_are_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    bench = Bench()
    bench.server.node_id, bench.server.is_serving = "n3", False
    bench.own_percent = 99.0
    bench.pass_ms(2 * LOOK_MS)
    assert bench.refusals == []
    (told,) = [each.getMessage() for each in caplog.records]
    assert "learner-disk-nearly-full" in told
    assert "learner=n3" in told


def test_a_leader_that_leaves_still_counts_while_it_leads() -> None:
    bench = Bench()
    bench.server.node_id = "n7"
    bench.own_percent = 99.0
    bench.pass_ms(LOOK_MS)
    assert len(bench.refusals) == 1


def test_a_leader_whose_disk_is_nearly_full_hands_over_to_the_voter_with_the_most_room() -> None:
    bench = Bench()
    bench.own_percent, bench.percents = 95.0, {"n1": 60.0, "n2": 40.0, "n3": 10.0}
    bench.pass_ms(LOOK_MS)
    assert bench.handed_to == ["n2"]  # n3 has no vote
    bench.pass_ms(HAND_OVER_PAUSE_MS - 2 * LOOK_MS, LOOK_MS)
    assert bench.handed_to == ["n2"]
    bench.percents = {"n1": 60.0, "n2": 92.0}
    bench.pass_ms(3 * LOOK_MS, LOOK_MS)
    assert bench.handed_to == ["n2", "n1"]


def test_nothing_is_deleted_for_the_leaders_disk_while_another_voter_has_room() -> None:
    bench = Bench()
    bench.fill(5)
    bench.pass_ms(2 * AGE_MAX_MS)  # so that no send may be repeated
    bench.own_percent, bench.percents = 86.0, {"n1": 60.0}
    bench.pass_ms(ROUND_MS)
    assert bench.handed_to == ["n1"]
    assert bench.beginning == 0
    bench.pass_ms(3 * ROUND_MS)
    assert bench.beginning > 0, "nobody took over"


@pytest.mark.parametrize(
    ("own", "percents", "is_serving"),
    [
        (95.0, {"n1": 91.0, "n2": 99.0}, True),
        (86.0, {"n1": 81.0}, True),
        (95.0, {}, True),
        (80.0, {"n1": 10.0}, True),
        (None, {"n1": 10.0}, True),
        (95.0, {"n1": 10.0}, False),
    ],
    ids=[
        "no voter has room",
        "disks fill up together",
        "nobody has said",
        "there is room here",
        "unknown",
        "a follower",
    ],
)
def test_nobody_hands_over_for_room_without_need_or_use(
    own: float | None, percents: dict[str, float], is_serving: bool
) -> None:
    bench = Bench()
    bench.own_percent, bench.percents, bench.server.is_serving = own, percents, is_serving
    bench.pass_ms(2 * HAND_OVER_PAUSE_MS, LOOK_MS)
    assert bench.handed_to == []


def test_the_refusal_names_the_cause_and_is_that_of_a_store_that_takes_nothing() -> None:
    bench = Bench()
    bench.own_percent = 93.4
    bench.pass_ms(LOOK_MS)
    (reason,) = bench.refusals
    bench.leader.sends.refused_because = bench.leader.send_backs.refused_because = reason
    sent = bench.leader.send(b"x")
    back = bench.leader.give_back(cast("object", SimpleNamespace(physical_offset=0)), "g")  # type: ignore[arg-type] # where it stands
    for asker in (sent, back):
        code, remark = answer(asker)
        assert code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert remark.startswith(f"{DISK_FULL}service not available now: the disk is nearly full")
        assert "n0 93 % in use" in remark
    assert bench.leader.commits.staging.staged_count == 0
    bench.leader.sends.refused_because = ""
    taken = bench.leader.send(b"x")
    bench.leader.commit()
    assert answer(taken)[0] == ResponseCode.SUCCESS


def answer(asker: Asker) -> tuple[int, str]:
    decoder = FrameDecoder()
    decoder.feed(b"".join(asker.frames))
    (command,) = map(decode_command, decoder.frames())
    return command.code, command.remark or ""


def due(bench: Bench) -> None:
    """Let three segments be due, with entries of which none is in memory."""
    bench.fill(3)
    bench.cold = {entry.index for entry in bench.log.entries}
    bench.steady_ms += 2 * AGE_MS
    bench.leader.now_ms += 2 * AGE_MS
    bench.watch.tick(bench.steady_ms)


def test_what_says_how_much_is_due_is_read_beside_the_loop() -> None:
    bench = Bench()
    due(bench)
    for _ in range(3):
        bench.pass_ms(ROUND_MS)
    assert (len(bench.loads), bench.beginning) == (1, 0), (
        "one read at a time, however often it looks"
    )
    while bench.loads:
        bench.end_load()
    bench.leader.commit()
    assert 2 * SEGMENT < bench.beginning <= 3 * SEGMENT
    assert bench.read_on_the_loop == 0


def test_what_leaves_memory_at_once_is_read_on_the_loop_in_the_end() -> None:
    bench = Bench()
    due(bench)
    for _ in range(READS_MAX):
        bench.end_load(brings=False)
    bench.leader.commit()
    assert bench.loads == []
    assert bench.beginning > 2 * SEGMENT
    assert bench.read_on_the_loop


def test_nothing_goes_on_where_another_member_leads_by_then() -> None:
    bench = Bench()
    due(bench)
    bench.server.is_serving = False
    bench.end_load()
    bench.leader.commit()
    assert (bench.loads, bench.beginning) == ([], 0)


def test_who_asks_for_what_is_due_is_answered_without_a_wait() -> None:
    bench = Bench()
    due(bench)
    assert bench.watch.ask() == ""
    bench.leader.commit()
    assert bench.beginning > 0
    assert bench.read_on_the_loop
