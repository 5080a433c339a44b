"""Which sends repeat an earlier one (docs/adr/0150; unlike C22)."""

from __future__ import annotations

import msgspec
import pytest

from broker.service import repeats
from broker.service.repeats import EarlierSend, Repeats
from broker.service.sameness import HALF_ROOM_BYTES, requested_by_plan, stored_as
from broker.service.send import MessagePlan, SendPlan
from broker.store.recent_sends import AGE_MAX_MS
from broker.store.record_reader import MessageGoneError, read_message
from broker.store.schedule import DELIVERY_PROPERTIES_BYTES
from dledger.raft.entry import EntryKind
from dledger_mq.message.errors import RecordError
from dledger_mq.message.ids import offset_msg_id
from dledger_mq.message.numbers import PhysicalOffset
from dledger_mq.message.properties import PROPERTIES_BYTES_MAX, encode_properties
from dledger_mq.message.record import StoredMessage
from tests.unit.store.lone_broker import HOST, LoneBroker

BORN_LATER = 5_000_000_000_000


class Bench:
    def __init__(self) -> None:
        self.broker = LoneBroker()
        self.repeats = Repeats(self.broker.state, self.load, lambda: self.broker.now_ms)

    def load(self, offset: int) -> StoredMessage | None:
        try:
            return read_message(self.broker.log, offset)
        except MessageGoneError:
            return None

    def store(
        self, key: str = "k", topic: str = "T", body: bytes = b"body", **more: str
    ) -> PhysicalOffset:
        """Where it was stored."""
        return PhysicalOffset(
            self.broker.send(topic, 1, body, UNIQ_KEY=key, **more).physical_offset(0)
        )

    def new_term(self) -> None:
        self.broker.log.term += 1
        self.broker.state.apply([self.broker.log.append(b"", EntryKind.NOOP)])

    def find(
        self,
        key: bytes = b"k",
        topic: str = "T",
        body: bytes = b"body",
        *,
        times: int = 0,
        level: int = 0,
        due_ms: int = 0,
        queue_id: int = 1,
        any_queue: bool = False,
        among: list[int] | None = None,
        born_ms: int = BORN_LATER,
        more: dict[str, str] | None = None,
    ) -> EarlierSend | None:
        named = encode_properties({"UNIQ_KEY": key.decode(), **(more or {})})
        message = MessagePlan(0, body, named, key)
        plan = SendPlan(topic, queue_id, 0, times, level, (message,), due_ms=due_ms)
        asked = requested_by_plan(plan, message)
        if among is not None:
            return self.repeats.find_among(among, asked, any_queue=any_queue)
        found = self.repeats.find(key, asked, born_ms, any_queue=any_queue)
        if found is not None:
            self.repeats.claim([found.physical_offset], born_ms)
        return found


def place(offset: int, queue_id: int = 1) -> EarlierSend:
    return EarlierSend(offset, queue_id, 0, offset_msg_id(HOST, offset))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_what_an_older_term_stored_is_found_with_its_place(bench: Bench) -> None:
    offset = bench.store()
    bench.new_term()
    assert bench.find() == place(offset)


def test_what_nobody_repeats_any_more_is_a_send_on_purpose_though_nothing_came_since(
    bench: Bench,
) -> None:
    offset = bench.store()
    bench.new_term()
    bench.broker.now_ms += AGE_MAX_MS
    assert bench.find() == place(offset)
    bench.repeats.not_answered([offset])
    bench.broker.now_ms += 1
    assert bench.find() is None
    assert bench.find(born_ms=0) is None


def test_a_repeat_that_was_answered_confirms(bench: Bench) -> None:
    offset = bench.store()
    bench.new_term()
    assert bench.find() is not None
    assert bench.find(born_ms=BORN_LATER + 1) is None, "on purpose now"
    bench.repeats.not_answered([offset])
    assert bench.find() is not None
    bench.repeats.forget()
    bench.new_term()
    assert bench.find() is not None


def test_notes_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "NOTES_MAX", 2)
    bench.repeats.not_answered([bench.store(key) for key in ("a", "b", "c")])
    found = [bench.find(key) is not None for key in (b"a", b"b", b"c")]
    assert found == [False, True, True]


def test_within_a_term_a_confirmed_key_is_a_send_on_purpose(bench: Bench) -> None:
    bench.store()
    assert bench.find() is None
    bench.new_term()
    bench.store()
    assert bench.find() is None, "the newest copy counts, and its term goes on"


def test_an_answer_that_found_no_connection_was_no_confirmation(bench: Bench) -> None:
    offset = bench.store()
    bench.repeats.not_answered([offset])
    assert bench.find() == place(offset)
    assert bench.find(born_ms=BORN_LATER + 1) is None, "it was answered now"


def test_an_answer_that_is_known_to_be_taken_confirms(bench: Bench) -> None:
    offset = bench.store()
    bench.repeats.note_answer([offset], is_received=False)
    bench.repeats.answered([offset])
    assert bench.find() is None
    bench.new_term()
    assert bench.find() is not None
    bench.repeats.note_answer([offset], is_received=False)
    bench.repeats.note_answer([offset], is_received=True)
    assert bench.find(born_ms=BORN_LATER + 1) is None, "though it is of an older term"


