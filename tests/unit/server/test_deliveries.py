"""Delay levels and due times at the leader: never early, never twice, whatever fails (rules M and N)."""

from __future__ import annotations

from typing import Any

import pytest

from broker.server.deliveries.deliveries import AGAIN_MS, DELIVERIES_MAX, DELIVERY_BYTES_MAX
from broker.store.consume_queue import ConsumeQueue
from broker.store.control import DeleteTopic, DeliverTimers
from broker.store.state import BrokerState
from dledger import EntryDamagedError
from dledger.raft.entry import EntryKind
from dledger_mq.message.properties import PROPERTIES_BYTES_MAX, decode_properties
from dledger_mq.message.recall_handle import RecallHandle
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.header import RemotingCommand, decode_command
from tests.unit.server.lone_leader import Asker, LoneLeader
from tests.unit.store.lone_broker import START_MS


def answer(asker: Asker) -> RemotingCommand:
    decoder = FrameDecoder()
    decoder.feed(b"".join(asker.frames))
    (found,) = [decode_command(frame) for frame in decoder.frames()]
    return found


def handle_of(asker: Asker) -> str:
    found = answer(asker)
    assert found.code == 0, found.remark
    return found.ext["recallHandle"]


def next_leader(old: LoneLeader, *, clock_ms: int = 0) -> LoneLeader:
    """Another node takes over with the committed log, folded anew; its clock differs by `clock_ms`."""
    old.log.lose()
    old.commits.lost(None)  # type: ignore[arg-type]  # waiters here only note it
    state = BrokerState()
    old.log.term += 1
    old.log.append(b"", EntryKind.NOOP)
    old.log._state = state
    state.apply(old.log.entries)
    new = LoneLeader(state, old.log)
    new.now_ms = old.now_ms + clock_ms
    return new


WISHES = [{"DELAY": "1"}, {"TIMER_DELAY_MS": "1000"}, {"TIMER_DELIVER_MS": str(START_MS + 1000)}]


@pytest.mark.parametrize("wish", WISHES, ids=lambda wish: next(iter(wish)))
def test_m6_m7_it_comes_when_it_is_due_and_only_once(wish: dict[str, str]) -> None:
    leader = LoneLeader()
    leader.send(b"later", UNIQ_KEY="u", TAGS="TagA", **wish)
    leader.commit()
    leader.pass_until(START_MS + 999, step_ms=1)
    assert leader.stored() == []
    leader.pass_until(START_MS + 3000, step_ms=1)
    (message,) = leader.stored()
    assert message.store_timestamp_ms == START_MS + 1000
    assert (message.body, message.queue_id) == (b"later", 0)
    assert message.born_timestamp_ms == START_MS
    found = decode_properties(message.properties)
    assert (found["UNIQ_KEY"], found["TAGS"], found["WAIT"]) == ("u", "TagA", "false")
    assert leader.state.refusals.count == 0


@pytest.mark.parametrize("wish", WISHES, ids=lambda wish: next(iter(wish)))
def test_m9_a_delivery_that_was_not_committed_is_tried_again(wish: dict[str, str]) -> None:
    leader = LoneLeader()
    leader.send(b"later", **wish)
    leader.commit()
    leader.now_ms += 1000
    leader.tick()
    leader.commits.flush()
    assert leader.log.open_count == 1
    leader.tick()
    leader.commits.flush()
    assert leader.log.open_count == 1, "one batch at a time"
    leader.log.lose()
    leader.commits.staging.discard()
    leader.pass_until(leader.now_ms + 50)
    assert len(leader.stored()) == 1


@pytest.mark.parametrize("is_committed", [False, True])
@pytest.mark.parametrize("wish", WISHES, ids=lambda wish: next(iter(wish)))
def test_m13_a_new_leader_goes_on_where_the_log_says(
    wish: dict[str, str], *, is_committed: bool
) -> None:
    leader = LoneLeader()
    for body in (b"one", b"two"):
        leader.send(body, **wish)
    leader.commit()
    leader.now_ms += 1000
    leader.tick()
    leader.commits.flush()
    if is_committed:
        leader.log.commit()
    new = next_leader(leader)
    new.pass_until(new.now_ms + 2000)
    assert [message.body for message in new.stored()] == [b"one", b"two"]
    assert new.state.refusals.count == 0


