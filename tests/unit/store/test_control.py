"""Control records: their bytes, and what becomes of those that are none."""

from __future__ import annotations

import msgpack
import pytest

from broker.store import control
from broker.store.control import (
    AdvanceSchedule,
    Command,
    CommitOffsets,
    LockQueues,
    MalformedControlError,
    OffsetCommit,
    PutTopic,
    SetDelayLevels,
    decode_control,
    encode_control,
)
from broker.store.errors import NewerVersionError
from broker.store.groups import SubscriptionGroupConfig
from broker.store.refusals import RefusalKind
from broker.store.topics import TopicConfig
from tests.unit.store.lone_broker import LoneBroker

COMMANDS: list[Command] = [
    PutTopic(TopicConfig("T", attributes={"a": "b"}), only_if_missing=True),
    control.DeleteTopic("T"),
    control.PutGroup(SubscriptionGroupConfig("g")),
    control.DeleteGroup("g", clean_offsets=True),
    control.ForbidTopic("g", "T", 2),
    CommitOffsets([OffsetCommit("g", "T", 0, 2**40)], is_forced=True),
    control.ResetOffsets("g", "T", [(0, 7), (3, 2**40)]),
    control.AdmitToReset("g", "T", 0, 2**40, "c"),
    control.RemoveOffsets("g"),
    control.PopMessages("g", "T", 0, None, 5, 9, [0, 3], [(1, 2**41)], 60_000, True, "a"),
    control.AckMessages("g", "T", 0, [(1, 2**41)]),
    control.ChangeInvisible("g", "T", 0, 1, 2**41, 1),
    control.DropPopped("g", "T", 0, [(1, 2**41)]),
    control.SetRequestMode("g", "T", True, 0),
    LockQueues("g", "c", [("T", 0)]),
    control.UnlockQueues("g", "c", [("T", 0)]),
    SetDelayLevels([1000, 5000]),
    AdvanceSchedule(3, 0, 5),
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: type(c).__name__)
def test_commands_come_back_as_they_were(command: Command) -> None:
    topic, body = encode_control(command)
    assert decode_control(topic.decode(), body) == command


def test_a_body_is_a_map_that_any_msgpack_reader_understands() -> None:
    topic, body = encode_control(CommitOffsets([OffsetCommit("g", "T", 3, 7)]))
    assert topic == b"rmq_sys_dledger_offsets"
    assert msgpack.unpackb(body) == {
        "op": "commit_offsets",
        "commits": [["g", "T", 3, 7, ""]],
        "is_forced": False,
        "v": 1,
    }


MALFORMED = [
    b"",
    b"\xc1",
    b"not msgpack",
    msgpack.packb({"op": "advance_schedule"}),
    msgpack.packb({"v": 1}),
    msgpack.packb({"v": 1, "op": "no such command"}),
    msgpack.packb({"v": "1", "op": "advance_schedule", "level": 1, "first": 0, "end": 1}),
    msgpack.packb({"v": 1, "op": "advance_schedule", "level": 0, "first": 0, "end": 1}),
    msgpack.packb({"v": 1, "op": "advance_schedule", "level": 1, "first": -1, "end": 1}),
    msgpack.packb({"v": 1, "op": "advance_schedule", "level": 1, "first": 0}),
    msgpack.packb({"v": 1, "op": "advance_schedule", "level": 1, "first": 0, "end": 1, "more": 1}),
    msgpack.packb({"v": 1, "op": "set_delay_levels", "delays_ms": []}),
    encode_control(AdvanceSchedule(1, 0, 1))[1] + b"\x00",
    encode_control(AdvanceSchedule(1, 0, 1))[1][:-1],
]


@pytest.mark.parametrize("body", MALFORMED)
def test_what_is_no_command_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedControlError):
        decode_control(control.SCHEDULE, body)


def test_a_command_counts_only_on_its_own_topic() -> None:
    with pytest.raises(MalformedControlError, match="does not belong"):
        decode_control(control.LOCKS, encode_control(SetDelayLevels([1]))[1])


def test_a_newer_version_stops_instead_of_parting_the_replicas() -> None:
    body = msgpack.packb({"v": 2, "op": "something new"})
    with pytest.raises(NewerVersionError):
        decode_control(control.TOPICS, body)
    broker = LoneBroker()
    broker.stage(control.TOPICS, 0, body)
    with pytest.raises(NewerVersionError):
        broker.commit()


def test_a_malformed_body_folds_into_a_recorded_refusal() -> None:
    broker = LoneBroker()
    at = broker.send(control.SCHEDULE, 0, b"not msgpack").physical_offset(0)
    refusal = broker.state.refusals.at(at)
    assert refusal is not None
    assert refusal.kind is RefusalKind.MALFORMED
    assert refusal.index == broker.state.applied_index
    assert broker.state.refusals.count == 1
    assert broker.state.refusals.alarm_count == 0
    assert broker.state.queues.min_max(control.SCHEDULE, 0) == (0, 1), (
        "it can be read and looked at"
    )
