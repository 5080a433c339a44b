"""A node that does not lead answers pulls once it surely has what its clients have seen; else it sends them away.

And who reads far behind the log's end is sent to such a node.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from broker.server.handlers.pull_advice import READER_MS, PullAdvice
from broker.server.requests.origin import ClientOrigin
from broker.server.requests.request import HOLD_MS
from broker.service.refusal import Refusal
from broker.store.control import DeleteTopic, PutTopic
from broker.store.reading import GetLimits
from broker.store.topics import TopicConfig
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.header import RemotingCommand
from tests.unit.server.test_pulls_of_damaged_entries import Bench, Origin, bodies

SPAN_BYTES = 300
"""Less than two of the records here."""


def follower(*sent: bytes, confirms: bool = True) -> Bench:
    bench = Bench(memory_span_bytes=SPAN_BYTES)
    bench.log.is_serving = False
    bench.points.confirms = confirms
    for body in sent:
        bench.broker.send(body=body)
    return bench


def answer_of(origin: Origin) -> RemotingCommand:
    (answer,) = origin.answers()
    return answer


def next_step(origin: Origin) -> tuple[int, str, str]:
    """Code, offset and broker id that a client goes on with."""
    answer = answer_of(origin)
    return answer.code, answer.ext["nextBeginOffset"], answer.ext["suggestWhichBrokerId"]


class TestConfirmations:
    def test_one_that_is_confirmed_is_answered_as_by_the_leader(self) -> None:
        bench = follower(b"1", b"2")
        assert bodies(bench.pull(0)) == [b"1", b"2"]
        assert next_step(bench.pull(7)) == (ResponseCode.PULL_OFFSET_MOVED, "2", "0")

    @pytest.mark.parametrize("offset", [0, 2, 7])
    def test_one_that_nobody_confirms_sends_its_client_to_the_leader_with_its_own_offset(
        self, offset: int
    ) -> None:
        bench = follower(b"1", b"2", confirms=False)
        origin = bench.pull(offset)
        bench.expire(HOLD_MS - 1)
        assert origin.frames == []
        bench.expire(HOLD_MS)
        assert next_step(origin) == (ResponseCode.PULL_NOT_FOUND, str(offset), "0")
        assert answer_of(origin).body == b""

    def test_one_for_a_topic_that_the_node_does_not_know_is_refused_since_nothing_new_would_deny_it(
        self,
    ) -> None:
        bench = follower(confirms=False)
        bench.checks.refusal = Refusal(ResponseCode.TOPIC_NOT_EXIST, "topic[T] not exist.")
        origin = bench.pull(0)
        bench.expire(HOLD_MS)
        answer = answer_of(origin)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "may be behind" in (answer.remark or "")

    def test_one_that_is_confirmed_in_time_is_answered(self) -> None:
        bench = follower(b"1", confirms=False)
        origin = bench.pull(0)
        bench.points.confirms = True
        bench.expire(50)
        assert bodies(origin) == [b"1"]

    def test_who_comes_back_has_nobody_else_and_may_read_but_is_not_moved(self) -> None:
        bench = follower(b"1", b"2", confirms=False)
        bench.send_away()
        assert bodies(bench.pull(0)) == [b"1", b"2"]
        assert next_step(bench.pull(7)) == (ResponseCode.PULL_NOT_FOUND, "7", "0")

    def test_a_confirmation_ends_that(self) -> None:
        bench = follower(b"1", confirms=False)
        bench.send_away()
        assert bodies(bench.pull(0)) == [b"1"]
        bench.points.confirms = True
        assert bodies(bench.pull(0)) == [b"1"]
        bench.points.confirms = False
        assert bench.pull(0).frames == []

    def test_so_does_the_word_of_a_leader_even_before_it_is_applied(self) -> None:
        bench = follower(b"1", confirms=False)
        bench.send_away()
        bench.points.leader_answers()
        assert bench.pull(0).frames == []

    def test_who_comes_back_is_confirmed_like_all_others_when_there_is_a_leader(self) -> None:
        bench = follower(b"1", confirms=False)
        bench.send_away()
        bench.points.confirms = None
        origin = bench.pull(0)
        assert origin.frames == []
        act, _ = bench.points.asked[-1]
        act()
        assert bodies(origin) == [b"1"]

    def test_behind_a_leader_nothing_is_served_that_is_not_confirmed(self) -> None:
        bench = follower(b"1", confirms=False)
        bench.send_away()
        bench.points.has_leader = True
        for _ in range(3):
            origin = bench.pull(0)
            assert origin.frames == []
            bench.expire(bench.now_ms + HOLD_MS)
            assert next_step(origin) == (ResponseCode.PULL_NOT_FOUND, "0", "0")

    def test_who_was_sent_away_behind_a_leader_is_not_back_when_that_is_gone(self) -> None:
        bench = follower(b"1", confirms=False)
        bench.points.has_leader = True
        bench.send_away()
        bench.points.has_leader = False
        assert bench.pull(0).frames == []

    def test_one_that_was_held_unconfirmed_is_confirmed_before_it_is_answered(self) -> None:
        bench = follower(b"1", confirms=False)
        bench.send_away()
        origin = bench.pull(1, 15_000)
        bench.points.has_leader = True
        bench.broker.send(body=b"2")
        bench.pulls.applied()
        assert origin.frames == [], "it may be what stood there in the past"
        bench.points.confirms = True
        bench.expire(50)
        assert bodies(origin) == [b"2"]

    def test_while_nobody_can_be_asked_those_that_wait_do_not_ask(self) -> None:
        bench = follower(b"1", confirms=False)
        origin = bench.pull(0)
        for now_ms in range(50, HOLD_MS, 50):
            bench.expire(now_ms)
        assert len(bench.points.asked) == 1
        bench.expire(HOLD_MS)
        assert next_step(origin) == (ResponseCode.PULL_NOT_FOUND, "0", "0")

    def test_so_does_the_end_of_the_connection(self) -> None:
        bench = follower(b"1", confirms=False)
        bench.send_away()
        bench.pulls.connection_closed(1)
        assert bench.pull(0).frames == []

    def test_a_topic_that_others_have_deleted_and_made_again_is_not_read_in_its_old_state(
        self,
    ) -> None:
        bench = follower(b"old", confirms=False)
        origin = bench.pull(0)
        for command in (DeleteTopic("T"), PutTopic(TopicConfig("T", 4, 4))):
            bench.broker.command(command)
        bench.broker.send(body=b"new")
        bench.points.confirms = True
        bench.expire(50)
        assert bodies(origin) == [b"new"]

    def test_a_client_that_is_gone_is_not_answered(self) -> None:
        bench = follower(b"1", confirms=False)
        origin = bench.pull(0)
        origin.is_closed = True
        bench.expire(HOLD_MS)
        assert origin.frames == []
        assert not bench.pulls._sent_away.is_back(1, ("T", 0))

    def test_the_offset_that_it_carries_is_taken_once_and_not_where_it_is_sent_away(self) -> None:
        bench = follower(b"1", confirms=False)
        bench.pull(0, commit_offset=1)
        bench.expire(HOLD_MS)
        assert bench.committed == [], "its client says it again, to the leader"
        bench.points.confirms = True
        bench.pulls._sent_away.forget()
        bench.pull(0, commit_offset=1)
        assert bench.committed == [1]


def report(bench: Bench, node_id: str, *, position: int | None = None) -> SimpleNamespace:
    """Let a node report, by default that it has the whole log; the link that it came on."""
    link = SimpleNamespace(is_closed=False)
    where = bench.log.committed_position if position is None else position
    bench.followers.reported(node_id, cast("ClientOrigin", link), where)
    return link


class TestAdvice:
    @pytest.fixture
    def leader(self) -> Bench:
        bench = follower(*(b"%d" % number for number in range(20)))
        bench.log.is_serving = True
        return bench

    def test_cold_reads_go_to_followers_and_what_is_near_the_end_comes_from_the_leader(
        self, leader: Bench
    ) -> None:
        report(leader, "n1")
        code, offset, broker_id = next_step(leader.pull(0))
        assert (code, broker_id) == (0, "2")
        assert int(offset) < 20
        assert next_step(leader.pull(19)) == (0, "20", "0")
        assert next_step(leader.pull(20)) == (ResponseCode.PULL_NOT_FOUND, "20", "0")

    def test_only_followers_that_live_and_have_it_are_named(self, leader: Bench) -> None:
        assert next_step(leader.pull(0))[2] == "0"
        report(leader, "n1", position=leader.log.committed_position - 19 * SPAN_BYTES // 2)
        assert next_step(leader.pull(0))[2] == "0", "it would call it warm, and send it back"
        link = report(leader, "n1")
        assert next_step(leader.pull(0))[2] == "2"
        link.is_closed = True
        assert next_step(leader.pull(0))[2] == "0"
        report(leader, "n1")
        leader.now_ms += 10_000
        assert next_step(leader.pull(0))[2] == "0", "it is silent"

    def test_queues_are_shared_by_the_followers(self, leader: Bench) -> None:
        report(leader, "n1")
        report(leader, "n2")
        advice: PullAdvice = leader.pulls._advice
        behind = 10 * SPAN_BYTES
        assert [advice.for_cold_read(queue_id, behind) for queue_id in (0, 1, 2)] == [2, 3, 2]

    def test_a_follower_keeps_its_reader_until_that_has_caught_up(self, leader: Bench) -> None:
        leader.log.is_serving = False
        assert next_step(leader.pull(0))[2] == "1"
        assert next_step(leader.pull(19)) == (0, "20", "0")

    def test_one_that_nobody_confirms_keeps_nobody(self, leader: Bench) -> None:
        leader.log.is_serving = leader.points.confirms = False
        leader.send_away()
        code, offset, broker_id = next_step(leader.pull(0))
        assert (code, broker_id) == (0, "0")
        assert offset != "0"

    def test_it_can_be_switched_off(self) -> None:
        bench = Bench()
        advice = PullAdvice(
            bench.log,  # type: ignore[arg-type]  # the part of a LogServer that is used here
            bench.followers,
            own_id=1,
            limits=GetLimits(memory_span_bytes=0),
            slave_reads=False,
            now_ms=lambda: 0,
        )
        assert advice.cold_bytes > 2**62
        assert advice.limits.memory_span_bytes == 0


class TestStops:
    def test_a_follower_that_stops_sends_its_reader_to_the_leader(self) -> None:
        bench = follower(*(b"%d" % number for number in range(20)))
        assert next_step(bench.pull(0))[2] == "1"
        assert bench.pulls.leave(), "somebody reads here"
        code, offset, broker_id = next_step(bench.pull(0))
        assert (code, broker_id) == (0, "0")
        assert int(offset) > 0, "it is answered none the less"

    def test_without_readers_nobody_is_waited_for(self) -> None:
        bench = follower(*(b"%d" % number for number in range(20)))
        assert not bench.pulls.leave()
        other = follower(*(b"%d" % number for number in range(20)))
        other.pull(0)
        other.now_ms = READER_MS
        assert not other.pulls.leave(), "that is long ago"

    def test_the_leader_names_no_node_that_stops(self) -> None:
        bench = follower(*(b"%d" % number for number in range(20)))
        bench.log.is_serving = True
        report(bench, "n1")
        assert next_step(bench.pull(0))[2] == "2"
        report(bench, "n1", position=0)
        assert next_step(bench.pull(0))[2] == "0"

    def test_a_pull_that_is_held_is_answered_at_the_end(self) -> None:
        bench = follower(b"1")
        origin = bench.pull(1, 15_000)
        assert origin.frames == []
        bench.pulls.answer_held()
        assert next_step(origin) == (ResponseCode.PULL_NOT_FOUND, "1", "0")
        assert bench.pulls.held_count == 0

    @pytest.mark.parametrize("confirms", [False, None])
    def test_so_are_those_that_nobody_has_confirmed_yet(self, confirms: bool | None) -> None:
        bench = follower(b"1")
        bench.points.confirms = confirms
        origins = [bench.pull(0), bench.pull(1, 15_000)]
        bench.pulls.answer_held()
        later = bench.pull(1, 15_000)
        assert [next_step(origin) for origin in (*origins, later)] == [
            (ResponseCode.PULL_NOT_FOUND, offset, "0") for offset in ("0", "1", "1")
        ]
        for act, _ in bench.points.asked:
            act()
        assert [len(origin.answers()) for origin in origins] == [1, 1]

    def test_so_is_one_that_waits_for_a_damaged_entry(self) -> None:
        bench = follower(b"1", b"2")
        held = bench.pull(2, 15_000)
        bench.broker.send(body=b"3")
        bench.broker.log.damaged = {entry.index for entry in bench.broker.log.entries}
        put_off = bench.pull(0)
        assert put_off.frames == []
        bench.pulls.answer_held()
        codes = [answer_of(origin).code for origin in (held, put_off)]
        assert codes == [ResponseCode.SERVICE_NOT_AVAILABLE] * 2
