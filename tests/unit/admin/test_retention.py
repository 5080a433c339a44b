"""`dledger-admin retention`: what it shows of members and pins, and what it removes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from broker.admin import cli, retention
from broker.admin.ask import NodeAnswer
from broker.admin.exit_codes import EXIT_OK, EXIT_UNCHANGED, EXIT_UNKNOWN, EXIT_USAGE
from broker.admin.pins import PinRefusedError

PIN = {
    "position": 5,
    "bytes": 2_000_000,
    "ageMs": 7_200_000,
    "keepMs": 604_800_000,
    "keepBytes": 1 << 30,
    "by": "1.2.3.4:5",
    "state": "holds",
}


def node(name: str, pins: str, applied: int = 9) -> NodeAnswer:
    table = {
        "raftNode": name,
        "raftRole": "leader",
        "raftKeptFromIndex": "7",
        "raftAppliedIndex": str(applied),
        "raftForgettingHeldUp": "the pin '[a]', at position 5, since 3 s",
        "raftPins": pins,
    }
    return NodeAnswer(f"{name}:1", table)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is answered, and what was removed."""
    found: dict[str, Any] = {"answers": [], "dropped": []}

    async def ask(addresses: object) -> list[NodeAnswer]:
        answers: list[NodeAnswer] = found["answers"]
        return answers

    async def unpin(addresses: object, name: str) -> None:
        if name == "none":
            raise PinRefusedError("there is no pin 'none'; there are: none", is_definite=True)
        if name == "lost":
            raise PinRefusedError("outcome unknown")
        found["dropped"].append(name)

    monkeypatch.setattr(retention, "ask_all", ask)
    monkeypatch.setattr(retention, "unpin_log", unpin)
    return found


def test_the_pins_of_the_member_that_knows_most_are_shown(
    group: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    group["answers"] = [node("n0", "{}", 8), node("n1", json.dumps({"[a]": PIN}))]
    assert cli.main(["retention", "-b", "127.0.0.1:1"]) == EXIT_OK
    shown = capsys.readouterr().out
    assert "[a]" in shown
    assert "2.0 MB" in shown
    assert "2.0 h ago" in shown
    assert cli.main(["retention", "-b", "127.0.0.1:1", "--json"]) == EXIT_OK
    told = json.loads(capsys.readouterr().out)
    assert told["pins"] == {"[a]": PIN}
    assert [each["first entry"] for each in told["nodes"]] == ["7", "7"]


def test_a_member_that_is_away_is_a_gap(
    group: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    group["answers"] = [node("n0", "no JSON"), NodeAnswer("n1:1", problem="no answer")]
    assert cli.main(["retention", "-b", "127.0.0.1:1"]) == EXIT_UNKNOWN
    assert "n1:1: no answer" in capsys.readouterr().out


def test_a_pin_is_removed_or_it_is_said_why_not(
    group: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    group["answers"] = [node("n0", "{}")]
    assert cli.main(["retention", "-b", "127.0.0.1:1", "--drop-pin", "a"]) == EXIT_OK
    assert group["dropped"] == ["a"]
    assert cli.main(["retention", "-b", "127.0.0.1:1", "--drop-pin", "none"]) == EXIT_UNCHANGED
    assert "dledger-admin: there is no pin 'none'" in capsys.readouterr().err
    assert cli.main(["retention", "-b", "127.0.0.1:1", "--drop-pin", "lost"]) == EXIT_UNKNOWN


def test_an_address_that_is_none_is_a_wrong_usage() -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["retention", "-b", "nowhere"])
    assert ended.value.code == EXIT_USAGE
