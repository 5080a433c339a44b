"""What was read of a topic, or gathered for it, does not count for the one that is made anew under its name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.server.handlers.offset_tools import OffsetTools
from broker.server.handlers.resets import ResetRequests
from broker.store.control import DeleteGroup, DeleteTopic, PutTopic
from broker.store.groups import SubscriptionGroupConfig
from broker.store.topics import TopicConfig
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.header import RemotingCommand
from tests.unit.server.lone_leader import Asker
from tests.unit.server.pending import pending
from tests.unit.server.test_offsets import ENDS_AT, Bench, answers_of, commit
from tests.unit.server.test_pops import Bench as PopBench

AGAIN = 3
"""Messages that are sent to the topic that is made anew."""


@pytest.fixture
def bench() -> Bench:
    return Bench()


def delete(bench: Bench | PopBench) -> None:
    """Stage the deletion, and all that makes the topic anew behind it."""
    commits = bench.leader.commits
    commits.stage_control(DeleteTopic("T"))
    commits.stage_control(PutTopic(TopicConfig("T", 1, 1)))
    for number in range(AGAIN):
        place = commits.staging.stage(
            b"T", 0, b"new %d" % number, b"", born_timestamp_ms=1, born_host=b"\x7f\0\0\1\0\0\0\1"
        )
    commits.wait(place, SimpleNamespace(committed=lambda *_: None, failed=lambda _: None))


def resets_of(bench: Bench) -> ResetRequests:
    return ResetRequests(
        cast("Any", bench.leader.log),
        bench.leader.state,
        bench.leader.commits,
        bench.router,
        link=cast("Any", SimpleNamespace(register=lambda *_: None)),
        members=cast(
            "Any",
            SimpleNamespace(
                consumer_origins=lambda _group: [],
                exchange=SimpleNamespace(notify_nodes=lambda *_: None),
            ),
        ),
        committers=cast("Any", None),
        broker_name="broker-a",
    )


def reset(bench: Bench, resets: ResetRequests) -> Asker:
    asker = Asker()
    ext = {"topic": "T", "group": "G1", "timestamp": "-1"}
    resets.reset(pending(asker, 222), RemotingCommand(code=222, opaque=9, ext=ext, version=409))
    return asker


def test_what_gathered_before_a_deletion_is_deleted_with_the_topic(bench: Bench) -> None:
    bench.note(2)
    asker = commit(bench, 1, commitOffset="2")
    delete(bench)
    bench.tick()
    bench.leader.commit()
    bench.tick()
    bench.leader.commit()
    assert answers_of(asker) == [(0, None)]
    assert bench.leader.state.queues.end("T", 0) == AGAIN
    assert bench.leader.state.offsets.groups_of("T") == []


def test_a_commit_behind_a_deletion_on_its_way_is_beyond_the_end(bench: Bench) -> None:
    delete(bench)
    bench.leader.commits.flush()
    bench.note(2)
    asker = commit(bench, 1, commitOffset="2")
    zero = commit(bench, 2, commitOffset="0")
    bench.tick()
    bench.leader.commit()
    assert answers_of(asker) == [(29, None)]
    assert answers_of(zero) == [(0, None)]
    assert bench.leader.state.offsets.groups_of("T") == ["G2"]
    assert answers_of(commit(bench, 1, commitOffset=str(AGAIN))) == [], "it is taken in again"


def test_a_reset_behind_a_deletion_on_its_way_finds_no_topic(bench: Bench) -> None:
    commit(bench, 1, commitOffset="2")
    bench.tick()
    bench.leader.commit()
    delete(bench)
    asker = reset(bench, resets_of(bench))
    bench.leader.commit()
    assert answers_of(asker) == [(ResponseCode.TOPIC_NOT_EXIST, None)]
    assert bench.leader.state.offsets.groups_of("T") == []


def test_a_reset_that_has_looked_at_the_topic_of_before_begins_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.server.handlers.resets.QUEUES_PER_STEP", 1)
    commit(bench, 1, commitOffset="2")
    bench.tick()
    bench.leader.commit()
    resets = resets_of(bench)
    asker = reset(bench, resets)
    delete(bench)
    bench.leader.commit()
    commit(bench, 1, commitOffset="1")
    bench.tick()
    bench.leader.commit()
    for _ in range(5):
        resets.tick()
    bench.leader.commit()
    assert [code for code, _ in answers_of(asker)] == [ResponseCode.SUCCESS]
    assert bench.leader.state.offsets.of("G1", "T") == {0: AGAIN}
    assert ENDS_AT > AGAIN


def test_no_offsets_are_copied_behind_a_deletion_on_its_way(bench: Bench) -> None:
    commit(bench, 1, commitOffset="2")
    bench.tick()
    bench.leader.commit()
    delete(bench)
    tools = OffsetTools(
        bench.leader.state, bench.leader.commits, bench.router, members=cast("Any", None)
    )
    asker = Asker()
    ext = {"srcGroup": "G1", "destGroup": "G2", "topic": "T"}
    tools.clone(pending(asker, 314), RemotingCommand(code=314, opaque=9, ext=ext, version=409))
    bench.leader.commit()
    assert bench.leader.state.offsets.groups_of("T") == []


def test_what_gathered_before_a_group_was_deleted_is_deleted_with_it(bench: Bench) -> None:
    bench.leader.create(SubscriptionGroupConfig("G"))
    bench.note(2)
    bench.leader.commits.stage_control(DeleteGroup("G", clean_offsets=True))
    bench.tick()
    bench.leader.commit()
    assert bench.leader.state.offsets.groups_of("T") == []


def test_a_pop_behind_a_deletion_on_its_way_gives_what_the_new_topic_has() -> None:
    bench = PopBench()
    bench.send(b"old 0", b"old 1")
    delete(bench)
    popped = bench.pop()
    bench.commit()
    assert popped.bodies == [b"new %d" % number for number in range(AGAIN)]


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_pop_that_waits_for_a_claim_goes_on_though_its_topic_is_deleted_in_the_same_entry(
    *, is_lost: bool
) -> None:
    """The end of the claim is heard of first, when nothing is on its way any more."""
    bench = PopBench(queues=1)
    bench.send(b"old")
    claims, waits = bench.start(pollTime="1000"), bench.start(pollTime="1000")
    bench.leader.commits.stage_control(DeleteTopic("T"))
    bench.leader.commits.flush()
    if is_lost:
        bench.leader.log.lose()
        assert claims.frames == waits.frames == [], "both may be asked again"
    else:
        bench.leader.log.commit()
        assert claims.bodies == [b"old"]
        assert waits.code == ResponseCode.TOPIC_NOT_EXIST
