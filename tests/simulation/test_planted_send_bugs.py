"""Mistakes about repeated sends that brokers have really made: the simulator's clients must find each of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from broker.server.handlers import known_sends
from broker.server.handlers import transactions as server_transactions
from broker.server.handlers.known_sends import InFlightMessage, KnownSends, Part, PartlyKnownSend
from broker.server.requests.request import PendingRequest
from broker.service import repeats as service_repeats
from broker.service.repeats import EarlierSend, Repeats
from broker.service.sameness import RequestedMessage
from broker.service.send import SendPlan
from broker.testing.broker_simulation import BrokerSimulation
from dledger.testing.simulation import SimVerdict
from tests.simulation.searches import lately_first
from tests.simulation.test_planted_broker_bugs import busy

pytestmark = pytest.mark.slow

PLACES = "where another message stands"


def first_finding(seeds: Iterable[int], **knobs: Any) -> str:
    """What the simulator says about the first seed that it finds bad, with clients that send at their worst."""
    usual: dict[str, Any] = {
        "juggler_count": 3,
        "renewed_permille": 0,
        "producer_count": 1,
        "twin_permille": 400,
        "consumer_count": 0,
        "delayed_permille": 0,
        "timed_permille": 0,
    }
    for seed in seeds:
        settings = replace(busy(seed), **(usual | knobs))
        result = BrokerSimulation(settings).run()
        if result.verdict is not SimVerdict.FINE:
            return result.problem
    return ""


@pytest.mark.parametrize("where", [known_sends, service_repeats], ids=["in flight", "stored"])
def test_a_comparison_of_topic_and_body_alone_is_found(
    monkeypatch: pytest.MonkeyPatch, where: Any
) -> None:
    def is_same(asked: RequestedMessage, other: RequestedMessage, *, any_queue: bool) -> bool:
        return (asked.topic, asked.waits_in, asked.reconsume_times, asked.body) == (
            (other.topic, other.waits_in, other.reconsume_times, other.body)
        )

    monkeypatch.setattr(where, "is_same", is_same)
    problem = first_finding(range(1, 20))
    # What is taken for another one leaves that for a third one to be: then this one is stored again.
    assert PLACES in problem or "is stored twice" in problem


def test_a_batch_that_shares_the_whole_fate_of_another_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look_back = KnownSends.look_back

    def join_whole(
        self: KnownSends, plan: SendPlan, born_ms: int, *, only_ahead: bool
    ) -> PartlyKnownSend | None:
        found = look_back(self, plan, born_ms, only_ahead=only_ahead)
        for part in found.parts if found is not None else ():
            if isinstance(part, InFlightMessage) and len(part.first.plan.messages) == len(
                plan.messages
            ):
                parts: list[Part] = [
                    InFlightMessage(part.first, step) for step in range(len(plan.messages))
                ]
                return PartlyKnownSend(parts, msgspec.structs.replace(plan, messages=()))
        return found

    monkeypatch.setattr(KnownSends, "look_back", join_whole)
    assert PLACES in first_finding(range(1, 20))


def test_a_single_send_that_does_not_see_the_batch_ahead_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find_ahead = KnownSends._find_ahead

    def of_equal_count(self: KnownSends, plan: Any, *how: Any, **also: Any) -> Any:
        found = find_ahead(self, plan, *how, **also)
        if found is not None and len(found.first.plan.messages) != len(plan.messages):
            return None
        return found

    monkeypatch.setattr(KnownSends, "_find_ahead", of_equal_count)
    assert "is stored twice" in first_finding(range(1, 20))


def test_half_messages_that_are_known_by_their_key_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def find_among(
        self: Repeats, offsets: list[int], asked: RequestedMessage, *, any_queue: bool
    ) -> EarlierSend | None:
        record = self._load(offsets[0]) if offsets else None
        return None if record is None else service_repeats._earlier(record)

    monkeypatch.setattr(Repeats, "find_among", find_among)
    monkeypatch.setattr(server_transactions, "is_same", lambda *_, **__: True)
    assert PLACES in first_finding(range(1, 20), transaction_count=2)


def test_what_is_done_late_for_a_client_that_is_gone_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find = Repeats.find

    def find_unless_later(
        self: Repeats, uniq_key: bytes, asked: RequestedMessage, born_ms: int, **how: Any
    ) -> EarlierSend | None:
        found = find(self, uniq_key, asked, born_ms, **how)
        if found is not None:
            record = self._load(found.physical_offset)
            assert record is not None, "it was just read"
            if born_ms < record.born_timestamp_ms:
                return find(self, uniq_key, asked, 2**62, **how)
        return found

    monkeypatch.setattr(Repeats, "find", find_unless_later)
    monkeypatch.setattr(PendingRequest, "is_abandoned", False)
    seeds = lately_first(range(1, 200), 3)
    assert "comes after what was made" in first_finding(seeds, renewed_permille=1000)


def test_the_brokers_as_they_are_pass_the_same_seeds() -> None:
    assert first_finding((1, 2)) == ""
    assert first_finding((2, 3), renewed_permille=1000) == ""
