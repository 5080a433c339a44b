"""Retention per topic at the leader: when it hides what, and what it leaves alone."""

from __future__ import annotations

from broker.server.watches.age_holds import DOUBT_MS
from broker.server.watches.topic_retention import TOPIC_ROUND_MS
from broker.service.retention import RetentionRules
from broker.store.control import PutTopic
from broker.store.topics import TopicConfig
from dledger_mq.message.numbers import QueueId
from tests.unit.server.test_retention_watch import YEARS_MS, Bench

HOUR_MS = 3_600_000
RULES = RetentionRules(reserved_ms=72 * HOUR_MS, is_any_hour=True)


class TopicBench(Bench):
    """A leader with the topics T, shown for an hour, and U, as long as the log has it."""

    def __init__(self, rules: RetentionRules = RULES, hours: str = "1") -> None:
        super().__init__(rules)
        self.leader.create(TopicConfig("U", 4, 4))
        self.reserve(hours)

    def reserve(self, hours: str) -> None:
        config = TopicConfig("T", 4, 4, attributes={"reserve.time": hours} if hours else {})
        self.leader.commits.stage_control(PutTopic(config))
        self.leader.commit()

    def pass_hours(self, count: int) -> None:
        """Let hours pass, with messages of both topics in each."""
        for _ in range(count):
            for topic in ("T", "U"):
                for _ in range(12):
                    self.leader.send(b"x" * 900, topic=topic, KEYS=str(self.log.end_position))
                    self.leader.commit()
            self.pass_ms(HOUR_MS, step_ms=TOPIC_ROUND_MS)

    def mins(self) -> tuple[int, int]:
        queues = self.leader.state.queues
        return queues.min_max("T", QueueId(0))[0], queues.min_max("U", QueueId(0))[0]


def test_a_topic_is_shown_for_its_own_time_and_others_as_long_as_the_log_has_them() -> None:
    bench = TopicBench()
    bench.pass_hours(6)
    low, other = bench.mins()
    assert other == 0
    assert bench.beginning == 0
    # An hour and a round, and a 64th of the log: of 72 messages those of the last hour stay, and few more.
    assert 48 <= low <= 60
    kept_ms = bench.leader.stored("T")[0].store_timestamp_ms
    assert bench.leader.now_ms - 2.5 * HOUR_MS < kept_ms


def test_without_the_attribute_or_with_a_longer_one_nothing_is_hidden() -> None:
    for hours in ("", "-1", "0", "100", "no number"):
        bench = TopicBench(hours=hours)
        bench.pass_hours(4)
        assert bench.mins() == (0, 0), hours
        assert bench.leader.state.retention.topics == {}


def test_what_was_hidden_stays_so_when_the_attribute_goes() -> None:
    bench = TopicBench()
    bench.pass_hours(4)
    low, _ = bench.mins()
    assert low > 0
    bench.reserve("")
    bench.pass_hours(2)
    assert bench.mins()[0] == low


def test_little_is_written() -> None:
    bench = TopicBench()
    bench.pass_hours(3)
    before = bench.leader.state.queues.min_max("rmq_sys_dledger_retention", QueueId(0))[1]
    assert before <= 3 * HOUR_MS // TOPIC_ROUND_MS
    bench.pass_ms(2 * TOPIC_ROUND_MS, step_ms=TOPIC_ROUND_MS)
    bench.pass_ms(TOPIC_ROUND_MS - 20_000)
    after = bench.leader.state.queues.min_max("rmq_sys_dledger_retention", QueueId(0))[1]
    assert after <= before + 3


def test_an_operator_need_not_wait_for_the_next_look() -> None:
    bench = TopicBench()
    bench.pass_hours(3)
    low, _ = bench.mins()
    bench.leader.now_ms += HOUR_MS - TOPIC_ROUND_MS
    bench.steady_ms += 10_000
    bench.watch.ask()
    bench.watch.tick(bench.steady_ms)
    bench.leader.commit()
    assert bench.mins()[0] > low


def test_a_doubtful_clock_hides_nothing() -> None:
    bench = TopicBench()
    bench.pass_hours(1)
    bench.leader.now_ms += YEARS_MS
    bench.pass_ms(HOUR_MS // 2, step_ms=TOPIC_ROUND_MS)
    assert bench.mins() == (0, 0)


def test_a_leap_that_makes_everything_old_for_a_topic_is_doubted() -> None:
    bench = TopicBench(hours="24")
    bench.pass_hours(3)
    bench.leader.now_ms += 48 * HOUR_MS
    bench.pass_ms(DOUBT_MS - TOPIC_ROUND_MS, step_ms=TOPIC_ROUND_MS)
    assert bench.mins() == (0, 0)
    bench.pass_ms(3 * TOPIC_ROUND_MS, step_ms=TOPIC_ROUND_MS)
    assert bench.mins()[0] > 0
