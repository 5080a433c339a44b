"""The simulator's checks of answers: what is right passes, what is wrong is named."""

from __future__ import annotations

import pytest

from broker.store.control import PutTopic
from broker.store.topics import TopicConfig
from broker.testing.answers import Answers
from broker.testing.forms import Fate, Form
from broker.testing.model import BrokerModel
from dledger.testing.state_checker import Violation
from dledger_mq.message.numbers import QueueId
from dledger_mq.message.record import decode_records
from dledger_mq.remoting.header import RemotingCommand
from tests.unit.store.lone_broker import LoneBroker

PLACE = ("g", "T", QueueId(0))


def sent(model: BrokerModel, broker: LoneBroker, *bodies: bytes) -> list[Form]:
    """Create their topic, send messages, commit them in one entry, and let the model follow."""
    broker.command(PutTopic(TopicConfig("T", 4, 4)))
    forms = [Form.of("T", QueueId(0), body, {"UNIQ_KEY": body.decode()}) for body in bodies]
    for form in forms:
        model.wanted(form, Fate())
        broker.stage("T", 0, form.body, UNIQ_KEY=form.body.decode())
    broker.commit()
    for entry in broker.log.entries[1:]:
        model.applied(broker.state, entry, now_ms=0, looks_closely=False)
    return forms


@pytest.fixture
def model() -> BrokerModel:
    made = BrokerModel()
    made.applied(LoneBroker().state, LoneBroker().log.entries[0], now_ms=0, looks_closely=False)
    return made


def acknowledgement(*physical_offsets: int, queue_offset: int = 0) -> RemotingCommand:
    ids = ",".join(f"7F00000100002A9F{offset:016X}" for offset in physical_offsets)
    ext = {"msgId": ids, "queueId": "0", "queueOffset": str(queue_offset)}
    return RemotingCommand(code=0, ext=ext)


def test_an_acknowledgement_names_the_place_of_just_that_message(model: BrokerModel) -> None:
    broker = LoneBroker()
    one, other = sent(model, broker, b"one", b"other")
    places = [message.physical_offset for message in decode_records(broker.log.entries[-1].body)]
    answers = Answers(model)
    answers.acknowledged([one, other], acknowledgement(*places))
    with pytest.raises(Violation, match="another message stands"):
        answers.acknowledged([other, one], acknowledgement(*places))
    with pytest.raises(Violation, match="nothing is stored there"):
        answers.acknowledged([one], acknowledgement(places[0] + 1))
    with pytest.raises(Violation, match="acknowledged at 1 and stands at 0"):
        answers.acknowledged([one], acknowledgement(places[0], queue_offset=1))


def test_a_pull_gives_what_is_stored_and_goes_on_after_it(model: BrokerModel) -> None:
    broker = LoneBroker()
    sent(model, broker, b"one", b"other")
    records = decode_records(broker.log.entries[-1].body)
    answers = Answers(model)
    answers.pulled("T", QueueId(0), records, offset=0, next_offset=2)
    with pytest.raises(Violation, match="goes on at 1"):
        answers.pulled("T", QueueId(0), records, offset=0, next_offset=1)
    with pytest.raises(Violation, match="where 0 is stored"):
        answers.pulled("T", QueueId(0), records[1:], offset=0, next_offset=1)


@pytest.mark.parametrize(("offset", "floor"), [(3, -1), (-1, 0)])
def test_an_offset_is_neither_above_the_committed_one_nor_below_the_known_one(
    model: BrokerModel, offset: int, floor: int
) -> None:
    with pytest.raises(Violation, match=f"is answered as {offset}; {floor} was known before"):
        Answers(model).offset_read(PLACE, offset, floor=floor)


def test_a_lock_that_the_log_never_granted_is_named(model: BrokerModel) -> None:
    with pytest.raises(Violation, match="the log says no such thing"):
        Answers(model).locked(PLACE, "c", granted_before=0)
