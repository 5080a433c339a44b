"""How what came of RocketMQ's own tests is judged, and what the page says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop import rocketmq_it
from tests.interop.rocketmq_causes import Cause, Whose
from tests.interop.rocketmq_it import page
from tests.interop.rocketmq_tests import Outcome, Verdict, area, judge

CLASS = "org.apache.rocketmq.test.offset.OffsetResetIT"


def line(*errors: tuple[str, str], outcome: str = "failed") -> dict[str, object]:
    return {
        "class": CLASS,
        "method": "testIt",
        "outcome": outcome,
        "errors": [list(each) for each in errors],
        "where": "OffsetResetIT.java:7" if errors else "",
        "changed": ["useServerSideResetOffset=true"],
    }


def test_what_passed_and_what_they_leave_out() -> None:
    assert judge(line(outcome="passed")).verdict is Verdict.PASSED
    assert judge(line(outcome="passed")).test == "offset.OffsetResetIT.testIt"
    assert judge(line(outcome="ignored")).verdict is Verdict.NOT_APPLICABLE


@pytest.mark.parametrize(
    ("name", "message", "needs"),
    [
        (
            "java.lang.NoSuchMethodError",
            "'org.apache.rocketmq.broker.X org.apache.rocketmq.broker.BrokerController.getX(int)'",
            "`BrokerController.getX()`",
        ),
        (
            "java.lang.NoSuchMethodError",
            "'void org.apache.rocketmq.broker.BrokerController.<init>(org.apache.rocketmq.Y)'",
            "`BrokerController.<init>()`",
        ),
        ("java.lang.NoSuchFieldError", "namesrvController", "the field namesrvController"),
        (
            "java.lang.NoClassDefFoundError",
            "org/apache/rocketmq/container/BrokerContainer",
            "the class BrokerContainer",
        ),
    ],
)
def test_what_reaches_into_a_broker_is_not_applicable(name: str, message: str, needs: str) -> None:
    found = judge(line(("java.lang.RuntimeException", "outer"), (name, message)))
    assert found.verdict is Verdict.NOT_APPLICABLE
    assert found.sentence == f"needs {needs} in its own virtual machine"

    again = "Could not initialize class org.apache.rocketmq.test.container.Base"
    second = judge(line(("java.lang.NoClassDefFoundError", again)), [found])
    assert second.sentence == found.sentence


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("java.lang.AssertionError", "expected:<1> but was:<2>\nand more"),
        ("java.lang.NoSuchMethodError", "'void io.netty.buffer.ByteBuf.release()'"),
        ("java.lang.NoClassDefFoundError", "com/google/common/truth/Truth"),
        ("java.lang.NoClassDefFoundError", "Could not initialize class org.x.BaseConf"),
    ],
)
def test_anything_else_is_a_failure_with_its_first_line(name: str, message: str) -> None:
    found = judge(line((name, message)))
    assert found.verdict is Verdict.FAILED
    first = message.splitlines()[0]
    assert found.sentence == f"{name.rpartition('.')[2]}: {first} (OffsetResetIT.java:7)"


def test_an_area_is_the_first_that_fits() -> None:
    assert area("client.consumer.tag.MulTagSubIT.x") == "filter"
    assert area("client.producer.order.OrderMsgIT.x") == "order"
    assert area("client.producer.batch.BatchSendIT.x") == "producer"
    assert area("container.SlaveBrokerIT.x") == "other"


def test_what_earlier_runs_told_counts_until_a_later_one_tells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = Outcome("smoke.AnIT.testIt", Verdict.FAILED, "no", ("a=1",))
    other = Outcome("offset.AnIT.testIt", Verdict.PASSED)
    again = Outcome("smoke.AnIT.testIt", Verdict.PASSED)
    files = []
    for name, told in (("one", [first, other]), ("two", [again])):
        for each in told:
            rocketmq_it.tell(each, as_json=True)
        files.append(tmp_path / name)
        files[-1].write_text(capsys.readouterr().out)

    assert rocketmq_it.earlier(files[:1]) == [first, other]
    assert rocketmq_it.latest(rocketmq_it.earlier(files)) == [other, again]


def test_the_page_counts_and_tells_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"offset.OffsetResetIT": Cause(Whose.THEIRS, "it wants two")}
    monkeypatch.setattr(rocketmq_it, "CAUSES", known)
    text = page(
        [
            Outcome("offset.OffsetResetIT.testIt[1]", Verdict.FAILED, "no", ("a=1",)),
            Outcome("offset.OtherIT.testIt", Verdict.FAILED, "AssertionError: a | b"),
            Outcome("smoke.AnIT.testIt", Verdict.PASSED),
            Outcome("tls.AnIT.testIt[0]", Verdict.NOT_APPLICABLE, "needs it", ("a=1",)),
            Outcome("tls.AnIT.testIt[1]", Verdict.NOT_APPLICABLE, "needs it"),
        ]
    )
    assert "| offset | 0 | 2 | 0 |\n" in text
    assert "| all | 1 | 2 | 2 |\n" in text
    assert "| `tls.AnIT`, 2 tests | not applicable | needs it |" in text
    assert "Failures: 0 ours, 1 theirs, 0 stated divergence, 1 not looked into." in text
    assert (
        "| `offset.OffsetResetIT.testIt[1]` | failed | theirs: it wants two (sets `a=1`) |" in text
    )
    assert "not looked into: AssertionError: a / b |" in text
    assert "| `smoke.AnIT.testIt` | passed |  |" in text