@pytest.mark.parametrize("earlier_ms", [0, 1, 1000])
def test_a_request_that_was_not_made_after_it_is_a_repeat_whatever_was_answered(
    bench: Bench, earlier_ms: int
) -> None:
    offset = bench.store()
    born_ms = bench.broker.now_ms - 1 - earlier_ms
    assert bench.find(born_ms=born_ms) == place(offset)


def test_other_topic_body_or_reconsume_count_is_another_send(bench: Bench) -> None:
    bench.store()
    bench.new_term()
    assert bench.find(topic="U") is None
    assert bench.find(body=b"other") is None
    assert bench.find(times=1) is None
    assert bench.find(key=b"unknown") is None
    assert bench.find() is not None


def test_copies_of_the_broker_hide_no_send(bench: Bench) -> None:
    """A consumer may have given the message back, or a delay run out, before the retry comes."""
    offset = bench.store()
    bench.store(topic="%RETRY%g")
    bench.new_term()
    assert bench.find() == place(offset)


def test_a_delayed_send_is_found_in_the_schedule_topic(bench: Bench) -> None:
    more = {"DELAY": "2"}
    offset = bench.store(topic="SCHEDULE_TOPIC_XXXX", **more, REAL_TOPIC="T", REAL_QID="5")
    bench.new_term()
    assert bench.find(level=2, queue_id=5, more={"DELAY": "3"}) is None, "another wish"
    assert bench.find(level=2, queue_id=4, more=more) is None, "another queue"
    assert bench.find(level=2, queue_id=5, more=more) == place(offset, 5)
    bench.repeats.not_answered([offset])
    assert bench.find(level=2, any_queue=True, more=more) == place(offset, 5)
    assert bench.find() is None, "sent without a delay it is another send"


def test_a_due_time_that_is_counted_from_now_is_compared_as_it_was_wished(bench: Bench) -> None:
    more = {"TIMER_DELAY_MS": "10"}
    waiting = {**more, "REAL_TOPIC": "T", "REAL_QID": "5", "TIMER_OUT_MS": "1000"}
    offset = bench.store(topic="rmq_sys_wheel_timer", **waiting)
    bench.store(**waiting, WAIT="false")  # its delivery
    bench.new_term()
    found = msgspec.structs.replace(place(offset, 5), due_ms=1000)
    assert bench.find(due_ms=2000, queue_id=5, more={"TIMER_DELAY_MS": "20"}) is None
    assert bench.find(due_ms=2000, queue_id=5, more=more) == found
    bench.repeats.not_answered([offset])
    assert bench.find(due_ms=0, queue_id=5, more=more) == found, "its time has passed meanwhile"


def test_what_the_configuration_adds_is_no_difference(bench: Bench) -> None:
    """A failover may lead to a member that was started with another region."""
    offset = bench.store(MSG_REGION="a", TRACE_ON="true", CLUSTER="c")
    bench.new_term()
    assert bench.find(more={"MSG_REGION": "b", "TRACE_ON": "false", "CLUSTER": "d"}) == place(
        offset
    )


def test_what_the_log_no_longer_holds_is_stored_again(bench: Bench) -> None:
    bench.store()
    bench.new_term()
    bench.broker.log.first_position = bench.broker.log.end_position
    assert bench.find() is None


def test_a_new_term_makes_the_leaders_own_notes_needless(bench: Bench) -> None:
    bench.repeats.not_answered([bench.store()])
    bench.repeats.forget()
    assert bench.find() is None


def test_among_given_places_the_first_that_holds_the_same_is_found(bench: Bench) -> None:
    """Confirmed or not: whoever asks knows that these are open."""
    other, first, second = bench.store(body=b"other"), bench.store(), bench.store()
    found = bench.find(among=[other, first, second])
    assert found is not None
    assert found.physical_offset == first
    assert bench.find(among=[other]) is None
    assert bench.find(among=[first], queue_id=2) is None
    assert bench.find(among=[first], queue_id=2, any_queue=True) == found
    bench.broker.log.first_position = bench.broker.log.end_position
    assert bench.find(among=[first]) is None, "it is gone"


@pytest.mark.parametrize("is_half", [True, False])
def test_what_waits_leaves_room_for_what_is_added_later(*, is_half: bool) -> None:
    """Its commit, its due time and its delivery, to the byte."""
    room_bytes = HALF_ROOM_BYTES if is_half else DELIVERY_PROPERTIES_BYTES

    def parked(padding: int) -> bytes:
        message = MessagePlan(0, b"", encode_properties({"p": "x" * padding}), b"k")
        level = 0 if is_half else 1
        return stored_as(SendPlan("T", 1, 0, 0, level, (message,), is_half=is_half), message)[2]

    padding_max = PROPERTIES_BYTES_MAX - room_bytes - len(parked(1)) + 1
    assert len(parked(padding_max)) == PROPERTIES_BYTES_MAX - room_bytes
    with pytest.raises(RecordError):
        parked(padding_max + 1)
