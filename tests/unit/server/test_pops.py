"""Pops by their frames' fields, at a leader whose log the test commits (R)."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import pytest

from broker.server.handlers import pop_reading, pop_returns
from broker.server.handlers.pop_acks import PopAcks
from broker.server.handlers.pop_reading import READS_MAX, PopReading
from broker.server.handlers.pop_returns import (
    LOOK_MS,
    RETURN_MS,
    SLICE_MS,
    SLICE_QUEUES_MAX,
    STUCK_MS,
    PopReturns,
)
from broker.server.handlers.pops import CLAIM_WAIT_MS, QUEUES_MAX, Pop, PopRequests
from broker.server.handlers.pull_answers import PullCounts
from broker.service.catalog import Catalog
from broker.service.pop import PopRules
from broker.service.pull import PullRules
from broker.service.send_back import SendBackRules
from broker.store.control import (
    Command,
    CommitOffsets,
    DeleteGroup,
    OffsetCommit,
    PopMessages,
    PutTopic,
    RemoveOffsets,
    ResetOffsets,
)
from broker.store.due_queues import DueQueues
from broker.store.groups import SubscriptionGroupConfig
from broker.store.pops import PopKey, PoppedQueue
from broker.store.reading import GetLimits, GetResult, GetStatus, get_messages
from broker.store.record_reader import read_message
from broker.store.topics import PERM_READ, TopicConfig
from dledger import EntryDamagedError
from dledger.raft.entry import EntryKind
from dledger_mq.message.numbers import QueueId, QueueOffset
from dledger_mq.message.record import StoredMessage, decode_records
from dledger_mq.remoting.errors import BodyError, FieldError
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.header import RemotingCommand, decode_command
from dledger_mq.remoting.pop_bodies import (
    MESSAGES_MAX,
    POPPED_MAX,
    PoppedBatch,
    encode_batch_ack,
)
from tests.unit.server.lone_leader import Asker, LoneLeader
from tests.unit.server.pending import pending

INVISIBLE_MS = 5000


class Client(Asker):
    """A connection, and the answer that it got."""

    @property
    def answer(self) -> RemotingCommand:
        decoder = FrameDecoder()
        decoder.feed(b"".join(self.frames))
        (frame,) = decoder.frames()
        return decode_command(frame)

    @property
    def code(self) -> int:
        return self.answer.code

    @property
    def messages(self) -> list[StoredMessage]:
        return list(decode_records(self.answer.body))

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    def handle(self, place: int = 0) -> dict[str, str]:
        """The fields of an acknowledgement, put together as the Java client does it."""
        ext, message = self.answer.ext, self.messages[place]
        starts = dict(_rows(ext["startOffsetInfo"]))
        offsets = dict(_rows(ext["msgOffsetInfo"]))
        key = f"0 {message.queue_id}"
        assert str(message.queue_offset) in offsets[key].split(",")
        parts = [starts[key], ext["popTime"], ext["invisibleTime"], ext["reviveQid"], "0"]
        parts += ["broker-a", str(message.queue_id), str(message.queue_offset)]
        return {
            "consumerGroup": "G",
            "topic": "T",
            "queueId": str(message.queue_id),
            "offset": str(message.queue_offset),
            "extraInfo": " ".join(parts),
        }


def _rows(text: str) -> list[tuple[str, str]]:
    rows = (row.split(" ") for row in text.split(";"))
    return [(f"{flag} {queue}", value) for flag, queue, value in rows]


class Bench:
    """One leader with the topic T of two queues and the group G.

    Attributes:
        was_tried: whether an earlier leader may have carried out what is asked about popped messages.
        has_members: whether consumers of the group send heartbeats.
    """

    def __init__(self, *, retries: int = 16, queues: int = 2) -> None:
        self.was_tried = False
        self.has_members = True
        self.leader = LoneLeader()
        leader = self.leader
        leader.commits.stage_control(PutTopic(TopicConfig("T", queues, queues)))
        leader.create(SubscriptionGroupConfig("G", retry_times_max=retries))
        state = leader.state
        catalog = Catalog(lambda n: state.topics.get(n), lambda n: state.groups.get(n))
        shared: tuple[Any, Any, Any] = (leader.log, state, leader.commits)
        reading = PopReading(leader.log, state, GetLimits, leader.log_ms)  # type: ignore[arg-type]
        rules = SendBackRules(
            catalog,
            permission=6,
            auto_create_groups=True,
            delay_level_max=18,
            load=lambda offset: read_message(leader.log, offset),
            pick=lambda _bound: 0,
        )
        self.returns = PopReturns(
            *shared,
            rules=rules,
            reading=reading,
            has_members=lambda _group: self.has_members,
            now_ms=lambda: leader.now_ms,
        )
        pulls = PullRules(
            catalog,
            permission=6,
            auto_create_groups=True,
            members=lambda _group: {},
            forbidden_bits=lambda *_: 0,
        )
        self.pops = PopRequests(
            *shared,
            leader.router,
            rules=PopRules(
                catalog,
                permission=6,
                auto_create_groups=True,
                forbidden_bits=lambda *_: 0,
                select=pulls.select,
            ),
            reading=reading,
            returns=self.returns,
            counts=PullCounts(),
            held_max=3,
            long_polling=True,
            pick=lambda _bound: 0,
            now_ms=lambda: leader.now_ms,
        )
        self.acks = PopAcks(
            state,
            leader.commits,
            leader.router,
            self.returns,
            broker_name="broker-a",
            freed=self.pops.freed,
        )

    def send(self, *bodies: bytes, **named: str) -> None:
        for body in bodies:
            self.leader.send(body, **named)
        self.commit()

    def start(self, code: int = 200_050, **changed: str) -> Client:
        client = Client()
        fields = {
            "consumerGroup": "G",
            "topic": "T",
            "queueId": "-1",
            "maxMsgNums": "32",
            "invisibleTime": str(INVISIBLE_MS),
            "pollTime": "0",
            "bornTime": "0",
            "initMode": "0",
            "exp": "*",
            "order": "false",
        }
        command = RemotingCommand(code=code, opaque=9, ext=fields | changed, version=453)
        serve = self.pops.pop if code == 200_050 else self.pops.notice
        serve(pending(client, code, request_type=Pop, command=command), command)
        return client

    def pop(self, **changed: str) -> Client:
        client = self.start(**changed)
        self.commit()
        return client

    def ack(self, handle: dict[str, str], **changed: str) -> Client:
        return self._about(200_051, handle | changed)

    def change(self, handle: dict[str, str], invisible_ms: int) -> Client:
        return self._about(200_053, handle | {"invisibleTime": str(invisible_ms)})

    def ack_batch(self, body: bytes, ext: dict[str, str] | None = None) -> Client:
        return self._about(200_151, ext or {}, body)

    def _about(self, code: int, ext: dict[str, str], body: bytes = b"") -> Client:
        client = Client()
        command = RemotingCommand(code=code, opaque=9, ext=ext, body=body, version=453)
        serve = {
            200_051: self.acks.acknowledge,
            200_053: self.acks.change,
            200_151: self.acks.acknowledge_batch,
        }[code]
        request = pending(client, code, command=command, may_be_done=self.was_tried)
        serve(request, command)
        self.commit()
        return client

    def commit(self) -> None:
        self.leader.commit()
        self.pops.applied()
        self.leader.commit()

    def wait(self, ms: int) -> None:
        self.leader.now_ms += ms
        self.pops.expire(self.leader.now_ms)
        self.returns.tick(self.leader.now_ms)
        self.commit()


@pytest.fixture
def bench() -> Bench:
    return Bench()


@dataclass
class ManualTurns:
    """Turns of the loop that a test gives: everything waits for one."""

    pops: PopRequests
    row: list[Pop] = field(default_factory=list)

    @property
    def waiting_count(self) -> int:
        return len(self.row)

    def take(self, pop: Pop) -> None:
        self.row.append(pop)

    def put_off(self, pop: Pop) -> bool:
        self.row.append(pop)
        return True

    def give(self) -> None:
        self.pops._take_turn(self.row.pop(0))


def in_turns(bench: Bench) -> ManualTurns:
    """A bench whose pops look when the test lets them."""
    turns = ManualTurns(bench.pops)
    bench.pops.turns = cast("Any", turns)
    return turns


def test_what_is_popped_nobody_else_gets_and_an_ack_ends_it(bench: Bench) -> None:
    bench.send(b"a", b"b", b"c")
    first = bench.pop(maxMsgNums="2")
    assert (first.code, first.bodies) == (0, [b"a", b"b"])
    assert first.answer.ext["restNum"] == "1"
    assert bench.pop().bodies == [b"c"]
    assert bench.pop().code == 210
    assert [bench.ack(first.handle(place)).code for place in (0, 1)] == [0, 0]
    bench.wait(
        INVISIBLE_MS + 1
    )  # it was popped in the same millisecond, and has a pop time of its own
    again = bench.pop()
    assert again.bodies == [b"c"]
    assert again.messages[0].reconsume_times == 1
    assert bench.ack(again.handle()).code == 0
    assert bench.leader.state.pops.count == 0


def test_the_group_stands_where_tools_see_how_far_it_is(bench: Bench) -> None:
    bench.send(b"a", b"b", b"c")
    bench.pop(maxMsgNums="2")
    assert bench.leader.state.offsets.get("G", "T", 0) == 2


def test_what_is_left_is_told_of_the_queue_that_a_pop_names(bench: Bench) -> None:
    bench.send(b"a", b"b")
    bench.leader.send(b"c", queue_id=1)
    bench.commit()
    assert bench.pop(maxMsgNums="1", queueId="0").answer.ext["restNum"] == "1"
    assert bench.pop(maxMsgNums="1").answer.ext["restNum"] == "1", "of both"
    assert bench.pop(maxMsgNums="1", queueId="0").answer.ext["restNum"] == "0"


def test_an_answer_is_given_only_once_its_claim_is_committed(bench: Bench) -> None:
    bench.send(b"a")
    client = bench.start()
    assert client.frames == []
    bench.commit()
    assert client.bodies == [b"a"]


def test_a_pop_waits_for_the_deletion_of_its_group_and_claims_for_the_new_one(bench: Bench) -> None:
    bench.send(b"a")
    bench.leader.commits.stage_control(DeleteGroup("G"))
    assert bench.pop().bodies == [b"a"]
    assert "G" in bench.leader.state.groups, "nobody would take back what it has in flight"


def test_a_claim_that_gets_lost_hands_nothing_out(bench: Bench) -> None:
    bench.send(b"a")
    client = bench.start()
    bench.leader.commits.flush()
    bench.leader.log.lose()
    assert client.frames == []
    assert bench.leader.state.pops.count == 0
    assert not bench.returns.claimed
    bench.leader.commits.lost(cast("Any", RuntimeError("gone")))
    assert bench.pop().bodies == [b"a"]


def test_who_pops_while_a_claim_is_on_its_way_gets_what_follows(bench: Bench) -> None:
    bench.send(b"a", b"b")
    first, second = (bench.start(maxMsgNums="1") for _ in range(2))
    bench.commit()
    assert (first.bodies, second.bodies) == ([b"a"], [b"b"])


def test_who_finds_only_claims_waits_for_their_end_and_no_longer(bench: Bench) -> None:
    bench.send(b"a")
    first, second = (bench.start() for _ in range(2))
    bench.leader.now_ms += CLAIM_WAIT_MS + 1
    bench.pops.expire(bench.leader.now_ms)
    assert second.code == 210
    bench.commit()
    assert first.bodies == [b"a"]


def test_an_ack_under_an_old_handle_is_refused_once_somebody_else_has_the_message(
    bench: Bench,
) -> None:
    bench.send(b"a")
    first = bench.pop()
    bench.wait(INVISIBLE_MS)
    second = bench.pop()
    assert second.bodies == [b"a"]
    late = bench.ack(first.handle())
    assert late.code == 208
    assert "not in flight under this handle" in (late.answer.remark or "")
    assert bench.ack(second.handle()).code == 0
    assert bench.ack(second.handle()).code == 208


def test_an_ack_that_is_late_counts_while_nobody_else_has_the_message(bench: Bench) -> None:
    bench.send(b"a")
    first = bench.pop()
    bench.wait(INVISIBLE_MS)
    assert bench.ack(first.handle()).code == 0
    assert bench.pop().code == 210


def test_a_changed_time_holds_and_makes_a_new_handle(bench: Bench) -> None:
    bench.send(b"a")
    first = bench.pop()
    changed = bench.change(first.handle(), 10_000)
    assert changed.code == 0
    assert changed.answer.ext["invisibleTime"] == "10000"
    assert changed.answer.ext["popTime"] > first.answer.ext["popTime"]
    assert bench.ack(first.handle()).code == 208
    assert bench.change(first.handle(), 10_000).code == 208
    bench.wait(10_000)
    assert bench.pop().code == 210
    bench.wait(1)
    assert bench.pop().bodies == [b"a"]


def test_a_condition_on_properties_chooses_what_is_popped(bench: Bench) -> None:
    bench.send(b"small", size="1")
    bench.send(b"large", size="9")
    assert bench.pop(exp="size > 5", expType="SQL92").bodies == [b"large"]
    bench.wait(INVISIBLE_MS + 1)
    assert bench.pop().bodies == [b"large"]


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"topic": "nope"}, 17),
        ({"queueId": "4"}, 29),
        ({"maxMsgNums": "33"}, 29),
        ({"maxMsgNums": "0"}, 29),
        ({"exp": "a ||", "expType": "SQL92"}, 23),
        ({"exp": "a", "expType": "SQL93"}, 23),
    ],
)
def test_pops_are_refused(bench: Bench, changed: dict[str, str], code: int) -> None:
    assert bench.pop(**changed).code == code


@pytest.mark.parametrize(
    "changed", [{"invisibleTime": "0"}, {"invisibleTime": "1e9"}, {"attemptId": "a" * 256}]
)
def test_fields_that_cannot_be_are_named(bench: Bench, changed: dict[str, str]) -> None:
    with pytest.raises(FieldError, match=next(iter(changed))):
        bench.start(**changed)


@pytest.mark.parametrize(
    ("changed", "code"),
    [({"topic": "nope"}, 17), ({"queueId": "7"}, 13), ({"offset": "9"}, 208)],
)
def test_acks_are_refused(bench: Bench, changed: dict[str, str], code: int) -> None:
    bench.send(b"a")
    assert bench.ack(bench.pop().handle(), **changed).code == code
    assert bench.leader.state.pops.count == 1


@pytest.mark.parametrize(
    "forged",
    [
        "",
        "0 1 2",
        "0 x 5000 0 0 broker-a 0 0",
        "0 99999999999999999999 5000 0 0 broker-a 0 0",
        "0 1 5000 0 0 broker-b 0 0",
        "0 1 5000 0 0 broker-a 1 0",
        "0 1 5000 0 0 broker-a 0 5",
        "0 1 5000 0 0 broker-a 0 0 4711 T",
    ],
)
def test_a_forged_handle_is_refused_and_named(bench: Bench, forged: str) -> None:
    bench.send(b"a")
    with pytest.raises(FieldError, match="extraInfo"):
        bench.ack(bench.pop().handle(), extraInfo=forged)


def test_a_guessed_pop_time_acknowledges_nothing(bench: Bench) -> None:
    bench.send(b"a")
    handle = bench.pop().handle()
    parts = handle["extraInfo"].split(" ")
    parts[1] = str(int(parts[1]) + 1)
    assert bench.ack(handle, extraInfo=" ".join(parts)).code == 208
    assert bench.leader.state.pops.count == 1


def _batch(popped: Client, *pops: int) -> bytes:
    """A batch that acknowledges messages of a pop: an int of bits for each row."""
    rows = [
        {
            "c": "G",
            "t": "T",
            "r": "0",
            "so": 0,
            "q": 0,
            "rq": 0,
            "pt": int(popped.answer.ext["popTime"]),
            "it": INVISIBLE_MS,
            "b": base64.b64encode(bits.to_bytes(128, "little")).decode(),
        }
        for bits in pops
    ]
    return json.dumps({"brokerName": "broker-a", "acks": rows}).encode()


def test_a_batch_acknowledges_the_messages_whose_bits_are_set(bench: Bench) -> None:
    bench.send(*(b"%d" % number for number in range(12)))
    popped = bench.pop()
    body = _batch(popped, 1 << 1 | 1 << 9)
    assert bench.ack_batch(body).code == 0
    assert bench.leader.state.pops.count == 10
    assert bench.ack_batch(body).code == 208
    assert bench.ack_batch(b'{"brokerName":"broker-a","acks":[]}').code == 208


def test_a_batch_says_of_each_message_what_became_of_it_to_whom_asks(bench: Bench) -> None:
    bench.send(b"a", b"b", b"c", b"d")
    popped = bench.pop()
    bench.ack(popped.handle(1))
    popped_ms = int(popped.answer.ext["popTime"])
    offsets = [message.queue_offset for message in popped.messages]
    body = encode_batch_ack(
        "broker-a",
        [
            PoppedBatch("G", "T", QueueId(0), popped_ms, offsets[1:3]),
            PoppedBatch("G", "T", QueueId(0), popped_ms, offsets[:1]),
            PoppedBatch("G", "T", QueueId(0), popped_ms - 1, offsets[3:]),
        ],
    )
    answer = bench.ack_batch(body, {"dledgerEach": "true"}).answer
    assert (answer.code, answer.ext) == (0, {"dledgerEnded": "0110"})
    assert bench.ack_batch(body, {"dledgerEach": "true"}).code == 208
    with pytest.raises(FieldError, match="dledgerEach"):
        bench.ack_batch(body, {"dledgerEach": "perhaps"})


def test_after_a_try_of_unknown_outcome_a_dead_handle_is_not_said_to_be_unchanged(
    bench: Bench,
) -> None:
    bench.send(b"a", b"b")
    popped = bench.pop()
    bench.ack(popped.handle(0))
    bench.was_tried = True
    for client in (bench.ack(popped.handle(0)), bench.change(popped.handle(0), 1000)):
        assert client.code == 1
        assert "an earlier try may have been carried out" in (client.answer.remark or "")
    popped_ms = int(popped.answer.ext["popTime"])
    offsets = [message.queue_offset for message in popped.messages]
    body = encode_batch_ack("broker-a", [PoppedBatch("G", "T", QueueId(0), popped_ms, offsets)])
    answer = bench.ack_batch(body, {"dledgerEach": "true"}).answer
    assert (answer.code, answer.ext) == (0, {"dledgerEnded": "?1"})
    assert bench.ack_batch(body).code == 1


def test_a_batch_of_which_a_part_was_too_late_is_no_success(bench: Bench) -> None:
    """One answer is for all: success would say of the late one that it never comes again."""
    bench.send(b"a", b"b")
    popped = bench.pop()
    assert bench.ack(popped.handle(0)).code == 0
    partly = bench.ack_batch(_batch(popped, 1 << 0, 1 << 1))
    assert (partly.code, bench.leader.state.pops.count) == (208, 0)
    assert str(partly.answer.remark).startswith("1 messages are")


def test_a_batch_in_an_entry_that_others_began_is_answered_for_its_own_records(
    bench: Bench,
) -> None:
    """What is staged before it fills an entry of its own, so its records stand elsewhere in theirs."""
    bench.send(b"a", b"b")
    popped = bench.pop()
    for _ in range(3):
        bench.leader.send(b"x" * 600_000)
    assert bench.ack_batch(_batch(popped, 1, 2)).code == 0
    assert bench.leader.state.pops.count == 0


def test_a_batch_that_would_make_a_huge_entry_is_refused(bench: Bench) -> None:
    bench.send(b"a")
    popped = bench.pop()
    whole = 2**POPPED_MAX - 1
    assert bench.ack_batch(_batch(popped, *[whole] * (MESSAGES_MAX // POPPED_MAX))).code == 208
    with pytest.raises(BodyError, match="acknowledged at once"):
        bench.ack_batch(_batch(popped, *[whole] * (MESSAGES_MAX // POPPED_MAX), 1))


def test_a_pop_waits_for_a_message_and_gets_it_when_it_comes(bench: Bench) -> None:
    client = bench.pop(pollTime="15000")
    assert client.frames == []
    bench.send(b"a")
    assert client.bodies == [b"a"]
    assert bench.pops.held_count == 0


def test_a_pop_waits_for_a_message_in_flight_that_is_due(bench: Bench) -> None:
    bench.send(b"a")
    bench.pop()
    client = bench.pop(pollTime="15000")
    bench.wait(INVISIBLE_MS - 1)
    assert client.frames == []
    bench.wait(1)
    assert client.bodies == [b"a"]


def test_a_pop_that_waits_is_answered_when_its_time_is_over(bench: Bench) -> None:
    client = bench.pop(pollTime="15000")
    bench.wait(14_999)
    assert client.frames == []
    bench.wait(1)
    assert client.code == 210
    assert client.answer.ext.keys() >= {"popTime", "invisibleTime", "reviveQid", "restNum"}


def test_more_than_may_wait_are_refused(bench: Bench) -> None:
    clients = [bench.pop(pollTime="15000") for _ in range(4)]
    assert [len(client.frames) for client in clients] == [0, 0, 0, 1]
    assert clients[3].code == 209


def test_who_waits_is_brought_to_the_next_leader(bench: Bench) -> None:
    client = bench.pop(pollTime="15000")
    bench.pops.lost()
    assert client.frames == []
    assert bench.pops.held_count == 0
    assert len(bench.leader.router.held) == 1


def test_too_much_in_flight_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.send(b"a", b"b")
    for place in ("store.pops", "server.handlers.pops"):
        monkeypatch.setattr(f"broker.{place}.IN_FLIGHT_MAX", 3)
    assert bench.pop(maxMsgNums="4").code == 209
    assert bench.pop(maxMsgNums="1").bodies == [b"a"]
    refused = bench.pop(maxMsgNums="3")
    assert refused.code == 209
    assert "1 of G, and 2 are left for all groups" in (refused.answer.remark or "")
    assert bench.pop(maxMsgNums="1", consumerGroup="other").bodies == [b"a"]


def test_a_look_at_many_queues_takes_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = list[QueueId]()
    plan = PopReading.plan

    def noted(self: PopReading, fields: Any, grant: Any, queue_id: QueueId, **more: bool) -> Any:
        looked.append(queue_id)
        return plan(self, fields, grant, queue_id, **more)

    monkeypatch.setattr(PopReading, "plan", noted)
    bench = Bench(queues=5 * QUEUES_MAX)
    bench.leader.send(b"a", queue_id=5 * QUEUES_MAX - 1)
    bench.commit()
    turns = in_turns(bench)
    client = bench.start()
    assert looked == []
    for turn in range(5):
        assert turns.waiting_count == 1
        turns.give()
        assert looked == list(range((turn + 1) * QUEUES_MAX))
    bench.commit()
    assert (client.bodies, turns.waiting_count) == ([b"a"], 0)


def test_what_comes_where_a_look_has_been_is_found_before_it_waits() -> None:
    bench = Bench(queues=2 * QUEUES_MAX)
    turns = in_turns(bench)
    client = bench.start(pollTime="15000")
    turns.give()
    bench.send(b"a")
    for _ in range(2):
        assert bench.pops.held_count == 0
        turns.give()
    bench.commit()
    assert client.bodies == [b"a"]


@pytest.mark.parametrize("poll_ms", ["0", "15000"])
def test_what_another_claim_leaves_where_a_look_has_been_is_found_before_it_waits(
    poll_ms: str,
) -> None:
    bench = Bench(queues=2 * QUEUES_MAX)
    bench.send(b"a", b"b")
    first = bench.start(maxMsgNums="1")
    turns = in_turns(bench)
    second = bench.start(pollTime=poll_ms)
    turns.give()
    bench.commit()
    assert first.bodies == [b"a"]
    for _ in range(2):
        turns.give()
    bench.commit()
    assert second.bodies == [b"b"]


def test_who_waits_for_a_turn_when_this_node_ceases_to_lead_is_brought_to_the_next(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.send(b"a")
    turns = in_turns(bench)
    client = bench.start()
    monkeypatch.setattr(bench.leader.log, "is_serving", False)
    turns.give()
    assert client.frames == []
    assert len(bench.leader.router.held) == 1


def test_no_more_wait_for_their_turn_than_may_wait_at_all(bench: Bench) -> None:
    in_turns(bench)
    clients = [bench.start() for _ in range(4)]
    assert [len(client.frames) for client in clients] == [0, 0, 0, 1]
    assert clients[3].code == 209


def test_a_condition_on_properties_is_read_for_one_piece_in_a_look(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It needs each message: eight pieces of 800 took the loop for as long as they lasted."""
    bench.send(b"a", size="1")
    reads = list[int]()

    def nothing_yet(*args: Any, offset: int, **named: Any) -> GetResult:
        reads.append(offset)
        result = get_messages(*args, offset=offset, **named)
        return msgspec.structs.replace(
            result,
            status=GetStatus.NO_MATCHED_MESSAGE,
            next_offset=QueueOffset(offset + 1),
            records=[],
        )

    bench.send(*[b"x"] * 9, size="1")
    monkeypatch.setattr(pop_reading, "get_messages", nothing_yet)
    bench.start(exp="size > 5", expType="SQL92", queueId="0")
    assert len(reads) == 1
    bench.start(exp="y", queueId="0", consumerGroup="other")
    assert len(reads) == 1 + READS_MAX


