"""Groups that are expected: missing is an answer, that nobody answers is none."""

from __future__ import annotations

import pytest

from broker.admin import cli, looks
from broker.admin.health import Sight


@pytest.mark.parametrize(
    ("problem", "expected", "code", "said"),
    [
        ("", ["broker-a", "broker-b"], 1, "0 of 2 groups have a leader"),
        ("", [], 3, "the name servers know no group"),
        ("Connection refused", ["broker-a"], 3, "no name server answers"),
    ],
)
def test_expected_groups_that_are_missing(
    problem: str,
    expected: list[str],
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def look(*_: object) -> Sight:
        return Sight({"127.0.0.1:9876": problem}, {}, {})

    monkeypatch.setattr(looks, "look_around", look)
    options = [word for group in expected for word in ("--expect", group)]
    assert cli.main(["status", "-n", "127.0.0.1:9876", *options]) == code
    printed = capsys.readouterr()
    assert said in printed.out + printed.err
    assert "known before" not in printed.out