def test_delayed_messages_wait_where_it_cannot_be_read_now_which_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Units of the schedule that left memory, where descriptors are short: the leader goes on."""
    leader = LoneLeader()
    leader.send(b"later", DELAY="1")
    leader.commit()
    unit = ConsumeQueue.unit

    def short(*_given: object, **_named: object) -> object:
        raise EntryDamagedError("what messages are looked up by cannot be read now")

    monkeypatch.setattr(ConsumeQueue, "unit", short)
    assert leader.delays.wait_ms() == AGAIN_MS
    leader.pass_until(START_MS + 2000)
    assert leader.stored() == []
    monkeypatch.setattr(ConsumeQueue, "unit", unit)
    leader.pass_until(START_MS + 2100)
    assert [message.body for message in leader.stored()] == [b"later"]
    leader.tick()
    assert leader.delays.wait_ms() is None


@pytest.mark.parametrize("clock_ms", [-60_000, -700, 700])
@pytest.mark.parametrize("wish", WISHES[:2], ids=lambda wish: next(iter(wish)))
def test_m6_a_new_leader_whose_clock_differs_delivers_nothing_before_its_log_time(
    wish: dict[str, str], clock_ms: int
) -> None:
    """RocketMQ's rule M6 would take the other clock for one that was set back, and deliver at once."""
    leader = LoneLeader()
    leader.send(b"later", **wish)
    leader.commit()
    new = next_leader(leader, clock_ms=clock_ms)
    new.tick()
    new.commit()
    assert new.stored() == []
    new.pass_until(START_MS + 999)
    assert new.stored() == []
    new.pass_until(START_MS + 1100)
    (message,) = new.stored()
    assert message.store_timestamp_ms >= START_MS + 1000


