"""What becomes of a store: what goes over, what is left out and why, and what keeps it from being imported."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from broker.importing.errors import SourceError
from broker.importing.plan import ImportPlan, PlannedQueue, make_plan
from broker.importing.survey import Source, survey
from dledger_mq.message.numbers import QueueId
from dledger_mq.message.sys_flags import INNER_BATCH, TRANSACTION_COMMIT, TRANSACTION_PREPARED
from tests.unit.importing.source_store import STORED_MS, SourceStore

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
OP = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
SCHEDULE = "SCHEDULE_TOPIC_XXXX"
TIMER = "rmq_sys_wheel_timer"
REVIVE = "rmq_sys_REVIVE_LOG_c"


@pytest.fixture
def store(tmp_path: Path) -> SourceStore:
    store = SourceStore(tmp_path / "store")
    store.topic("T", 2)
    return store


def plan_of(
    store: SourceStore, *leave_out: str, after_crash: bool = False, until: int | None = None
) -> ImportPlan:
    return make_plan(
        store.survey(until),
        leave_out=leave_out,
        after_crash=after_crash,
        is_until=until is not None,
    )


def queue(plan: ImportPlan, topic: str, queue_id: int = 0) -> PlannedQueue:
    return plan.queues[topic.encode(), QueueId(queue_id)]


def bounds(plan: ImportPlan, topic: str, queue_id: int = 0) -> tuple[int, int, int]:
    planned = queue(plan, topic, queue_id)
    return planned.min_offset, planned.max_offset, planned.message_count


def whats(plan: ImportPlan) -> list[str]:
    return [problem.what for problem in plan.problems]


def left_out(plan: ImportPlan) -> dict[str, int]:
    return {each.what: each.count for each in plan.left_out}


def test_queues_keep_their_offsets(store: SourceStore) -> None:
    for offset in range(40, 45):
        store.put("T", offset=offset)
    store.put("T", queue=1)
    plan = plan_of(store)
    assert plan.problems == []
    assert bounds(plan, "T", 0) == (40, 45, 5)
    assert bounds(plan, "T", 1) == (0, 1, 1)
    assert plan.message_count == 6
    assert plan.position > store.place


def test_a_queue_without_messages_goes_on_where_it_was(store: SourceStore) -> None:
    store.put("T", queue=1)
    store.queue_file("T", 0, 70, [(10, 100)] * 3)
    assert bounds(plan_of(store), "T", 0) == (73, 73, 0)


def test_messages_of_deleted_topics_are_left_out(store: SourceStore) -> None:
    store.put("gone")
    for _ in range(3):
        store.put("T")
    store.put("T", offset=0)
    store.put("T")
    plan = plan_of(store)
    assert plan.problems == []
    assert bounds(plan, "T") == (0, 2, 2)
    assert left_out(plan) == {"gone": 1, "T": 3}


def test_a_gap_is_a_problem_unless_the_topic_is_left_out(store: SourceStore) -> None:
    store.put("T")
    place = store.put("T", offset=5)
    store.put("U")
    store.topic("U")
    plan = plan_of(store)
    assert whats(plan) == ["T"]
    assert f"queue offset 5 follows 0 at physical offset {place}" in plan.problems[0].why
    plan = plan_of(store, "T")
    assert plan.problems == []
    assert [key[0] for key in plan.queues] == [b"U"]
    assert [topic.name for topic in plan.topics] == ["U"]
    assert left_out(plan) == {"T": 2}


def test_offsets_that_go_back_are_a_problem(store: SourceStore) -> None:
    for offset in (3, 4, 5, 4):
        store.put("T", offset=offset)
    assert whats(plan_of(store)) == ["T"]


def test_a_log_that_ends_before_its_consume_queues(store: SourceStore) -> None:
    store.put("T")
    store.queue_file("T", 0, 0, [(0, 96), (96, 96)])
    plan = plan_of(store)
    assert whats(plan) == ["commit log"]
    assert "up to 192" in plan.problems[0].why
    end = store.place
    assert f"--until {end}" in plan.problems[0].remedy
    plan = plan_of(store, until=end)
    assert (plan.problems, bounds(plan, "T")) == ([], (0, 1, 1))


def test_what_is_no_record_behind_the_end_is_a_problem_until_somebody_says_where_it_ends(
    store: SourceStore,
) -> None:
    store.put("T")
    end = store.place
    store.write(b"\1\2\3\4\5\6\7\x08")
    plan = plan_of(store)
    assert whats(plan) == ["commit log"]
    assert f"--until {end}" in plan.problems[0].remedy
    assert plan_of(store, until=end).problems == []
    with pytest.raises(SourceError, match=f"the nearest ends at {end}"):
        plan_of(store, until=end + 1)
    with pytest.raises(SourceError, match=f"the nearest ends at {end}"):
        plan_of(store, until=end - 1)


def test_a_broker_that_crashed(store: SourceStore) -> None:
    store.put("T")
    (store.folder / "abort").write_text("1")
    assert whats(plan_of(store)) == ["abort"]
    plan = plan_of(store, after_crash=True)
    assert plan.problems == []
    assert len(plan.warnings) == 1


def test_delayed_messages_that_wait_go_over_and_delivered_ones_do_not(store: SourceStore) -> None:
    for level, count in ((1, 3), (18, 2)):
        for _ in range(count):
            store.put(SCHEDULE, queue=level - 1, DELAY=str(level), REAL_TOPIC="T", REAL_QID="0")
    store.delays = {"1": 2, "18": 2, "3": 7}
    store.queue_file(SCHEDULE, 2, 5, [(1, 91)] * 2)
    plan = plan_of(store)
    assert bounds(plan, SCHEDULE, 0) == (2, 3, 1)
    assert bounds(plan, SCHEDULE, 17) == (2, 2, 0)
    assert bounds(plan, SCHEDULE, 2) == (7, 7, 0)
    assert sum(left_out(plan).values()) == 4
    assert queue(plan, SCHEDULE, 17).message_bytes == 0
    without = plan_of(store, SCHEDULE)
    assert bounds(without, SCHEDULE, 0) == (3, 3, 0)
    assert queue(without, SCHEDULE, 0).message_bytes == 0
    one_bytes = queue(plan, SCHEDULE, 0).message_bytes
    store.delays = {"1": 0, "18": 2, "3": 7}
    assert queue(plan_of(store), SCHEDULE, 0).message_bytes == 3 * one_bytes > 0


def test_other_delay_levels_than_the_usual_ones_have_to_be_told(store: SourceStore) -> None:
    for _ in range(2):
        store.put(SCHEDULE, queue=0, DELAY="1", REAL_TOPIC="T", REAL_QID="0")
    due_ms = store.stored_ms + 20_000
    store.queue_file(SCHEDULE, 0, 0, [(0, 91), (100, 91)], tag=due_ms)
    (problem,) = plan_of(store).problems
    assert "waited 20000 ms in RocketMQ, and would wait 1000 ms" in problem.why
    found = store.survey()
    for delays_ms, count in (([20_000, 5], 0), ([5, 20_000], 1)):
        plan = make_plan(
            found, leave_out=(), after_crash=False, is_until=False, delays_ms=delays_ms
        )
        assert len(plan.problems) == count
    store.delays = {"1": 2}  # what is delivered waits no more
    assert plan_of(store).problems == []


def half(store: SourceStore, key: str, **more: str) -> int:
    return store.put(HALF, REAL_TOPIC="T", REAL_QID="0", UNIQ_KEY=key, TRAN_MSG="true", **more)


def test_open_transactions_are_those_that_nothing_ends(store: SourceStore) -> None:
    half(store, "before")
    half(store, "op")
    place = half(store, "committed")
    half(store, "open")
    half(store, "checked")
    half(store, "checked", TRANSACTION_CHECK_TIMES="1")
    store.put(OP, b"1,", TAGS="d")
    store.put("T", sys_flag=TRANSACTION_COMMIT, prepared=place, UNIQ_KEY="committed")
    store.offsets[f"{HALF}@CID_RMQ_SYS_TRANS"] = {"0": 1}
    plan = plan_of(store)
    assert plan.half_count == 2
    assert left_out(plan) == {HALF: 4, OP: 1}
    assert plan.offsets == []
    assert plan_of(store, HALF).half_count == 0


def test_one_message_sent_twice_is_two_transactions(store: SourceStore) -> None:
    half(store, "same")
    half(store, "same")
    assert plan_of(store).half_count == 2
    half(store, "same", TRANSACTION_CHECK_TIMES="1")
    assert plan_of(store).half_count == 2
    half(store, "same", TRAN_PREPARED_QUEUE_OFFSET="1")
    plan = plan_of(store)
    assert (plan.half_count, left_out(plan)) == (2, {HALF: 2})
    store.put(OP, b"2,", TAGS="d")
    assert plan_of(store).half_count == 1


def test_a_check_of_a_transaction_that_is_done_ends_no_other(store: SourceStore) -> None:
    half(store, "same")
    half(store, "same")
    half(store, "same", TRANSACTION_CHECK_TIMES="1")  # of the first one
    store.offsets[f"{HALF}@CID_RMQ_SYS_TRANS"] = {"0": 1}
    assert plan_of(store).half_count == 2


def test_op_messages_of_release_4_have_no_comma(store: SourceStore) -> None:
    half(store, "a")
    half(store, "b")
    store.put(OP, b"0", TAGS="d")
    assert plan_of(store).half_count == 1


def test_prepared_messages_of_old_brokers_are_shown_by_no_queue(store: SourceStore) -> None:
    store.put("T", sys_flag=TRANSACTION_PREPARED, offset=0)
    store.put("T", offset=0)
    plan = plan_of(store)
    assert plan.problems == []
    assert bounds(plan, "T") == (0, 1, 1)
    assert left_out(plan) == {"half messages from before 4.3": 1}


def timer(store: SourceStore, key: str, due_ms: int, **more: str) -> None:
    store.put(TIMER, TIMER_OUT_MS=str(due_ms), REAL_TOPIC="T", REAL_QID="0", UNIQ_KEY=key, **more)


def test_timers_that_wait_are_those_that_are_due_later_the_newest_of_each(
    store: SourceStore,
) -> None:
    timer(store, "delivered", STORED_MS)
    timer(store, "waits", STORED_MS + 9000)
    timer(store, "rolled", STORED_MS + 9000)
    timer(store, "rolled", STORED_MS + 9000, TIMER_ROLL_TIMES="1")
    timer(store, "recalled", STORED_MS + 9000)
    timer(store, "recall", STORED_MS + 9000, TIMER_DEL_UNIQKEY="T+recalled")
    timer(store, "late", STORED_MS)
    store.save()
    progress = struct.pack(">qqq", STORED_MS + 5000, 0, 6)
    (store.folder / "config" / "timercheck").write_bytes(progress)
    plan = plan_of(store)
    assert plan.timer_count == 3
    assert left_out(plan) == {TIMER: 4}
    assert plan_of(store, TIMER).timer_count == 0


def test_one_message_sent_twice_is_two_timers(store: SourceStore) -> None:
    timer(store, "same", STORED_MS + 9000)
    timer(store, "same", STORED_MS + 9000)
    timer(store, "same", STORED_MS + 20_000)
    assert plan_of(store).timer_count == 3
    timer(store, "same", STORED_MS + 20_000, TIMER_ROLL_TIMES="1")
    assert plan_of(store).timer_count == 3
    timer(store, "recall", STORED_MS + 9000, TIMER_DEL_UNIQKEY="T+same")
    assert plan_of(store).timer_count == 1  # a recall and its message meet when they are due


def delayed(store: SourceStore) -> None:
    store.put(SCHEDULE, queue=0, DELAY="1", REAL_TOPIC="T", REAL_QID="0")


def without(store: SourceStore, name: str, *leave_out: str) -> ImportPlan:
    store.save()
    (store.folder / "config" / name).unlink()
    source = Source(store.folder, [store.log])
    found = survey(source, lambda _done, _total: None)
    return make_plan(found, leave_out=leave_out, after_crash=False, is_until=False)


@pytest.mark.parametrize("name", ["consumerOffset.json", "delayOffset.json"])
def test_a_table_that_is_missing_is_a_problem_if_it_would_say_something(
    store: SourceStore, name: str
) -> None:
    assert without(store_with_a_file(store), name).problems == []
    delayed(store)
    assert whats(without(store, name)) == [name]
    plan = without(store, name, name)
    assert (plan.problems, left_out(plan)) == ([], {name: 1})


def store_with_a_file(store: SourceStore) -> SourceStore:
    store.write(bytes(8))
    store.place -= 8
    return store


def test_groups_that_are_missing_are_told(store: SourceStore) -> None:
    store.put("T")
    plan = without(store, "subscriptionGroup.json")
    assert plan.problems == []
    assert [text.partition(":")[0] for text in plan.warnings] == [
        "subscriptionGroup.json is missing"
    ]


def test_tables_read_from_their_copies_are_told_and_topics_are_a_problem(
    store: SourceStore,
) -> None:
    store.put("T")
    config = store.save() / "config"
    for name in ("topics.json", "subscriptionGroup.json"):
        (config / name).rename(config / f"{name}.bak")
    (config / "topics.json").write_text("{")
    found = survey(Source(store.folder, [store.log]), lambda _done, _total: None)
    for leave_out, problems in (((), ["topics.json"]), (("topics.json",), [])):
        plan = make_plan(found, leave_out=leave_out, after_crash=False, is_until=False)
        assert whats(plan) == problems
        assert [text.partition(":")[0] for text in plan.warnings] == ["subscriptionGroup.json"]
        assert [topic.name for topic in plan.topics] == ["T"]


@pytest.mark.parametrize("is_timed", [False, True])
def test_what_pop_has_in_flight_is_a_problem(store: SourceStore, is_timed: bool) -> None:
    if is_timed:
        store.put(TIMER, TIMER_OUT_MS=str(STORED_MS + 9000), REAL_TOPIC=REVIVE, REAL_QID="0")
    else:
        for _ in range(3):
            store.put(REVIVE, TAGS="ck")
        store.offsets[f"{REVIVE}@CID_RMQ_SYS_REVIVE_GROUP"] = {"0": 2}
    plan = plan_of(store)
    assert whats(plan) == ["POP"]
    assert plan.problems[0].why.startswith("1 notes")
    assert plan_of(store, "POP").problems == []


def test_pop_that_has_worked_everything_off_is_none(store: SourceStore) -> None:
    store.put(REVIVE, TAGS="ck")
    store.offsets[f"{REVIVE}@CID_RMQ_SYS_REVIVE_GROUP"] = {"0": 1}
    plan = plan_of(store)
    assert plan.problems == []
    assert left_out(plan) == {REVIVE: 1}


def test_light_queues_are_a_problem(store: SourceStore) -> None:
    store.put("T", INNER_MULTI_DISPATCH="%LMQ%a,%LMQ%b")
    assert whats(plan_of(store)) == ["%LMQ%"]
    plan = plan_of(store, "%LMQ%")
    assert (plan.problems, bounds(plan, "T")) == ([], (0, 1, 1))


@pytest.mark.parametrize(
    ("name", "more", "why"),
    [
        ("T", {"attributes": {"queue.type": "BatchCQ"}}, "BatchCQ"),
        ("T", {"attributes": {"cleanup.policy": "COMPACTION"}}, "COMPACTION"),
        ("T", {"perm": 99}, "out of range"),
        ("rmq_sys_dledger_topics", {}, "topic of ours"),
        ("a b", {}, "illegal characters"),
    ],
)
def test_topics_that_cannot_be_here(
    store: SourceStore, name: str, more: dict[str, object], why: str
) -> None:
    store.put("T" if name != "T" else "U")
    store.topic(name, 1, **more)
    plan = plan_of(store)
    assert whats(plan) == [name]
    assert why in plan.problems[0].why
    assert plan_of(store, name).problems == []


def test_batches_in_one_record_are_a_problem_of_their_topic(store: SourceStore) -> None:
    store.put("T", sys_flag=INNER_BATCH, INNER_NUM="3")
    assert whats(plan_of(store)) == ["T"]


def test_groups_that_cannot_be_here(store: SourceStore) -> None:
    store.put("T")
    store.groups = {name: {"groupName": name} for name in ("good", "g" * 130)}
    plan = plan_of(store)
    assert whats(plan) == ["g" * 130]
    plan = plan_of(store, "g" * 130)
    assert (plan.problems, [group.name for group in plan.groups]) == ([], ["good"])


def test_static_topics_are_a_problem(store: SourceStore) -> None:
    store.put("T")
    store.save()
    path = store.folder / "config" / "topicQueueMapping.json"
    path.write_text('{"topicQueueMappingInfoMap":{"T":{}}}')
    assert whats(plan_of(store)) == ["topicQueueMapping.json"]
    assert plan_of(store, "topicQueueMapping.json").problems == []


def test_offsets_go_over_with_their_topics(store: SourceStore) -> None:
    store.put("T")
    store.offsets = {
        "T@g": {"0": 1, "1": 0},
        "gone@g": {"0": 4},
        "T@h": {"0": -1, "-1": 0, str(2**31): 0},
    }
    plan = plan_of(store)
    assert plan.offsets == [("T", "g", 0, 1), ("T", "g", 1, 0)]
    assert left_out(plan) == {"offsets in gone": 1, "offsets in T": 3}


def test_no_consumer_misses_what_is_sent_after_the_end_of_a_log_that_was_cut(
    store: SourceStore,
) -> None:
    store.put("T")
    end = store.place
    store.put("T")
    store.offsets = {"T@g": {"0": 2, "1": 99}, "T@h": {"0": 1}}
    plan = plan_of(store, until=end)
    assert (plan.problems, bounds(plan, "T")) == ([], (0, 1, 1))
    assert plan.offsets == [("T", "g", 0, 1), ("T", "g", 1, 0), ("T", "h", 0, 1)]
    assert [text.partition(":")[0] for text in plan.warnings] == [
        "2 consumer offsets in T are beyond the end of their queues"
    ]


def test_messages_that_no_consume_queue_shows_are_a_problem(store: SourceStore) -> None:
    for _ in range(3):
        store.put("T", queue=1)
    place = store.put("T", offset=0)
    plan = plan_of(store)
    assert (plan.problems, bounds(plan, "T", 1)) == ([], (0, 3, 3))  # RocketMQ makes them anew
    store.queue_file("T", 0, 0, [(place, store.place - place)])
    plan = plan_of(store)
    assert whats(plan) == ["consumequeue/T"]
    assert "3 messages of queue 1" in plan.problems[0].why
    plan = plan_of(store, "consumequeue/T")
    assert plan.problems == []
    assert bounds(plan, "T") == (0, 1, 1)
    assert [*plan.queues] == [(b"T", 0)]
    assert left_out(plan) == {"consumequeue/T": 3}
    assert plan_of(store, "T").problems == []


def test_messages_to_which_rocketmq_had_not_come_yet_are_shown(store: SourceStore) -> None:
    place = store.put("T")
    store.queue_file("T", 0, 0, [(place, store.place - place)])
    store.put("T", queue=1)
    plan = plan_of(store)
    assert (plan.problems, bounds(plan, "T", 1)) == ([], (0, 1, 1))


def test_names_of_folders_that_are_no_text_are_of_no_topic(store: SourceStore) -> None:
    store.put("T")
    name = os.fsdecode(b"\xff\xfe")
    (store.folder / "consumequeue" / name / "0").mkdir(parents=True)
    assert plan_of(store).problems == []


def test_timers_without_their_progress_are_a_problem(store: SourceStore) -> None:
    store.put("T")
    assert without(store, "timercheck").problems == []
    timer(store, "one", STORED_MS + 9000)
    assert whats(without(store, "timercheck")) == ["timercheck"]
    plan = without(store, "timercheck", "timercheck")
    assert (plan.problems, plan.timer_count) == ([], 1)


def test_stores_of_other_kinds_are_refused(store: SourceStore) -> None:
    store.put("T")
    (store.folder / "consumequeue_rocksdb").mkdir()
    with pytest.raises(SourceError, match="cannot be imported"):
        store.survey()


def test_progress_is_told(store: SourceStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.importing.survey.PROGRESS_MESSAGES", 1)
    for _ in range(3):
        store.put("T")
    told: list[tuple[int, int]] = []
    paths: Sequence[Path] = [store.log]
    survey(Source(store.save(), paths), lambda done, total: told.append((done, total)))
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1] == (2048, 2048)
    assert len(told) == 4
