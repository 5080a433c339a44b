"""Random histories of a broker, as scripts that any replica can replay."""

from __future__ import annotations

from hypothesis import strategies as st

from broker.store import control
from broker.store.control import Command, OffsetCommit
from broker.store.groups import SubscriptionGroupConfig
from broker.store.topics import TopicConfig
from dledger.raft.entry import Entry
from tests.unit.store.lone_broker import LoneBroker

TOPICS = ["A", "B", "%RETRY%g", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"]
topics = st.sampled_from(TOPICS)
groups = st.sampled_from(["g", "h"])
queue_ids = st.integers(0, 2)
offsets = st.integers(0, 12)
queues = st.lists(st.tuples(topics, queue_ids), max_size=3)

commands: st.SearchStrategy[Command] = st.one_of(
    st.builds(
        control.PutTopic,
        st.builds(TopicConfig, topics | st.just("a/b"), queue_ids, queue_ids),
        st.booleans(),
    ),
    st.builds(control.DeleteTopic, topics),
    st.builds(control.PutGroup, st.builds(SubscriptionGroupConfig, groups), st.booleans()),
    st.builds(control.DeleteGroup, groups, st.booleans()),
    st.builds(control.ForbidTopic, groups, topics, st.integers(0, 2)),
    st.builds(
        control.CommitOffsets,
        st.lists(
            st.builds(
                OffsetCommit, groups, topics, queue_ids, offsets, st.sampled_from(["", "c1", "c2"])
            ),
            max_size=4,
        ),
        st.booleans(),
    ),
    st.builds(
        control.ResetOffsets,
        groups,
        topics,
        st.lists(st.tuples(queue_ids, offsets), min_size=1, max_size=2),
    ),
    st.builds(
        control.AdmitToReset,
        groups,
        topics,
        queue_ids,
        st.sampled_from([48, 200, 300]),
        st.sampled_from(["", "c1", "c2"]),
    ),
    st.builds(control.RemoveOffsets, groups, st.none() | topics),
    st.builds(control.LockQueues, groups, st.sampled_from(["c1", "c2"]), queues),
    st.builds(control.UnlockQueues, groups, st.sampled_from(["c1", "c2"]), queues),
    st.builds(control.SetDelayLevels, st.lists(st.integers(0, 5000), min_size=1, max_size=3)),
    st.builds(control.AdvanceSchedule, st.integers(1, 3), offsets, offsets),
    st.builds(control.ResumeTransaction, offsets, st.integers(0, 2**40)),
    st.builds(control.CheckTransactions, st.lists(offsets, max_size=3), st.integers(0, 2**40)),
    st.builds(
        control.DeliverTimers,
        st.lists(st.tuples(st.integers(0, 3), st.sampled_from([48, 200, 300])), max_size=2),
    ),
    st.builds(
        control.RecallTimer,
        st.integers(0, 3),
        st.just(b"12345678"),
        st.lists(st.sampled_from([48, 200, 300]), max_size=2),
    ),
    st.builds(
        control.TakeRows,
        st.sampled_from(["s", "t"]),
        st.integers(0, 2),
        st.lists(st.integers(0, 9), max_size=4).map(
            lambda some: b"".join(n.to_bytes(8, "big") for n in some)
        ),
    ),
)
malformed: st.SearchStrategy[tuple[str, int, bytes, dict[str, str]]] = st.tuples(
    st.sampled_from([control.TOPICS, control.OFFSETS]),
    st.just(0),
    st.binary(max_size=6),
    st.just({}),
)
messages = st.tuples(
    topics,
    queue_ids,
    st.binary(max_size=40),
    st.fixed_dictionaries(
        {},
        optional={
            "TAGS": st.sampled_from(["TagA", "TagB"]),
            "KEYS": st.sampled_from(["k1", "k1 k2", "k3"]),
            "UNIQ_KEY": st.sampled_from(["u1", "u2"]),
            "TIMER_OUT_MS": st.sampled_from(["0", "1", "2", "3", "x"]),
            "DELAY": st.sampled_from(["1", "2", "99"]),
        },
    ),
)
halves = st.tuples(
    st.just("RMQ_SYS_TRANS_HALF_TOPIC"),
    st.integers(0, 1),
    st.binary(max_size=9),
    st.fixed_dictionaries(
        {},
        optional={
            "REAL_TOPIC": topics,
            "__transactionId__": st.sampled_from(["u1", "u2"]),
            "CHECK_IMMUNITY_TIME_IN_SECONDS": st.sampled_from(["1", "30", "-1"]),
        },
    ),
)
ends = st.tuples(
    st.just("RMQ_SYS_TRANS_OP_HALF_TOPIC"),
    st.just(0),
    st.lists(offsets, min_size=1, max_size=2).map(lambda some: b"".join(b"%d," % n for n in some)),
    st.fixed_dictionaries({"TRAN_VERDICT": st.sampled_from(["COMMIT", "ROLLBACK", "GIVE_UP"])}),
)
entries = st.tuples(
    st.lists(messages | commands | malformed | halves | ends, max_size=6), st.integers(0, 40_000)
)
histories = st.lists(entries, max_size=8)

History = list[tuple[list[object], int]]


def committed(history: History, *, parses: bool = True) -> LoneBroker:
    """Stage, commit and apply a history."""
    broker = LoneBroker(parses=parses)
    for steps, pause_ms in history:
        commit_steps(broker, steps, pause_ms)
    return broker


def commit_steps(broker: LoneBroker, steps: list[object], pause_ms: int) -> None:
    """Stage and commit one entry of a history."""
    broker.now_ms += pause_ms
    for step in steps:
        if isinstance(step, tuple):
            topic, queue_id, body, named = step
            broker.stage(topic, queue_id, body, **named)
        else:
            broker.staging.stage_control(step, broker.now_ms)  # type: ignore[arg-type] # a Command
    broker.commit()


def log_of(history: History) -> list[Entry]:
    return committed(history).log.entries