def test_an_entry_takes_a_bounded_number_of_messages_and_bytes() -> None:
    leader = LoneLeader()
    count = DELIVERIES_MAX + 10
    for number in range(count):
        leader.send(b"%d" % number, TIMER_DELAY_MS="10")
    large = b"x" * (DELIVERY_BYTES_MAX // 2)
    for wish in ({"TIMER_DELAY_MS": "20"}, {"DELAY": "1"}):
        for _ in range(5):
            leader.send(large, **wish)
    leader.commit()
    before = len(leader.log.entries)
    leader.pass_until(START_MS + 1000)
    assert len(leader.stored()) == count + 10
    bodies = [len(entry.body) for entry in leader.log.entries[before:]]
    assert max(bodies) < 2 * DELIVERY_BYTES_MAX
    assert len(bodies) == 7, "of at most two large ones each"


def test_m8_what_cannot_be_delivered_holds_nothing_up() -> None:
    leader = LoneLeader()
    leader.commits.staging.stage(
        b"rmq_sys_wheel_timer",
        0,
        b"no topic",
        b"TIMER_OUT_MS\x01%d\x02" % (START_MS + 5),
        born_timestamp_ms=0,
        born_host=bytes(8),
    )
    leader.send(b"good", TIMER_DELAY_MS="10")
    leader.commit()
    leader.pass_until(START_MS + 100)
    assert [message.body for message in leader.stored()] == [b"good"]
    assert leader.state.timers.count == 0


def test_a_delayed_message_leaves_room_for_its_delivery() -> None:
    leader = LoneLeader()
    for wish in WISHES:
        for size in (PROPERTIES_BYTES_MAX - 300, PROPERTIES_BYTES_MAX - 120):
            asker = leader.send(b"x", k="v" * size, **wish)
            leader.commit()
            assert answer(asker).code in (0, 13)
    leader.pass_until(START_MS + 2000)
    assert len(leader.stored()) == 3
    assert leader.state.timers.count == 0


def test_a_deleted_topic_does_not_stop_its_timers() -> None:
    leader = LoneLeader()
    leader.send(b"later", TIMER_DELAY_MS="10")
    leader.commits.stage_control(DeleteTopic("T"))
    leader.commit()
    leader.pass_until(START_MS + 100)
    assert leader.state.timers.count == 0


# Sends that come again because their answer was lost.


@pytest.mark.parametrize("wish", WISHES, ids=lambda wish: next(iter(wish)))
@pytest.mark.parametrize("passed_ms", [0, 500, 1000, 5000])
def test_a_repeated_send_is_delivered_once_whenever_it_comes(
    wish: dict[str, str], passed_ms: int
) -> None:
    leader = LoneLeader()
    first = leader.send(b"later", UNIQ_KEY="u", **wish)
    leader.commit()
    leader.pass_until(START_MS + min(passed_ms, 900))
    new = next_leader(leader)
    new.pass_until(START_MS + passed_ms)
    again = new.send(b"later", UNIQ_KEY="u", **wish)
    new.commit()
    assert answer(again).ext == answer(first).ext, "place and recall handle of the first"
    new.pass_until(START_MS + 10_000)
    assert len(new.stored()) == 1


def test_a_repeated_send_that_was_too_late_to_wait_is_stored_once() -> None:
    leader = LoneLeader()
    wish = {"TIMER_DELIVER_MS": str(START_MS - 1)}
    first = leader.send(b"now", UNIQ_KEY="u", **wish)
    leader.commit()
    new = next_leader(leader)
    again = new.send(b"now", UNIQ_KEY="u", **wish)
    new.commit()
    assert answer(again).ext == answer(first).ext
    assert len(new.stored()) == 1


# Recalls.


def test_c21_the_answer_carries_a_handle() -> None:
    leader = LoneLeader()
    asker = leader.send(b"later", UNIQ_KEY="u", TIMER_DELAY_MS="1000")
    plain = leader.send(b"now", UNIQ_KEY="v")
    leader.commit()
    assert RecallHandle.decode(handle_of(asker)) == RecallHandle(
        "T", "broker-a", START_MS + 1000, "u"
    )
    assert "recallHandle" not in answer(plain).ext


def test_n16_a_recall_that_is_on_its_way_holds_the_delivery_back() -> None:
    leader = LoneLeader()
    asker = leader.send(b"later", UNIQ_KEY="u", TIMER_DELAY_MS="100")
    other = leader.send(b"other", UNIQ_KEY="v", TIMER_DELAY_MS="100")
    leader.commit()
    recalls = [leader.recall(handle_of(asker)), leader.recall(handle_of(asker))]
    leader.commits.flush()
    leader.now_ms += 500
    leader.tick()
    leader.commit()
    assert [answer(recall).code for recall in recalls] == [0, 0]
    assert answer(recalls[0]).ext == {"msgId": "u"}
    assert [message.body for message in leader.stored()] == [b"other"]
    late = leader.recall(handle_of(other))
    leader.commit()
    assert answer(late).code == 208
    assert leader.timers._recalling == {}
    assert leader.state.refusals.count == 0


def test_n16_a_recall_after_the_delivery_is_too_late() -> None:
    leader = LoneLeader()
    asker = leader.send(b"later", TIMER_DELAY_MS="100", UNIQ_KEY="u")
    leader.commit()
    leader.now_ms += 100
    leader.tick()
    recall = leader.recall(handle_of(asker))
    leader.commit()
    assert answer(recall).code == 208
    assert len(leader.stored()) == 1


def test_a_recall_that_was_lost_with_its_leader_delays_nothing_and_asks_the_next() -> None:
    leader = LoneLeader()
    asker = leader.send(b"later", TIMER_DELAY_MS="100", UNIQ_KEY="u")
    leader.commit()
    recall = leader.recall(handle_of(asker))
    leader.commits.flush()
    leader.log.lose()
    leader.commits.staging.discard()
    assert not recall.frames
    assert len(leader.router.held) == 1
    leader.pass_until(leader.now_ms + 200)
    assert len(leader.stored()) == 1


def test_a_recall_is_remembered_over_a_failover() -> None:
    leader = LoneLeader()
    asker = leader.send(b"later", TIMER_DELAY_MS="100", UNIQ_KEY="u")
    leader.commit()
    handle = handle_of(asker)
    leader.recall(handle)
    leader.commit()
    new = next_leader(leader)
    again = new.recall(handle)
    new.commit()
    assert answer(again).code == 0
    new.pass_until(new.now_ms + 500)
    assert new.stored() == []


@pytest.mark.parametrize(
    "changes",
    [{"topic": "T2"}, {"due_ms": START_MS + 101}, {"unique_key": "v"}],
    ids=lambda changes: next(iter(changes)),
)
def test_n14_a_handle_means_exactly_one_message(changes: dict[str, Any]) -> None:
    leader = LoneLeader()
    leader.send(b"later", TIMER_DELAY_MS="100", UNIQ_KEY="u")
    leader.send(b"else", "T2", UNIQ_KEY="w")
    leader.commit()
    usual = {"topic": "T", "broker_name": "broker-a", "due_ms": START_MS + 100, "unique_key": "u"}
    handle = RecallHandle(**(usual | changes))
    recall = leader.recall(handle.encode(), handle.topic)
    leader.commit()
    assert answer(recall).code in (17, 208)
    leader.pass_until(START_MS + 200)
    assert b"later" in [message.body for message in leader.stored()]


def test_a_second_delivery_would_be_an_alarm() -> None:
    leader = LoneLeader()
    leader.send(b"later", TIMER_DELAY_MS="100", UNIQ_KEY="u")
    leader.commit()
    (due,) = leader.state.timers.due(START_MS + 100, 5)
    leader.pass_until(START_MS + 200)
    leader.commits.stage_control(DeliverTimers([(due.due_ms, due.physical_offset)]))
    leader.commit()
    assert leader.state.refusals.alarm_count == 1


@pytest.mark.parametrize("wish", WISHES, ids=lambda wish: next(iter(wish)))
def test_a_delivery_that_cannot_be_read_now_is_put_off_and_so_is_what_is_after_it(
    wish: dict[str, str],
) -> None:
    leader = LoneLeader()
    for body in (b"first", b"second", b"third"):
        leader.send(body, **wish)
        leader.commit()
    second = leader.log.entries[-2].index
    leader.log.damaged = {second}
    leader.pass_until(START_MS + 3000)
    assert [message.body for message in leader.stored()] == [b"first"]
    for task in (leader.timers, leader.delays):
        assert task.wait_ms() in {AGAIN_MS, None}, "the task looks again at its own pace"
    assert AGAIN_MS in {leader.timers.wait_ms(), leader.delays.wait_ms()}
    leader.log.damaged.clear()
    leader.pass_until(START_MS + 4000)
    assert [message.body for message in leader.stored()] == [b"first", b"second", b"third"]
    leader.pass_until(START_MS + 6000)
    assert len(leader.stored()) == 3
    assert leader.state.refusals.count == 0


def test_another_leader_delivers_what_this_one_cannot_read() -> None:
    leader = LoneLeader()
    leader.send(b"later", DELAY="1")
    leader.send(b"later", TIMER_DELAY_MS="1000")
    leader.commit()
    leader.log.damaged = {leader.log.entries[-1].index}
    leader.pass_until(START_MS + 3000)
    assert leader.stored() == []
    leader.log.damaged = set()  # the disk of the next one is whole
    new = next_leader(leader)
    new.pass_until(START_MS + 4000)
    assert [message.body for message in new.stored()] == [b"later", b"later"]


def test_a_recall_of_what_cannot_be_read_now_is_refused_before_anything_is_done() -> None:
    leader = LoneLeader()
    sent = leader.send(b"later", UNIQ_KEY="u", TIMER_DELAY_MS="1000")
    leader.commit()
    leader.log.damaged = {leader.log.entries[-1].index}
    with pytest.raises(EntryDamagedError):
        leader.recall(handle_of(sent))
    assert leader.commits.staging.staged_count == 0
    leader.log.damaged.clear()
    asked = leader.recall(handle_of(sent))
    leader.commit()
    assert answer(asked).code == 0
    leader.pass_until(START_MS + 3000)
    assert leader.stored() == []


@pytest.mark.parametrize("wish", [{"DELAY": "3"}, {"TIMER_DELAY_MS": "10000"}])
def test_a_leader_that_would_deliver_early_stops(
    wish: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = LoneLeader()
    leader.send(b"later", UNIQ_KEY="u", **wish)
    leader.commit()
    waiting = leader.state.schedule if "DELAY" in wish else leader.state.timers
    due = waiting.due
    monkeypatch.setattr(type(waiting), "due", lambda _, now_ms, limit: due(now_ms + 9000, limit))
    leader.now_ms += 2000
    with pytest.raises(AssertionError, match="would be delivered at"):
        leader.tick()


def test_a_leader_that_waited_in_vain_sleeps_once_another_one_has_delivered() -> None:
    leader = LoneLeader()
    leader.send(b"later", TIMER_DELAY_MS="1000")
    leader.commit()
    leader.log.damaged = {leader.log.entries[-1].index}
    leader.pass_until(START_MS + 1100)
    assert leader.timers.wait_ms() == AGAIN_MS
    (timer,) = leader.state.timers.due(leader.now_ms, 10)
    leader.commits.stage_control(DeliverTimers([(timer.due_ms, timer.physical_offset)]))
    leader.commit()
    leader.tick()
    assert leader.timers.wait_ms() is None
