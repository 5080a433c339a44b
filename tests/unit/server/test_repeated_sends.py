"""Repeated sends at the leader: answered with the earlier result, whatever stage the first one is in."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, cast

import pytest

from broker.server.handlers.new_topics import NewTopics
from broker.server.handlers.row_sends import RowSends
from broker.server.handlers.send_answers import SendAnswers
from broker.server.handlers.sends import Sends
from broker.server.requests.commits import Commits
from broker.server.requests.origin import Outputs
from broker.server.requests.put_times import PutTimes
from broker.server.requests.request import HOLD_MS, PendingRequest
from broker.server.requests.router import WAIT_MARGIN_MS
from broker.service import repeats
from broker.service.catalog import Catalog, Creation
from broker.service.repeats import Repeats
from broker.service.send import SendRules, SendSettings
from broker.store.control import DeleteTopic
from broker.store.recent_sends import COPIES_MAX
from broker.store.record_reader import read_message
from broker.store.staging import Staging
from broker.store.state import BrokerState
from broker.store.topics import PERM_ALL, TopicConfig
from dledger import (
    Committed,
    EntryDamagedError,
    EntryId,
    Failed,
    LeadershipLostError,
    NotLeaderError,
)
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.ids import Term
from dledger_mq.message.batch import BatchItem, encode_batch
from dledger_mq.message.ids import OffsetIdMaker, parse_offset_msg_id
from dledger_mq.message.properties import encode_properties
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.header import RemotingCommand, decode_command
from dledger_mq.remoting.replies import SendReplies
from dledger_mq.remoting.requests import SendFields, SendRequest
from tests.unit.server.pending import ParkingRouter, pending
from tests.unit.store.lone_broker import HOST, FakeLog

pytestmark = pytest.mark.usefixtures("each_stage")


class Log(FakeLog):
    """A log of the leader: what is proposed is appended at once and decided when the test says so."""

    def __init__(self, state: BrokerState) -> None:
        super().__init__()
        self.appender = self.reader = self
        self._state = state
        self._open: list[tuple[Entry, Callable[[Any], None]]] = []

    def propose(self, body: bytes, done: Callable[[Any], None]) -> EntryId:
        entry = self.append(body)
        self._open.append((entry, done))
        return entry.id

    def commit(self) -> None:
        for entry, done in self._open:
            self._state.apply([entry])
            done(Committed(entry.id, entry.id))
        self._open.clear()

    def lose(self, error: LeadershipLostError) -> None:
        for _, done in self._open:
            done(Failed(error))
        self._open.clear()


class Origin:
    number = 1
    address = "1.2.3.4:5"
    born_host = HOST

    def __init__(self, *, is_forwarded: bool = False) -> None:
        self.is_forwarded = is_forwarded
        self.is_closed = False
        self.sent: list[bytes] = []

    @property
    def is_gone(self) -> bool:
        return self.is_closed

    def send(self, frame: bytes) -> None:
        self.sent.append(frame)

    def answers(self) -> list[RemotingCommand]:
        decoder = FrameDecoder()
        decoder.feed(b"".join(self.sent))
        return [decode_command(frame) for frame in decoder.frames()]


class Bench:
    """A leader from which everything but sends is taken away."""

    def __init__(self, *, is_on: bool = True) -> None:
        self.state = BrokerState()
        self.log = Log(self.state)
        catalog = Catalog(self.state.topics.get, self.state.groups.get)
        self.commits = Commits(
            self.log,  # type: ignore[arg-type]  # the part of a LogServer that is used here
            Staging(self.state, HOST),
            catalog,
            Outputs(),
            count_max=1000,
            bytes_max=1_000_000,
            now_ms=lambda: 1_700_000_000_000,
        )
        self.router = ParkingRouter(self.commits)
        keys = count()
        rules = SendRules(
            catalog,
            SendSettings(4_000_000, True, True, 6, 18, b""),
            pick=lambda bound: 0,
            new_key=lambda: f"made-{next(keys)}",
        )
        known = Repeats(
            self.state,
            lambda offset: read_message(self.log, offset),
            lambda: self.state.last_store_ms,
        )
        ids = OffsetIdMaker(HOST)
        self.unrouted: list[Callable[[], None]] | None = None
        new_topics = NewTopics(self._when_routed, self.router.age_ms)
        self.sends = Sends(
            self.commits,
            self.router,
            rules,
            SendAnswers(SendReplies(), ids, "broker-a"),
            ends=cast("Any", None),
            rows=RowSends(
                self.commits, self.router, lambda: self.state.sinks, ids, new_topics=new_topics
            ),
            repeats=known if is_on else None,
            new_topics=new_topics,
            put_times=PutTimes(),
        )
        self._born = count(1)
        self.new_term()
        self.commits.create(Creation(topics=(TopicConfig("T", 4, 4),)))
        self.commit()

    def _when_routed(self, then: Callable[[], None]) -> None:
        """Name servers take a topic at once, or when the test says so."""
        if self.unrouted is None:
            then()
        else:
            self.unrouted.append(then)

    def hold_routes(self) -> None:
        """From now on sends create topics, which the name servers do not take."""
        self.commits.create(Creation(topics=(TopicConfig("TBW102", 4, 4, PERM_ALL),)))
        self.commit()
        self.unrouted = []

    def take_routes(self) -> None:
        """From now on the name servers know all topics."""
        unrouted, self.unrouted = self.unrouted or [], None
        for then in unrouted:
            then()

    def new_term(self) -> None:
        """Another leader, which may be this node again."""
        self.sends.lost()
        self.commits.staging.discard()
        self.log.term += 1
        self.state.apply([self.log.append(b"", EntryKind.NOOP)])

    def send(
        self,
        key: str | None,
        body: bytes = b"body",
        *,
        queue: int = 0,
        topic: str = "T",
        origin: Origin | None = None,
        items: list[tuple[str, bytes]] | None = None,
        born_ms: int = 0,
        properties: dict[str, str] | None = None,
        flag: int = 0,
        sys_flag: int = 0,
        held_ms: int = 0,
    ) -> Origin:
        """Say one send; the origin has the answer, once there is one."""
        origin = origin or Origin()
        named = {} if key is None else {"UNIQ_KEY": key}
        if items is not None:
            body = encode_batch(
                BatchItem(0, one, encode_properties({"UNIQ_KEY": name})) for name, one in items
            )
        fields = SendFields(
            producer_group="P",
            topic=topic,
            default_topic="TBW102",
            default_topic_queue_nums=4,
            queue_id=queue,
            sys_flag=sys_flag,
            born_timestamp_ms=born_ms or next(self._born),
            flag=flag,
            properties=encode_properties({**named, **(properties or {})}).decode(),
            is_batch=items is not None,
        )
        command = SendRequest(opaque=7, fields=fields)
        request = pending(origin, 310, body=body, command=command, opaque=7, deadline_ms=HOLD_MS)
        request.was_held, request.waited_ms = bool(held_ms), held_ms
        self.submit(request)
        return origin

    def submit(self, request: PendingRequest) -> None:
        self.sends.send(request, cast("SendRequest", request.command))

    def retry(self) -> list[Origin]:
        """What waits for a leader is brought to one."""
        held, self.router.held = self.router.held, []
        for request in held:
            self.submit(request)
        return [cast("Origin", request.origin) for request in held]

    def commit(self) -> None:
        self.commits.flush()
        self.log.commit()

    def stored(self, topic: bytes = b"T") -> int:
        return sum(
            queue.max_offset for key, queue in self.state.queues.by_key.items() if key[0] == topic
        )

    def ids(self, origin: Origin) -> list[int]:
        """Where the messages of a send stand, as its answer says."""
        return [parse_offset_msg_id(each)[2] for each in place(origin)[2].split(",")]

    def bodies(self, origin: Origin) -> list[bytes]:
        """What stands there."""
        return [read_message(self.log, offset).body for offset in self.ids(origin)]


def place(origin: Origin) -> tuple[str, str, str]:
    (answer,) = origin.answers()
    assert answer.code == 0, answer.remark
    return answer.ext["queueId"], answer.ext["queueOffset"], answer.ext["msgId"]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_new_leader_answers_with_what_the_old_one_stored(bench: Bench) -> None:
    first = bench.send("k", queue=1)
    bench.commit()
    bench.new_term()
    again = bench.send("k", queue=1)
    assert place(again) == place(first), "at once"
    bench.commit()
    assert bench.stored() == 1


@pytest.mark.parametrize("is_decided", [True, False])
@pytest.mark.parametrize("is_other_term", [True, False])
def test_what_stood_in_a_topic_that_was_deleted_is_stored_in_the_new_one(
    bench: Bench, *, is_decided: bool, is_other_term: bool
) -> None:
    bench.commits.create(Creation(topics=(TopicConfig("TBW102", 4, 4, PERM_ALL),)))
    bench.send("k", b"a", born_ms=5)
    bench.commit()
    if is_other_term:
        bench.new_term()
    bench.commits.stage_control(DeleteTopic("T"))
    if is_decided:
        bench.commit()
        bench.send("other", b"b")  # which stands in the same place of the new topic
        bench.commit()
    again = bench.send("k", b"a", born_ms=5)
    bench.commit()
    assert bench.bodies(again) == [b"a"]
    assert bench.stored() == 1 + is_decided
    assert place(again)[1] == str(int(is_decided))
    repeat = bench.send("k", b"a", born_ms=5)
    assert place(repeat) == place(again)


def test_what_is_on_its_way_to_a_topic_that_is_deleted_is_stored_in_the_new_one(
    bench: Bench,
) -> None:
    bench.commits.create(Creation(topics=(TopicConfig("TBW102", 4, 4, PERM_ALL),)))
    first = bench.send("k")
    bench.commits.stage_control(DeleteTopic("T"))
    again, repeat = bench.send("k"), bench.send("k")
    bench.commit()
    assert place(first) != place(again) == place(repeat)
    assert bench.stored() == 1


def test_what_stood_before_a_deletion_is_stored_though_another_send_began_the_topic_anew(
    bench: Bench,
) -> None:
    bench.commits.create(Creation(topics=(TopicConfig("TBW102", 4, 4, PERM_ALL),)))
    first = bench.send("k", b"a", born_ms=5)
    bench.commit()
    bench.new_term()
    bench.commits.stage_control(DeleteTopic("T"))
    bench.send("other", b"b")
    again, repeat = bench.send("k", b"a", born_ms=5), bench.send("k", b"a", born_ms=6)
    bench.commit()
    assert place(first) != place(again) == place(repeat)
    assert bench.bodies(again) == [b"a"]
    assert bench.stored() == 2


def test_what_the_old_leader_did_not_bring_through_is_stored(bench: Bench) -> None:
    first = bench.send("k")
    bench.commits.flush()
    bench.log.lose(LeadershipLostError("gone"))
    bench.log.entries.pop()
    bench.new_term()
    assert first.answers()[0].code == 1, "outcome unknown"
    again = bench.send("k")
    bench.commit()
    assert place(again)[1] == "0"
    assert bench.stored() == 1


def test_a_confirmed_key_is_stored_again_on_purpose(bench: Bench) -> None:
    first = bench.send("k")
    bench.commit()
    second = bench.send("k")
    bench.commit()
    assert place(first) != place(second)
    assert bench.stored() == 2


def test_the_same_frame_once_more_is_no_purpose(bench: Bench) -> None:
    first = bench.send("k", born_ms=77)
    bench.commit()
    assert place(bench.send("k", born_ms=77)) == place(first)


def test_an_answer_to_a_broken_connection_confirms_nothing(bench: Bench) -> None:
    gone = Origin()
    bench.send("k", origin=gone)
    gone.is_closed = True
    bench.commit()
    assert place(bench.send("k"))[1] == "0"
    assert bench.stored() == 1


def test_an_answer_that_another_node_has_in_its_hands_confirms_nothing(bench: Bench) -> None:
    first = bench.send("k", origin=Origin(is_forwarded=True))
    bench.commit()
    again = bench.send("k", origin=Origin(is_forwarded=True))
    assert place(again) == place(first)
    bench.sends.delivered("no id,," + place(first)[2])
    bench.send("k")
    bench.commit()
    assert bench.stored() == 2, "this one is on purpose"


def test_an_answer_over_a_link_that_breaks_confirms_nothing(bench: Bench) -> None:
    first = bench.send("k", origin=Origin(is_forwarded=True))
    bench.commit()
    bench.sends.delivered(place(first)[2])
    bench.sends.connection_closed(Origin.number)
    assert place(bench.send("k")) == place(first), "the node said so, and died before it wrote it"


@pytest.mark.parametrize("is_flushed", [False, True])
def test_a_repeat_of_what_is_on_its_way_gets_the_same_answer(
    bench: Bench, *, is_flushed: bool
) -> None:
    first = bench.send("k")
    if is_flushed:
        bench.commits.flush()
    again, third = bench.send("k"), bench.send("k", queue=-1)
    assert not first.answers() + again.answers() + third.answers()
    bench.commit()
    assert place(first) == place(again) == place(third)
    assert bench.stored() == 1


def test_repeats_of_what_failed_are_told_too(bench: Bench) -> None:
    first, again = bench.send("k"), bench.send("k")
    bench.commits.flush()
    bench.log.lose(LeadershipLostError("gone"))
    assert [origin.answers()[0].code for origin in (first, again)] == [1, 1]
    assert "unknown" in str(again.answers()[0].remark)


def test_another_body_under_a_key_on_its_way_is_another_send(bench: Bench) -> None:
    bench.send("k", b"one")
    bench.send("k", b"two")
    bench.commit()
    assert bench.stored() == 2


def test_each_item_of_a_batch_has_its_own_key(bench: Bench) -> None:
    items = [("a", b"1"), ("b", b"2"), ("c", b"3")]
    first = bench.send(None, items=items)
    bench.commit()
    bench.new_term()
    again = bench.send(None, items=items)
    assert place(again) == place(first)
    assert place(first)[2].count(",") == 2
    bench.commit()
    assert bench.stored() == 3


def test_of_a_batch_only_what_is_missing_is_stored(bench: Bench) -> None:
    first = bench.send("b", b"2")
    bench.commit()
    bench.new_term()
    batch = bench.send(None, items=[("a", b"1"), ("b", b"2"), ("c", b"3")])
    bench.commit()
    assert bench.stored() == 3
    assert bench.bodies(batch) == [b"1", b"2", b"3"]
    assert bench.ids(batch)[1:2] == bench.ids(first)


def test_a_batch_that_is_on_its_way_is_not_stored_twice(bench: Bench) -> None:
    items = [("a", b"1"), ("a", b"1"), ("c", b"3")]
    first, again = bench.send(None, items=items), bench.send(None, items=items)
    bench.commit()
    assert place(first) == place(again)
    assert bench.stored() == 3, "a key twice in one batch is on purpose"


@pytest.mark.parametrize("count", [COPIES_MAX + 1, 5 * COPIES_MAX])
def test_a_batch_of_many_equal_messages_that_is_on_its_way_is_not_stored_twice(
    bench: Bench, count: int
) -> None:
    items = [("a", b"1")] * count
    first, again = bench.send(None, items=items), bench.send(None, items=items)
    bench.commit()
    assert place(first) == place(again)
    assert bench.stored() == count


def test_a_batch_under_one_key_is_not_compared_with_large_records_over_and_over(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeats, "MISMATCH_BYTES_MAX", COPIES_MAX * 1000)
    for number in range(COPIES_MAX):
        bench.send("k", b"%d" % number * 1000)
        bench.commit()
    before = bench.log.fetched
    sent = bench.send(None, items=[("k", b"%d" % number) for number in range(50)])
    assert bench.log.fetched - before == COPIES_MAX
    bench.commit()
    assert bench.bodies(sent) == [b"%d" % number for number in range(50)]


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_batch_that_is_a_repeat_is_compared_however_large_it_is(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, *, is_committed: bool
) -> None:
    monkeypatch.setattr(repeats, "MISMATCH_BYTES_MAX", 1000)
    items = [(f"k{number}", b"%d" % number) for number in range(200)]
    first = bench.send(None, items=items, born_ms=5)
    if is_committed:
        bench.commit()
    again = bench.send(None, items=items, born_ms=5)
    bench.commit()
    assert place(again) == place(first)
    assert bench.stored() == 200


def test_a_send_without_a_key_is_always_stored(bench: Bench) -> None:
    for _ in range(2):
        bench.send(None)
        bench.commit()
        bench.new_term()
    assert bench.stored() == 2


def test_with_the_switch_off_every_send_is_stored() -> None:
    bench = Bench(is_on=False)
    for _ in range(2):
        bench.send("k")
        bench.commit()
        bench.new_term()
    assert bench.stored() == 2


def test_nothing_is_kept_of_sends_that_ended(bench: Bench) -> None:
    bench.send("k", origin=Origin(is_forwarded=True))
    bench.send("k")
    bench.send(None, items=[("a", b"1"), ("b", b"2")])
    bench.commit()
    bench.send("l")
    bench.commits.flush()
    bench.log.lose(LeadershipLostError("gone"))
    assert bench.sends._known is not None
    assert not bench.sends._known.ahead


def test_a_repeat_waits_until_what_was_stored_before_can_be_read(bench: Bench) -> None:
    one, other = [("a", b"1")], [("b", b"2")]
    bench.send(None, items=one)
    bench.commit()
    bench.send(None, items=other)
    bench.commit()
    bench.new_term()
    damaged = bench.log.entries[-2].index
    bench.log.damaged = {damaged}
    with pytest.raises(EntryDamagedError):
        bench.send(None, items=one + other)
    assert bench.commits.is_idle
    bench.log.damaged.clear()
    bench.send(None, items=one + other)
    bench.commit()
    assert bench.stored() == 2, "what was found before the damage is found again"


# Only what is the same in everything that would be stored is a repeat.

OTHERS: list[dict[str, Any]] = [
    {"queue": 1},
    {"body": b"other"},
    {"properties": {"TAGS": "paid"}},
    {"properties": {"DELAY": "2"}},
    {"properties": {"REAL_TOPIC": "T"}},
    {"flag": 1},
    {"sys_flag": 1},
]


@pytest.mark.parametrize("how", OTHERS, ids=str)
@pytest.mark.parametrize("stage", ["staged", "flying", "confirmed", "older term"])
def test_another_message_under_a_key_is_stored(
    bench: Bench, how: dict[str, Any], stage: str
) -> None:
    first = bench.send("k", born_ms=77)
    if stage == "flying":
        bench.commits.flush()
    elif stage != "staged":
        bench.commit()
    if stage == "older term":
        bench.new_term()
    second = bench.send("k", **how, born_ms=77)
    bench.commit()
    bench.commit()
    assert bench.ids(first) != bench.ids(second)
    assert bench.bodies(second) == [how.get("body", b"body")]
    assert bench.stored() + bench.stored(b"SCHEDULE_TOPIC_XXXX") == 2
    again = [bench.send("k", born_ms=77), bench.send("k", **how, born_ms=77)]
    assert [bench.ids(each) for each in again] == [bench.ids(first), bench.ids(second)]


@pytest.mark.parametrize("wish", [{"DELAY": "2"}, {"TAGS": "a"}])
def test_a_wish_or_a_tag_is_no_sign_of_another_message(bench: Bench, wish: dict[str, str]) -> None:
    first = bench.send("k", properties=wish)
    bench.commit()
    bench.new_term()
    assert place(bench.send("k", properties=wish)) == place(first)


def test_who_leaves_the_queue_to_the_broker_finds_it_in_any(bench: Bench) -> None:
    first = bench.send("k", queue=3)
    bench.commit()
    bench.new_term()
    assert place(bench.send("k", queue=-1)) == place(first)


def test_the_parts_of_a_batch_without_a_queue_stand_in_one(bench: Bench) -> None:
    two, three = bench.send("a", b"1", queue=2), bench.send("b", b"2", queue=3)
    bench.commit()
    bench.new_term()
    batch = bench.send(None, queue=-1, items=[("a", b"1"), ("b", b"2"), ("c", b"3")])
    bench.commit()
    assert place(batch)[0] == "2"
    assert bench.ids(batch)[0] == bench.ids(two)[0]
    assert bench.ids(three)[0] not in bench.ids(batch), "one answer names one queue"
    assert bench.bodies(batch) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("is_flushed", [False, True])
def test_of_a_batch_that_is_on_its_way_in_part_the_rest_is_stored(
    bench: Bench, *, is_flushed: bool
) -> None:
    first = bench.send(None, items=[("a", b"1"), ("b", b"2")])
    if is_flushed:
        bench.commits.flush()
    second = bench.send(None, items=[("a", b"1"), ("c", b"3")])
    third = bench.send(None, items=[("c", b"3"), ("d", b"4"), ("b", b"2")])
    single = bench.send("b", b"2")
    bench.commit()
    bench.commit()
    assert bench.bodies(first) == [b"1", b"2"]
    assert bench.bodies(second) == [b"1", b"3"]
    assert bench.bodies(third) == [b"3", b"4", b"2"]
    assert bench.bodies(single) == [b"2"]
    assert bench.stored() == 4
    assert bench.sends._known is not None
    assert not bench.sends._known.ahead


def test_a_single_send_of_what_a_batch_carries_is_not_stored_again(bench: Bench) -> None:
    batch = bench.send(None, items=[("a", b"1"), ("b", b"2")])
    single = bench.send("a", b"1")
    bench.commit()
    assert bench.stored() == 2
    assert bench.ids(single) == bench.ids(batch)[:1]


def test_of_two_that_are_equal_each_is_found_by_its_own(bench: Bench) -> None:
    items = [("a", b"1"), ("a", b"1")]
    first = bench.send(None, items=items)
    bench.commit()
    bench.new_term()
    again = bench.send(None, items=[*items, ("a", b"1")])
    bench.commit()
    assert bench.ids(again)[:2] == bench.ids(first)
    assert bench.stored() == 3


def test_what_joined_a_send_that_was_refused_goes_to_the_next_leader(bench: Bench) -> None:
    bench.send(None, items=[("a", b"1"), ("b", b"2")])
    bench.send(None, items=[("b", b"2"), ("c", b"3")])
    bench.send("a", b"1")
    bench.commits.lost(NotLeaderError(None, Term(2)))
    assert len(bench.router.held) == 3, "nothing of them was done"
    assert bench.sends._known is not None
    assert not bench.sends._known.ahead
    bench.new_term()
    origins = bench.retry()
    bench.commit()
    assert bench.stored() == 3
    bodies = sorted(bench.bodies(origin) for origin in origins)
    assert bodies == [[b"1"], [b"1", b"2"], [b"2", b"3"]]


def test_what_joined_a_send_of_unknown_outcome_is_unknown_too(bench: Bench) -> None:
    first = bench.send(None, items=[("a", b"1"), ("b", b"2")])
    bench.commits.flush()
    second = bench.send(None, items=[("b", b"2"), ("c", b"3")])
    bench.log.lose(LeadershipLostError("gone"))
    assert first.answers()[0].code == 1
    assert not second.answers(), "its rest is not decided yet"
    bench.commits.lost(NotLeaderError(None, Term(2)))
    assert second.answers()[0].code == 1
    assert not bench.router.held, "nobody knows, so nobody carries it on"
    assert bench.sends._known is not None
    assert not bench.sends._known.ahead


def test_what_stands_of_a_send_that_failed_is_found_by_its_repeat(bench: Bench) -> None:
    first = bench.send("a", b"1")
    bench.commits.flush()
    bench.send(None, items=[("a", b"1"), ("b", b"2")])
    bench.log.commit()
    bench.commits.lost(NotLeaderError(None, Term(1)))
    assert len(bench.router.held) == 1, "of the second send `b` is surely not stored"
    again = bench.send(None, items=[("a", b"1"), ("b", b"2")])
    bench.commit()
    assert bench.ids(again)[:1] == bench.ids(first)
    assert bench.stored() == 2
    bench.send("a", b"1")
    bench.commit()
    assert bench.stored() == 3, "everybody who sent it was told: this one is on purpose"


def test_an_unanswered_message_says_nothing_of_others_under_its_key(bench: Bench) -> None:
    first = bench.send("k", queue=0)
    bench.commit()
    gone = Origin()
    bench.send("k", queue=1, origin=gone)
    gone.is_closed = True
    bench.commit()
    second = bench.send("k", queue=0)
    bench.commit()
    assert bench.ids(first) != bench.ids(second), "the first was confirmed: this one is on purpose"
    assert bench.stored() == 3


def test_one_of_several_connections_that_stands_is_enough(bench: Bench) -> None:
    gone, there = Origin(), Origin()
    bench.send("k", origin=gone)
    bench.send("k", origin=there)
    gone.is_closed = True
    bench.commit()
    second = bench.send("k")
    bench.commit()
    assert bench.ids(there) != bench.ids(second)
    assert bench.stored() == 2


def test_an_attempt_that_arrives_late_is_not_stored_after_its_successor(bench: Bench) -> None:
    successor = bench.send("k", born_ms=200)
    bench.commit()
    late = bench.send("k", born_ms=100)
    bench.commit()
    assert place(late) == place(successor)
    bench.send("k", born_ms=300)
    bench.commit()
    assert bench.stored() == 2, "what was made later is on purpose"


@pytest.mark.parametrize("first_is", ["lost", "on its way", "of an older term"])
def test_an_attempt_between_the_stored_one_and_the_answered_one_is_neither_on_purpose(
    bench: Bench, first_is: str
) -> None:
    """It waited somewhere, behind a connection that its client keeps."""
    gone = Origin()
    first = bench.send("k", origin=gone, born_ms=100)
    gone.is_closed = first_is == "lost"
    if first_is != "on its way":
        bench.commit()
    if first_is == "of an older term":
        bench.new_term()
    answered = bench.send("k", born_ms=300)
    bench.commit()
    late = bench.send("k", born_ms=200)
    bench.commit()
    assert place(late) == place(answered) == place(first)
    bench.send("k", born_ms=400)
    bench.commit()
    assert bench.stored() == 2, "what was made later is on purpose"


def test_who_gave_up_while_its_send_was_held_repeats_it(bench: Bench) -> None:
    """Both attempts waited for a leader, at two nodes; the first had its answer before the second came."""
    held = bench.send("k", born_ms=1_000, held_ms=2_000)
    bench.commit()
    again = bench.send("k", born_ms=1_000 + 2_000 - WAIT_MARGIN_MS)
    assert place(again) == place(held)
    bench.send("k", born_ms=1_000 + 2_000)
    bench.commit()
    assert bench.stored() == 2, "this one may have been made with the answer at hand"


def test_copies_of_a_message_whose_answer_waits_for_a_route_are_one_more_message(
    bench: Bench,
) -> None:
    bench.hold_routes()
    first = bench.send("k", topic="New")
    bench.commit()
    assert not first.answers()
    copies = bench.send(None, items=[("k", b"body"), ("k", b"body")], topic="New")
    bench.commit()
    bench.take_routes()
    assert bench.stored(b"New") == 2
    assert sorted(bench.ids(copies)) == sorted(set(bench.ids(copies)))
    assert bench.ids(first)[0] in bench.ids(copies)


def test_a_retry_is_one_while_the_answer_waits_for_a_route(bench: Bench) -> None:
    bench.hold_routes()
    first = bench.send("k", topic="New")
    bench.commit()
    again = bench.send("k", topic="New")
    assert not first.answers() + again.answers()
    bench.take_routes()
    assert place(first) == place(again)
    on_purpose = bench.send("k", topic="New")
    bench.commit()
    assert place(on_purpose) != place(first)


def test_a_retry_of_the_rest_of_a_batch_is_one_while_its_answer_waits_for_a_route(
    bench: Bench,
) -> None:
    bench.hold_routes()
    bench.send("k", b"1", topic="New")
    bench.commit()
    batch = bench.send(None, items=[("k", b"1"), ("m", b"2")], topic="New")
    bench.commit()
    again = bench.send("m", b"2", topic="New")
    bench.take_routes()
    assert bench.ids(batch)[1:] == bench.ids(again)
