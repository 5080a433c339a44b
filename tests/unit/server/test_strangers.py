"""Locks, offsets and prohibitions under names of which nothing exists: so many, and then no more."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.server.handlers.group_rules import GroupRules
from broker.server.handlers.locks import Locks
from broker.server.requests.request import PendingRequest
from broker.service import strangers
from broker.store.control import DeleteTopic
from broker.store.groups import SubscriptionGroupConfig
from broker.store.offsets import ConsumerOffsets
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.group_bodies import (
    LockRequest,
    decode_lock_reply,
    encode_lock_request,
)
from dledger_mq.remoting.header import RemotingCommand, decode_command
from dledger_mq.remoting.message_queue import WireQueue
from tests.unit.server.lone_leader import Asker, LoneLeader
from tests.unit.server.pending import pending
from tests.unit.server.test_offsets import Bench as OffsetBench
from tests.unit.server.test_offsets import answers_of, commit


@pytest.fixture
def leader() -> LoneLeader:
    """It has the topic T of four queues, and the group G."""
    leader = LoneLeader()
    leader.create(SubscriptionGroupConfig("G"))
    return leader


def ask(
    leader: LoneLeader,
    serve: Callable[[PendingRequest, RemotingCommand], None],
    command: RemotingCommand,
) -> RemotingCommand:
    asker = Asker()
    serve(pending(asker, command.code, command=command), command)
    leader.commit()
    decoder = FrameDecoder()
    decoder.feed(b"".join(asker.frames))
    (frame,) = decoder.frames()
    return decode_command(frame)


def lock(leader: LoneLeader, group: str, *queues: tuple[str, int], client: str = "c") -> int | None:
    """How many of these queues are granted; None if the request is refused."""
    committers = cast("Any", SimpleNamespace(has_locked=lambda *_, **__: None))
    locks = Locks(leader.commits, leader.router, leader.state, committers)
    wanted = LockRequest(
        group, client, tuple(WireQueue("broker-a", at, name) for name, at in queues)
    )
    command = RemotingCommand(code=41, opaque=9, version=409, body=encode_lock_request(wanted))
    answer = ask(leader, locks.lock, command)
    return None if answer.code else len(decode_lock_reply(answer.body))


def test_what_exists_is_locked_however_many_strangers_are(
    leader: LoneLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strangers, "LOCKS_MAX", 3)
    assert lock(leader, "made up", *(("nowhere", at) for at in range(5))) == 3
    assert lock(leader, "another", ("nowhere", 0)) == 0
    assert lock(leader, "another", ("T", 0)) == 0, "there is no such group"
    assert lock(leader, "G", ("T", 0), ("T", 3), ("T", 4)) == 2
    assert lock(leader, "made up", *(("nowhere", at) for at in range(5))) == 3, "they are renewed"
    assert len(leader.state.locks) == 5


def test_a_lock_under_a_name_that_is_too_long_is_not_granted(leader: LoneLeader) -> None:
    assert lock(leader, "g" * 256, ("T", 0)) is None
    assert lock(leader, "G", ("t" * 256, 0), ("T", 0)) == 1
    assert [key for key, _ in leader.state.locks.items()] == [("G", "T", 0)]


def test_an_offset_of_what_exists_is_kept_however_many_strangers_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = OffsetBench()
    bench.leader.create(SubscriptionGroupConfig("G9"))
    monkeypatch.setattr(strangers, "OFFSETS_MAX", 2)

    def asked(number: int, offset: int, **more: str) -> int:
        asker = commit(bench, number, commitOffset=str(offset), **more)
        bench.tick()
        bench.leader.commit()
        ((code, _),) = answers_of(asker)
        return code

    assert [asked(1, 0, topic="nowhere"), asked(1, 0, queueId="2000000000")] == [0, 0]
    assert [asked(2, 0, topic="nowhere"), asked(1, 0, queueId="7"), asked(2, 1)] == [29] * 3
    bench.note(1)
    assert [asked(1, 0, topic="nowhere"), asked(9, 1), asked(9, 0, queueId="3")] == [0] * 3
    offsets = bench.leader.state.offsets
    assert offsets.row_count == 4
    assert offsets.get("G", "T", 0) is None, "a pull is asked the same"


def test_a_leader_that_was_behind_knows_the_group_after_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = OffsetBench()
    monkeypatch.setattr(strangers, "OFFSETS_MAX", 0)
    bench.is_confirmed = False
    asker = commit(bench, 1)
    bench.leader.create(SubscriptionGroupConfig("G1"))
    bench.unconfirmed.pop()()
    bench.tick()
    bench.leader.commit()
    assert answers_of(asker) == [(0, None)]


def test_rows_of_offsets_are_counted_as_they_come_and_go() -> None:
    bench = OffsetBench()
    for number, queue_id in ((1, 0), (1, 0), (1, 1), (2, 0)):
        commit(bench, number, commitOffset="0", queueId=str(queue_id))
        bench.tick()
        bench.leader.commit()
    offsets = bench.leader.state.offsets
    restored = ConsumerOffsets(lambda *_: 0)
    restored.load(offsets.dump())
    assert (offsets.row_count, restored.row_count) == (3, 3)
    bench.leader.commits.stage_control(DeleteTopic("T"))
    bench.leader.commit()
    assert offsets.row_count == 0


def test_a_topic_that_exists_can_be_forbidden_however_many_others_are(
    leader: LoneLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strangers, "PROHIBITIONS_MAX", 1)
    rules = GroupRules(leader.state, leader.commits, leader.router)

    def forbid(topic: str, readable: str = "false") -> int:
        ext = {"group": "G", "topic": topic, "readable": readable}
        command = RemotingCommand(code=353, opaque=9, ext=ext, version=409)
        return ask(leader, rules.forbid, command).code

    assert [forbid("first"), forbid("second"), forbid("T"), forbid("first")] == [0, 17, 0, 0]
    assert [forbid("second", "true"), forbid("first", "true"), forbid("t" * 256)] == [0, 0, 17]
    assert [each[1] for each in leader.state.groups.forbidden()] == ["T"]
