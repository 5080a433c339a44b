"""A pull that is held while its group changes its mind passes over nothing that is wanted now."""

from __future__ import annotations

import pytest

from broker.service.pull import PullGrant
from broker.service.refusal import Refusal
from dledger_mq.message.hashes import tags_code
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.requests import PullFields
from tests.unit.server.test_pulls_of_damaged_entries import Bench, Origin, bodies

HOLD_MS = 15_000


class Rules:
    """Grants with the tags of now, or refuses when there are none."""

    def __init__(self, *tags: str) -> None:
        self.tags = tags

    def check(self, _fields: PullFields) -> PullGrant | Refusal:
        if not self.tags:
            return Refusal(ResponseCode.SUBSCRIPTION_NOT_EXIST, "gone")
        return PullGrant(frozenset(map(tags_code, self.tags)))


class Tagged(Bench):
    def __init__(self) -> None:
        super().__init__()
        self.rules = Rules("A")
        self.pulls._rules = self.rules  # type: ignore[assignment]

    def comes(self, tag: str) -> None:
        self.broker.send(body=tag.encode(), TAGS=tag)
        self.pulls.applied()


@pytest.fixture
def bench() -> Tagged:
    return Tagged()


@pytest.fixture
def held(bench: Tagged) -> Origin:
    """A pull that was led past a message with the tag B."""
    origin = bench.pull(0, HOLD_MS)
    bench.comes("B")
    assert origin.frames == []
    return origin


def test_f7_the_client_goes_on_after_what_it_does_not_want(bench: Tagged, held: Origin) -> None:
    bench.comes("A")
    assert bodies(held) == [b"A"]


def test_what_was_passed_over_and_is_wanted_now_comes_first(bench: Tagged, held: Origin) -> None:
    bench.rules.tags = ("A", "B")
    bench.comes("A")
    assert bodies(held) == [b"B", b"A"]


def test_it_comes_when_the_time_is_over_too(bench: Tagged, held: Origin) -> None:
    bench.rules.tags = ("B",)
    bench.now_ms = HOLD_MS
    bench.expire(HOLD_MS)
    assert bodies(held) == [b"B"]


def test_a_group_that_is_gone_is_answered_as_it_asked(bench: Tagged, held: Origin) -> None:
    bench.rules.tags = ()
    bench.expire(HOLD_MS)
    (answer,) = held.answers()
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert answer.ext["nextBeginOffset"] == "1"
