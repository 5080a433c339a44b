"""Changes of one topic that come at once: each is computed from what the one before has made of it."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from broker.server.handlers import table_changes
from broker.server.handlers.table_changes import LIST_MAX, TableChanges
from broker.server.requests.request import PendingRequest
from broker.store.topics import QUEUE_COUNT_MAX, TopicConfig
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.header import RemotingCommand, decode_command
from tests.unit.server.lone_leader import Asker, LoneLeader
from tests.unit.server.pending import ParkingRouter, pending

CREATE_ALL = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
GROUPS = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
CREATE, DELETE = RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.DELETE_TOPIC_IN_BROKER


class LeadersRouter(ParkingRouter):
    """Carries out what comes while the node leads, and parks the rest."""

    leads = True

    def route(self, request: PendingRequest) -> None:
        if self.leads:
            self.carry_out(request)
        else:
            self.park(request)


class Bench:
    """A leader with the topic T; what is asked is answered by `commit`."""

    def __init__(self) -> None:
        self.leader = LoneLeader()
        self.router = LeadersRouter(self.leader.commits)
        handlers = TableChanges(
            self.leader.state,
            self.leader.commits,
            self.router,
            when_routed=lambda then: then(),
        ).handlers()
        self._by_code = {handler.code: handler for handler in handlers}

    def ask(self, code: int, topic: str = "T", *, body: bytes = b"", **ext: str) -> Asker:
        asker = Asker()
        fields = {"topic": topic, **ext}
        command = RemotingCommand(code=code, opaque=9, ext=fields, version=409, body=body)
        serve = cast("Any", self._by_code[code].serve)
        request = pending(asker, code, command=command, serve=serve)
        self.router.carry_out(request)
        return asker

    def put(self, attributes: str, topic: str = "T", queues: int = 4) -> Asker:
        counts = {"readQueueNums": str(queues), "writeQueueNums": str(queues)}
        return self.ask(CREATE, topic, perm="6", attributes=attributes, **counts)

    def topic(self, name: str = "T") -> TopicConfig:
        topic = self.leader.state.topics.get(name)
        assert topic is not None
        return topic


def remark_of(asker: Asker) -> str | None:
    return answer_of(asker).remark


def code_of(asker: Asker) -> int:
    return answer_of(asker).code


def answer_of(asker: Asker) -> RemotingCommand:
    decoder = FrameDecoder()
    decoder.feed(b"".join(asker.frames))
    (frame,) = decoder.frames()
    return decode_command(frame)


def test_attributes_set_at_once_are_all_there() -> None:
    bench = Bench()
    askers = [
        bench.put("+reserve.time=24"),
        bench.put("+message.type=FIFO"),
        bench.put("", queues=8),
        bench.put("-reserve.time"),
        bench.put("+cleanup.policy=DELETE", queues=8),
    ]
    bench.leader.commit()
    assert [code_of(each) for each in askers] == [ResponseCode.SUCCESS] * 5
    assert bench.topic().attributes == {"message.type": "FIFO", "cleanup.policy": "DELETE"}
    assert bench.topic().write_queue_count == 8


def test_a_topic_that_is_being_deleted_leaves_no_attributes_to_the_next_one() -> None:
    bench = Bench()
    bench.put("+reserve.time=24")
    bench.leader.commit()
    askers = [bench.ask(DELETE), bench.put("+message.type=FIFO"), bench.ask(DELETE), bench.put("")]
    bench.leader.commit()
    assert [code_of(each) for each in askers] == [ResponseCode.SUCCESS] * 4
    assert bench.topic().attributes == {}


def test_topics_do_not_wait_for_each_other() -> None:
    bench = Bench()
    bench.put("+reserve.time=24")
    bench.put("+message.type=FIFO", "U")
    bench.leader.commits.flush()
    bench.leader.log.commit()
    assert bench.topic().attributes == {"reserve.time": "24"}
    assert bench.topic("U").attributes == {"message.type": "FIFO"}


def test_a_lost_change_gives_the_next_ones_to_the_next_leader() -> None:
    bench = Bench()
    first = bench.put("+reserve.time=24")
    second = bench.put("+message.type=FIFO")
    bench.leader.commits.flush()
    bench.router.leads = False
    bench.leader.log.lose()
    assert code_of(first) == ResponseCode.SYSTEM_ERROR
    assert not second.frames
    (waiting,) = bench.router.held
    assert cast("Any", waiting.origin) is second


def test_a_change_that_is_refused_holds_up_nobody() -> None:
    bench = Bench()
    wrong = bench.put("+no.such.key=1")
    right = bench.put("+reserve.time=24")
    bench.leader.commit()
    assert code_of(wrong) == ResponseCode.SYSTEM_ERROR
    assert code_of(right) == ResponseCode.SUCCESS


def test_a_wrong_change_that_has_waited_is_answered() -> None:
    bench = Bench()
    bench.put("+reserve.time=24")
    wrong = bench.put("+no.such.key=1")
    bench.leader.commit()
    assert code_of(wrong) == ResponseCode.SYSTEM_ERROR
    assert bench.topic().attributes == {"reserve.time": "24"}


def test_changes_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_changes, "_CHANGES_WAITING_MAX", 2)
    bench = Bench()
    askers = [bench.put("+reserve.time=24") for _ in range(4)]
    assert [len(each.frames) for each in askers] == [0, 0, 0, 1]
    assert code_of(askers[3]) == ResponseCode.SYSTEM_BUSY
    bench.leader.commit()
    assert [code_of(each) for each in askers[:3]] == [ResponseCode.SUCCESS] * 3


def put_all(bench: Bench, *topics: dict[str, Any]) -> Asker:
    body = json.dumps({"topicConfigList": list(topics)}).encode()
    return bench.ask(CREATE_ALL, body=body)


def test_topics_of_a_list_wait_for_one_another_and_for_single_ones() -> None:
    bench = Bench()
    first = bench.put("+message.type=FIFO")
    both = put_all(
        bench,
        {
            "topicName": "T",
            "readQueueNums": 3,
            "writeQueueNums": 3,
            "attributes": {"-message.type": ""},
        },
        {"topicName": "U", "attributes": {"+message.type": "DELAY"}, "perm": 4},
    )
    assert not both.frames, "it waits for the first"
    other = bench.put("+message.type=NORMAL", topic="U", queues=9)
    bench.leader.commit()
    assert [code_of(each) for each in (first, other, both)] == [ResponseCode.SUCCESS] * 3
    assert (bench.topic().read_queue_count, bench.topic().attributes) == (3, {})
    made = bench.topic("U")
    assert (made.perm, made.attributes) == (4, {"message.type": "DELAY"})
    later = put_all(bench, {"topicName": "T"}, {"topicName": "U"})
    last = bench.put("+message.type=FIFO", topic="U", queues=9)
    bench.leader.commit()
    assert [code_of(each) for each in (later, last)] == [ResponseCode.SUCCESS] * 2
    assert bench.topic("U").read_queue_count == 9, "it waited for the list"


def test_no_topic_of_a_list_is_made_if_one_cannot_be() -> None:
    bench = Bench()
    refused = put_all(bench, {"topicName": "U"}, {"topicName": "a/b"})
    assert code_of(refused) == ResponseCode.SYSTEM_ERROR
    bench.leader.commit()
    assert bench.leader.state.topics.get("U") is None


def test_the_last_of_a_name_counts_and_an_empty_list_is_done() -> None:
    bench = Bench()
    done = put_all(bench, {"topicName": "U", "perm": 4}, {"topicName": "U", "perm": 2})
    bench.leader.commit()
    assert code_of(done) == ResponseCode.SUCCESS
    assert bench.topic("U").perm == 2
    assert code_of(put_all(bench)) == ResponseCode.SUCCESS


def test_groups_of_a_list_are_made_together_or_not_at_all() -> None:
    bench = Bench()
    groups = [{"groupName": "G", "retryMaxTimes": 2}, {"groupName": "H"}]
    done = bench.ask(GROUPS, body=json.dumps({"groupConfigList": groups}).encode())
    bench.leader.commit()
    assert code_of(done) == ResponseCode.SUCCESS
    made = bench.leader.state.groups.get("G")
    assert made is not None
    assert made.retry_times_max == 2
    assert "H" in bench.leader.state.groups
    broken = [{"groupName": "I"}, {"groupName": "no group"}]
    refused = bench.ask(GROUPS, body=json.dumps({"groupConfigList": broken}).encode())
    assert code_of(refused) == ResponseCode.SYSTEM_ERROR
    assert "I" not in bench.leader.state.groups


def test_a_list_that_is_too_long_is_refused_as_a_whole() -> None:
    bench = Bench()
    refused = put_all(bench, *({"topicName": f"U{n}"} for n in range(LIST_MAX + 1)))
    assert code_of(refused) == ResponseCode.SYSTEM_ERROR
    assert "at most 1024" in (remark_of(refused) or "")
    bench.leader.commit()
    assert bench.leader.state.topics.get("U0") is None
    made = bench.put("", topic="U0")
    bench.leader.commit()
    assert code_of(made) == ResponseCode.SUCCESS, "nothing is left that it would wait for"


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"topicConfigList":5}', b"\xff"])
def test_what_is_no_list_is_told_so(body: bytes) -> None:
    for code in (CREATE_ALL, GROUPS):
        asker = Bench().ask(code, body=body)
        assert code_of(asker) == ResponseCode.SYSTEM_ERROR
        assert "not a list of" in (remark_of(asker) or "")


TOO_LONG = 2**70
"""As JSON may have it, and no control record."""


@pytest.mark.parametrize("member", ["topicSysFlag", "readQueueNums", "writeQueueNums", "perm"])
def test_a_number_too_long_for_the_log_is_refused_also_when_it_has_waited(member: str) -> None:
    """What has waited is carried out by the log's own pass: an error there would end the node."""
    bench = Bench()
    first = bench.put("+reserve.time=24")
    waiting = put_all(bench, {"topicName": "T", member: TOO_LONG})
    bench.leader.commit()
    at_once = put_all(bench, {"topicName": "T", member: -TOO_LONG})
    assert code_of(first) == ResponseCode.SUCCESS
    assert [code_of(each) for each in (waiting, at_once)] == [ResponseCode.SYSTEM_ERROR] * 2


