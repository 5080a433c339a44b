"""A node that does not lead and knows nothing of a topic says "not here, not now", never "there is none"."""

from __future__ import annotations

import pytest

from broker.server.requests.request import HOLD_MS
from broker.service.pull import PullGrant
from broker.service.refusal import Refusal
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.requests import PullFields
from tests.unit.server.test_pulls_of_damaged_entries import Bench, bodies


class Rules:
    """Refuse while `refusal` is set."""

    def __init__(self, code: ResponseCode) -> None:
        self.refusal: Refusal | None = Refusal(code, "refused.")

    def check(self, _fields: PullFields) -> PullGrant | Refusal:
        return self.refusal or PullGrant(None)


def bench_of(code: ResponseCode, *, leads: bool) -> tuple[Bench, Rules]:
    bench, rules = Bench(), Rules(code)
    bench.broker.send(body=b"1")
    bench.log.is_serving = leads
    if not leads:
        bench.send_away()
    bench.pulls._rules = rules  # type: ignore[assignment]
    return bench, rules


NOT_KNOWN = [ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST]


@pytest.mark.parametrize("code", NOT_KNOWN)
def test_it_is_answered_once_it_is_known(code: ResponseCode) -> None:
    bench, rules = bench_of(code, leads=False)
    origin = bench.pull(0)
    bench.expire(1)
    assert origin.frames == []
    rules.refusal = None
    bench.expire(2)
    assert bodies(origin) == [b"1"]


@pytest.mark.parametrize("code", NOT_KNOWN)
def test_after_a_while_another_node_is_to_be_asked(code: ResponseCode) -> None:
    bench, _ = bench_of(code, leads=False)
    origin = bench.pull(0)
    bench.expire(HOLD_MS)
    (answer,) = origin.answers()
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert answer.remark == "refused. So node n0 says, which does not lead and may be behind."


@pytest.mark.parametrize("code", NOT_KNOWN)
def test_who_comes_to_lead_knows(code: ResponseCode) -> None:
    bench, _ = bench_of(code, leads=False)
    origin = bench.pull(0)
    bench.log.is_serving = True
    bench.expire(1)
    (answer,) = origin.answers()
    assert answer.code == code


@pytest.mark.parametrize(
    ("code", "leads"),
    [(NOT_KNOWN[0], True), (NOT_KNOWN[1], True), (ResponseCode.NO_PERMISSION, False)],
)
def test_other_refusals_come_at_once(code: ResponseCode, leads: bool) -> None:
    bench, _ = bench_of(code, leads=leads)
    (answer,) = bench.pull(0).answers()
    assert (answer.code, answer.remark) == (code, "refused.")