def test_a_batch_of_another_broker_is_refused_as_a_handle_is(bench: Bench) -> None:
    bench.send(b"a")
    popped = bench.pop()
    body = json.loads(_batch(popped, 1))
    with pytest.raises(BodyError, match="of broker 'broker-b'"):
        bench.ack_batch(json.dumps(body | {"brokerName": "broker-b"}).encode())
    assert bench.leader.state.pops.count == 1
    del body["brokerName"]
    assert bench.ack_batch(json.dumps(body).encode()).code == 0


def test_a_notice_says_whether_there_is_something_and_takes_nothing(bench: Bench) -> None:
    waiting = bench.start(200_054, pollTime="15000")
    bench.send(b"a")
    at_once = bench.start(200_054)
    for client in (waiting, at_once):
        assert client.answer.ext["hasMsg"] == "true"
    assert bench.pop().bodies == [b"a"]
    assert bench.start(200_054).answer.ext["hasMsg"] == "false"


def test_a_notice_says_so_when_it_cannot_see_what_lies_behind_what_nobody_wants(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It moves no group on, and looked at the same unwanted messages until its time was over."""
    waiting = bench.start(200_054, exp="y", pollTime="15000")
    monkeypatch.setattr(pop_reading, "READS_MAX", 0)
    bench.send(b"a", TAGS="x")
    bench.send(b"b", TAGS="y")
    assert waiting.answer.ext["hasMsg"] == "true"
    monkeypatch.undo()
    assert bench.pop(exp="y").bodies == [b"b"]


def test_only_wanted_tags_are_handed_out_and_the_group_passes_the_others(bench: Bench) -> None:
    bench.send(b"a", TAGS="x")
    bench.send(b"b", TAGS="y")
    bench.send(b"c", TAGS="x")
    client = bench.pop(exp="y")
    assert client.bodies == [b"b"]
    assert bench.pop(exp="y").code == 210
    assert bench.leader.state.offsets.get("G", "T", 0) == 3


@pytest.mark.parametrize("stands", [None, 1, 9])
@pytest.mark.parametrize("changed", [{}, {"initMode": "1"}, {"order": "true"}])
def test_a_queue_of_which_the_log_has_forgotten_all_is_passed_at_once(
    bench: Bench, stands: int | None, changed: dict[str, str]
) -> None:
    """The claim moved nobody, and the pop was tried again with one more record, for ever."""
    bench.send(b"a", b"b", b"c", b"d")
    leader = bench.leader
    if stands is not None:
        leader.commits.stage_control(ResetOffsets("G", "T", [(0, stands)]))
        bench.commit()
    leader.state.queues.forget(leader.log.end_position)
    client = bench.start(pollTime="15000", **changed)
    leader.commits.flush()
    for _ in range(3):
        leader.log.commit()
        leader.commits.flush()
    assert leader.log.open_count == 0
    assert leader.state.offsets.get("G", "T", QueueId(0)) == 4
    bench.send(b"e")
    assert client.bodies == [b"e"]


def test_a_message_that_was_read_in_two_pieces_is_handed_out_whole(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read from the disk comes as parts of a fixed size, whatever stands at their ends."""

    def read_in_parts(*args: Any, **named: Any) -> GetResult:
        result = get_messages(*args, **named)
        whole = b"".join(result.records)
        parts = [memoryview(whole[at : at + 100]) for at in range(0, len(whole), 100)]
        return msgspec.structs.replace(result, records=parts)

    monkeypatch.setattr(pop_reading, "get_messages", read_in_parts)
    bench.send(b"a" * 250, b"b", b"c" * 99)
    assert bench.pop().bodies == [b"a" * 250, b"b", b"c" * 99]


def test_before_its_first_record_a_leader_takes_no_time_for_passed(bench: Bench) -> None:
    """How much of the time between two terms does not count is known with that record only."""
    bench.send(b"a")
    bench.pop()
    leader = bench.leader
    leader.log.term += 1
    leader.state.apply([leader.log.append(b"", EntryKind.NOOP)])
    bench.wait(INVISIBLE_MS + RETURN_MS)
    assert leader.stored("%RETRY%G") == [], "or its copy would be there, and it still in flight"
    assert leader.state.pops.count == 1
    bench.send(b"b")
    bench.wait(INVISIBLE_MS + RETURN_MS)
    assert len(leader.stored("%RETRY%G")) == 1


def test_a_new_group_may_begin_at_the_end_of_an_old_queue(bench: Bench) -> None:
    bench.send(b"a", b"b")
    assert bench.pop(initMode="1").bodies == [b"a", b"b"], "the queue is young"


def test_a_message_is_handed_out_as_often_as_its_group_wants_then_it_is_a_dead_letter() -> None:
    bench = Bench(retries=2)
    bench.send(b"a")
    for times in range(2):
        client = bench.pop()
        assert client.messages[0].reconsume_times == times
        bench.wait(INVISIBLE_MS)
    assert bench.pop().code == 210
    (dead,) = bench.leader.stored("%DLQ%G")
    assert (dead.body, dead.reconsume_times) == (b"a", 2)
    assert dead.find(b"RETRY_TOPIC") == dead.find(b"DLQ_ORIGIN_TOPIC") == b"T"
    assert dead.find(b"ORIGIN_MESSAGE_ID") == dead.find(b"DLQ_ORIGIN_MESSAGE_ID") is not None
    assert bench.leader.state.pops.count == 0


def test_a_dead_letter_whose_properties_have_no_room_for_more_goes_as_it_is() -> None:
    """Else it would be due for ever, and before all others of its queue."""
    bench = Bench(retries=1)
    bench.send(b"full", A="x" * 32_700)
    bench.send(b"b")
    assert bench.pop(maxMsgNums="1").bodies == [b"full"]
    bench.wait(INVISIBLE_MS)
    assert bench.pop().bodies == [b"b"]
    (dead,) = bench.leader.stored("%DLQ%G")
    assert (dead.body, dead.find(b"A")) == (b"full", b"x" * 32_700)


def test_dead_letters_of_one_pop_fit_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 32 large ones the entry was refused, and with it each pop of the queue."""
    monkeypatch.setattr(pop_reading, "SPENT_BYTES_MAX", 2500)
    bench = Bench(retries=1)
    bodies = [bytes([number]) * 1000 for number in range(5)]
    bench.send(*bodies)
    bench.pop()
    bench.leader.now_ms += INVISIBLE_MS
    client = bench.start()
    dead = []
    bench.leader.commits.flush()
    while bench.leader.log.open_count:
        bench.leader.log.commit()
        dead.append(len(bench.leader.stored("%DLQ%G")))
        bench.leader.commits.flush()
    assert dead == [2, 4, 5]
    assert client.code == 210


def test_a_dead_letter_that_nobody_takes_holds_up_no_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(retries=1)
    bench.leader.create(TopicConfig("%DLQ%G", 1, 1, PERM_READ))
    bench.send(b"a", b"b")
    assert bench.pop(maxMsgNums="1").bodies == [b"a"]
    bench.wait(INVISIBLE_MS)
    assert bench.pop().bodies == [b"b"]
    for _ in range(10):
        bench.wait(100)
    assert bench.leader.state.pops.count == 2
    assert caplog.text.count("stays in flight") == 1
    bench.leader.commits.stage_control(PutTopic(TopicConfig("%DLQ%G", 1, 1)))
    bench.wait(RETURN_MS)
    bench.pop()
    assert {each.body for each in bench.leader.stored("%DLQ%G")} == {b"a", b"b"}


def test_what_nobody_pops_any_more_goes_to_the_retry_topic_where_those_find_it_who_pull(
    bench: Bench,
) -> None:
    bench.send(b"a", b"b")
    handle = bench.pop().handle(1)
    bench.ack(handle)
    bench.wait(INVISIBLE_MS + RETURN_MS - 1)
    assert bench.leader.stored("%RETRY%G") == []
    bench.wait(600)
    (returned,) = bench.leader.stored("%RETRY%G")
    assert (returned.body, returned.reconsume_times) == (b"a", 1)
    assert bench.leader.state.pops.count == 0
    assert bench.ack(handle).code == 208
    assert bench.pop().code == 210


def test_what_nobody_pops_waits_while_nobody_is_there_who_pulls(bench: Bench) -> None:
    """Through RocketMQ's proxy a group pops and has no members; it would never look into its retry topic."""
    bench.has_members = False
    bench.send(b"a", b"b")
    handle = bench.pop().handle(1)
    for _ in range(5):
        bench.wait(INVISIBLE_MS + RETURN_MS)
    assert bench.leader.stored("%RETRY%G") == []
    assert bench.ack(handle).code == 0
    (again,) = bench.pop().messages
    assert (again.body, again.reconsume_times) == (b"a", 1)


def test_what_waited_is_returned_when_somebody_comes_who_pulls(bench: Bench) -> None:
    bench.has_members = False
    fly(bench, 2)
    bench.wait(INVISIBLE_MS + RETURN_MS)
    bench.has_members = True
    for _ in range(STUCK_MS // LOOK_MS + 1):
        bench.wait(LOOK_MS + 2)
    assert len(bench.leader.stored("%RETRY%G")) == 2
    assert bench.leader.state.pops.count == 0


def test_what_is_spent_and_what_the_log_has_no_more_waits_for_nobody() -> None:
    bench = Bench(retries=2)
    bench.has_members = False
    bench.send(b"spent", b"waits")
    assert bench.pop(maxMsgNums="1").bodies == [b"spent"]
    bench.wait(INVISIBLE_MS)
    assert bench.pop(maxMsgNums="1").bodies == [b"spent"]
    assert bench.pop(maxMsgNums="1").bodies == [b"waits"]
    bench.wait(INVISIBLE_MS + RETURN_MS)
    assert [each.body for each in bench.leader.stored("%DLQ%G")] == [b"spent"]
    assert bench.leader.state.pops.count == 1
    bench.leader.state.queues.forget(bench.leader.log.end_position)
    for _ in range(STUCK_MS // LOOK_MS + 1):
        bench.wait(LOOK_MS + 2)
    assert bench.leader.state.pops.count == 0
    assert bench.leader.stored("%RETRY%G") == []


def test_nothing_waits_where_half_of_the_room_is_taken(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else groups that are gone for good would keep it from those who pop."""
    monkeypatch.setattr(pop_returns, "WAITING_MAX", 2)
    bench.has_members = False
    fly(bench, 2)
    bench.wait(INVISIBLE_MS + RETURN_MS)
    assert bench.leader.stored("%RETRY%G") == []
    monkeypatch.setattr(pop_returns, "WAITING_MAX", 1)
    bench.wait(STUCK_MS)
    assert len(bench.leader.stored("%RETRY%G")) == 2


def test_the_more_queues_wait_the_less_often_they_are_looked_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(queues=2000)
    fly(bench, 2000)
    bench.has_members = False
    due = DueQueues.due
    looks = []

    def counted(self: DueQueues, *args: Any) -> Any:
        looks.append(bench.leader.now_ms)
        return due(self, *args)

    monkeypatch.setattr(DueQueues, "due", counted)
    bench.leader.now_ms += INVISIBLE_MS + RETURN_MS
    for _ in range(100):
        bench.wait(100)
    assert 2 <= len(looks) <= 2 * (1 + 100 * 100 // (LOOK_MS + 2000)), "a round has two slices"
    assert bench.leader.stored("%RETRY%G") == []


def fly(bench: Bench, queues: int) -> None:
    """Pop one message of each queue."""
    leader = bench.leader
    for queue_id in range(queues):
        leader.send(b"%d" % queue_id, queue_id=queue_id)
    leader.commit()
    for queue_id in range(queues):
        place = PopMessages(
            *("G", "T", queue_id),
            at=None,
            first=0,
            end=1,
            taken=[0],
            again=[],
            invisible_ms=INVISIBLE_MS + queue_id // 1000,
        )
        leader.commits.stage_control(place)
    leader.commit()
    assert leader.state.pops.count == queues


@pytest.mark.slow
def test_thousands_of_queues_are_returned_in_slices_of_which_each_is_bounded() -> None:
    count = 3 * SLICE_QUEUES_MAX + 1
    bench = Bench(queues=count)
    leader = bench.leader
    leader.create(TopicConfig("%RETRY%G", 1, 1))
    fly(bench, count)
    leader.now_ms += INVISIBLE_MS + RETURN_MS + 10
    slices: list[int] = []
    while leader.state.pops.count and len(slices) < 20:
        before = leader.state.pops.count
        bench.returns.tick(leader.now_ms)
        staged_count = leader.commits.staging.staged_count
        assert staged_count <= 2 * SLICE_QUEUES_MAX, "a copy and a record each"
        leader.commit()
        slices.append(before - leader.state.pops.count)
        leader.now_ms += 50
    assert sum(slices) == count
    first = {int(each.body) for each in leader.stored("%RETRY%G")[: slices[0]]}
    assert max(first) < 2000, "what is due first goes first"
    assert len(slices) == 4


def test_a_slice_ends_with_its_time_and_the_next_goes_on_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(queues=5)
    fly(bench, 5)
    leader = bench.leader
    leader.now_ms += INVISIBLE_MS + RETURN_MS
    read = PopReading.message

    def slow(self: PopReading, *args: Any, **named: Any) -> Any:
        leader.now_ms += SLICE_MS // 2
        return read(self, *args, **named)

    monkeypatch.setattr(PopReading, "message", slow)
    for left in (3, 1, 0):
        bench.returns.tick(leader.now_ms)
        leader.commit()
        assert leader.state.pops.count == left


def test_a_queue_that_cannot_be_returned_holds_up_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    fly(bench, 2)
    read = PopReading.message
    tried = []

    def damaged(self: PopReading, key: PopKey, *args: Any, **named: Any) -> Any:
        if key[2] == 0:
            tried.append(bench.leader.now_ms)
            raise EntryDamagedError("entry 7 is damaged")
        return read(self, key, *args, **named)

    monkeypatch.setattr(PopReading, "message", damaged)
    bench.wait(INVISIBLE_MS + RETURN_MS)
    assert [each.body for each in bench.leader.stored("%RETRY%G")] == [b"1"]
    for _ in range(4):
        bench.wait(LOOK_MS)
    assert len(tried) == 1, "it is let alone for a while"
    monkeypatch.undo()
    bench.wait(STUCK_MS)
    assert len(bench.leader.stored("%RETRY%G")) == 2


def test_more_than_may_be_returned_at_once_waits_for_the_end_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pop_returns, "RETURNING_MAX", 3)
    bench = Bench(queues=5)
    fly(bench, 5)
    leader = bench.leader
    leader.now_ms += INVISIBLE_MS + RETURN_MS
    for _ in range(3):
        bench.returns.tick(leader.now_ms)
    assert len(bench.returns.claimed) == 3
    leader.commit()
    bench.returns.tick(leader.now_ms)
    leader.commit()
    assert leader.state.pops.count == 0


@pytest.mark.parametrize("position", ["4711", "-1"])
def test_a_handle_through_rocketmqs_proxy_ends_with_the_position_in_the_log(
    bench: Bench, position: str
) -> None:
    """As it does where the proxy knew the position, and where it did not."""
    bench.send(b"a", b"b")
    popped = bench.pop()
    told = [popped.handle(place) for place in (0, 1)]
    told = [each | {"extraInfo": f"{each['extraInfo']} {position}"} for each in told]
    assert bench.ack(told[0]).code == 0
    assert bench.change(told[1], 1000).code == 0


def test_what_is_being_acknowledged_is_not_returned(bench: Bench) -> None:
    bench.send(b"a")
    client = Client()
    command = RemotingCommand(code=200_051, opaque=9, ext=bench.pop().handle(), version=453)
    bench.leader.now_ms += INVISIBLE_MS + RETURN_MS
    bench.acks.acknowledge(pending(client, 200_051, command=command), command)
    bench.returns.tick(bench.leader.now_ms)
    bench.commit()
    assert client.code == 0
    assert bench.leader.stored("%RETRY%G") == []


def test_in_order_nothing_follows_before_all_is_acknowledged(bench: Bench) -> None:
    bench.send(b"a", b"b", b"c")
    first = bench.pop(order="true", attemptId="1", maxMsgNums="2", queueId="0")
    assert first.answer.ext["reviveQid"] == "999"
    assert bench.pop(order="true", attemptId="2", queueId="0").code == 210
    repeated = bench.pop(order="true", attemptId="1", maxMsgNums="2", queueId="0")
    assert repeated.bodies == [b"a", b"b"]
    assert repeated.answer.ext["orderCountInfo"] == "0 qo0%0 0;0 qo0%1 0", "it is the same delivery"
    bench.ack(repeated.handle(0))
    assert bench.pop(order="true", attemptId="2", queueId="0").code == 210
    bench.ack(repeated.handle(1))
    assert bench.pop(order="true", attemptId="2", queueId="0").bodies == [b"c"]


@pytest.mark.parametrize("in_batch", [False, True])
def test_who_waits_for_a_queue_in_order_goes_on_when_all_is_acknowledged(
    bench: Bench, in_batch: bool
) -> None:
    """Nothing comes and nothing is due then: they waited until their time was over."""
    bench.send(b"a", b"b", b"c")
    first = bench.pop(order="true", attemptId="1", maxMsgNums="2", queueId="0")
    notice = bench.start(200_054, order="true", queueId="0", pollTime="15000")
    waiting = bench.pop(order="true", attemptId="2", queueId="0", pollTime="15000")
    if in_batch:
        bench.ack_batch(_batch(first, 0b11))
    else:
        bench.ack(first.handle(0))
        assert (notice.frames, waiting.frames) == ([], [])
        bench.ack(first.handle(1))
    assert notice.answer.ext["hasMsg"] == "true"
    assert waiting.bodies == [b"c"]


def test_an_attempt_that_is_repeated_begins_with_the_queue_that_it_had(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pops begin anywhere: another queue was handed out, and the first one was nobody's until its time was over."""
    bench.send(b"a")
    bench.leader.send(b"b", queue_id=1)
    bench.commit()
    assert bench.pop(order="true", attemptId="1").bodies == [b"a"]
    monkeypatch.setattr(bench.pops, "_pick", lambda _bound: 1)
    assert bench.pop(order="true", attemptId="1").bodies == [b"a"]
    assert bench.pop(order="true", attemptId="2").bodies == [b"b"]


def test_an_attempt_that_is_repeated_is_the_same_delivery_and_no_dead_letter() -> None:
    """The copy would be stored, and the message, which is not due, still be in flight."""
    bench = Bench(retries=1)
    bench.send(b"a")
    for _ in range(2):
        client = bench.pop(order="true", attemptId="1", queueId="0")
        assert [each.reconsume_times for each in client.messages] == [0]
    assert bench.leader.stored("%DLQ%G") == []
    bench.wait(INVISIBLE_MS + 1)
    bench.pop(order="true", attemptId="1", queueId="0")
    assert len(bench.leader.stored("%DLQ%G")) == 1
    assert bench.leader.state.pops.count == 0


def test_a_repeated_attempt_takes_nothing_that_was_popped_in_any_order_since(bench: Bench) -> None:
    """As while a group goes over from one kind to the other, and some of its consumers are still of the old one."""
    bench.send(b"a")
    bench.pop()
    bench.wait(INVISIBLE_MS)
    assert bench.pop(order="true", attemptId="1", queueId="0").bodies == [b"a"]
    bench.send(b"b")
    assert bench.pop().bodies == [b"b"]
    repeated = bench.pop(order="true", attemptId="1", queueId="0")
    assert repeated.code == 210, "nobody else gets b before its time is over"


def test_a_group_that_goes_over_to_order_with_many_in_flight_has_no_look_at_all_of_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sorting 393 216 messages for each pop held up the leader for a second, which costs it its office."""
    monkeypatch.setattr(pop_reading, "SORTED_MAX", 3)
    monkeypatch.setattr(PoppedQueue, "in_order", lambda _self: pytest.fail("all were looked at"))
    bench.send(b"a", b"b", b"c", b"d")
    for _ in range(4):
        bench.pop(maxMsgNums="1")
        bench.wait(1)
    bench.wait(INVISIBLE_MS)
    named = {"order": "true", "queueId": "0", "maxMsgNums": "2"}
    assert bench.pop(attemptId="1", **named).bodies == [b"a", b"b"]
    assert bench.pop(attemptId="1", **named).bodies == [b"a", b"b"]
    assert bench.pop(attemptId="2", **named).code == 210


def test_a_reset_group_pops_from_there(bench: Bench) -> None:
    bench.send(b"a", b"b")
    old = bench.pop()
    bench.leader.commits.stage_control(ResetOffsets("G", "T", [(0, 1)]))
    bench.commit()
    assert bench.pop().bodies == [b"b"]
    assert bench.ack(old.handle()).code == 208


@pytest.mark.parametrize(
    "move",
    [
        ResetOffsets("G", "T", [(QueueId(0), QueueOffset(1))]),
        CommitOffsets(
            [OffsetCommit("G", "T", QueueId(0), QueueOffset(1))],
            is_forced=True,
        ),
        RemoveOffsets("G", "T"),
    ],
)
def test_a_pop_that_waits_is_answered_when_its_group_is_set_back(
    bench: Bench, move: Command
) -> None:
    bench.send(b"a", b"b")
    popped = bench.pop()
    for place in range(2):
        bench.ack(popped.handle(place))
    waiting = bench.pop(pollTime="20000")
    assert not waiting.frames
    bench.leader.commits.stage_control(move)
    bench.commit()
    assert waiting.bodies[-1:] == [b"b"]


def test_a_reset_where_a_look_has_been_is_seen_before_it_waits() -> None:
    bench = Bench(queues=QUEUES_MAX + 1)
    bench.send(b"a")
    bench.ack(bench.pop().handle())
    turns = in_turns(bench)
    waiting = bench.start(pollTime="20000")
    turns.give()
    bench.leader.commits.stage_control(ResetOffsets("G", "T", [(QueueId(0), QueueOffset(0))]))
    bench.commit()
    while turns.row:
        turns.give()
        bench.commit()
    assert waiting.bodies == [b"a"]