def test_a_filter_type_that_java_does_not_know_is_refused() -> None:
    bench = Bench()
    refused = put_all(bench, {"topicName": "T", "topicFilterType": "ANY"})
    assert code_of(refused) == ResponseCode.SYSTEM_ERROR
    done = put_all(bench, {"topicName": "T", "topicFilterType": "MULTI_TAG"})
    bench.leader.commit()
    assert code_of(done) == ResponseCode.SUCCESS


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("retryQueueNums", TOO_LONG),
        ("retryQueueNums", QUEUE_COUNT_MAX + 1),
        ("retryMaxTimes", TOO_LONG),
        ("brokerId", -TOO_LONG),
        ("whichBrokerWhenConsumeSlowly", 2**64),
    ],
)
def test_a_number_that_no_group_can_have_is_refused(member: str, value: int) -> None:
    bench = Bench()
    group = {"groupName": "G", member: value}
    alone = bench.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=encoded(group))
    listed = bench.ask(GROUPS, body=encoded({"groupConfigList": [group]}))
    assert [code_of(each) for each in (alone, listed)] == [ResponseCode.SYSTEM_ERROR] * 2


def encoded(value: object) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.parametrize("number", [2**63, 10**30])
def test_a_number_that_no_record_holds_leaves_nothing_of_its_list_behind(number: int) -> None:
    bench = Bench()
    refused = put_all(bench, {"topicName": "U"}, {"topicName": "V", "topicSysFlag": number})
    assert code_of(refused) == ResponseCode.SYSTEM_ERROR
    groups = [{"groupName": "G"}, {"groupName": "H", "brokerId": number}]
    refused = bench.ask(GROUPS, body=json.dumps({"groupConfigList": groups}).encode())
    assert code_of(refused) == ResponseCode.SYSTEM_ERROR
    bench.leader.commit()
    assert "U" not in bench.leader.state.topics
    assert "G" not in bench.leader.state.groups


def test_a_group_has_no_more_retry_queues_than_a_topic_may_have() -> None:
    bench = Bench()
    for count in (QUEUE_COUNT_MAX, QUEUE_COUNT_MAX + 1):
        groups = [{"groupName": f"G{count}", "retryQueueNums": count}]
        asked = bench.ask(GROUPS, body=json.dumps({"groupConfigList": groups}).encode())
        bench.leader.commit()
        assert (code_of(asked) == ResponseCode.SUCCESS) == (count == QUEUE_COUNT_MAX)
    assert remark_of(asked) == "65537 retry queues: there are 65536 at most"
