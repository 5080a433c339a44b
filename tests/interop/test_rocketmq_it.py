"""A few of RocketMQ's own integration tests against one group; docs/rocketmq-tests.md is made from all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.conftest import RunningGroup
from tests.interop.rocketmq_it import chosen
from tests.interop.rocketmq_tests import AREAS, Runner, Verdict, area, classes, lacking

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SOME = (
    ("client.consumer.filter.SqlFilterIT", "testFilterPullConsumer"),
    ("client.consumer.pop.PopOrderlyIT", "testPopOrderly"),
)
"""In one virtual machine they take some seconds each."""


@pytest.fixture(autouse=True)
def installed() -> None:
    if reason := lacking():
        pytest.skip(reason)


def test_some_pass(group: RunningGroup, tmp_path: Path) -> None:
    found = Runner(group.namesrv, ["broker-a"], tmp_path).run_together(SOME)
    assert [(one.test, one.verdict, one.sentence) for one in found] == [
        (f"{name}.{method}", Verdict.PASSED, "") for name, method in SOME
    ]


def test_what_is_chosen_is_there() -> None:
    names = classes()
    assert {area(name) for name in names} == {name for name, _ in AREAS}
    assert [name for name, _ in chosen(["smoke"])] == ["smoke.NormalMessageSendAndRecvIT"]
    (only,) = chosen(["PopOrderlyIT#testPopOrderly"])
    assert only == ("client.consumer.pop.PopOrderlyIT", ["testPopOrderly"])
