"""Whatever brokers, members and senders have written is shown as text, on its line; nonsense is no traceback."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from broker.admin import resend_dlq_command
from broker.admin.ask import NobodyAnsweredError, NodeAnswer
from broker.admin.health import ClusterHealth
from broker.admin.members import members_in
from broker.admin.message_search import FoundMessage
from broker.admin.message_view import BodyForm, message_lines
from broker.admin.printing import console, print_error, print_table
from broker.admin.resend_dlq import ResendOutcome
from broker.admin.retention import _show as show_retention
from broker.admin.status_table import StatusTable
from broker.admin.upgrade_check import show_upgrade_check
from broker.admin.verify import compare
from broker.admin.verify_command import _print as print_verdict
from dledger_mq.message.hosts import pack_host
from dledger_mq.message.record import decode_record, encode_record

EVIL = "[/]\x1b]0;x\x07\x1b[2J\u202e"
DEEP = "[" * 100_000
FIGURES = "9" * 400

NONSENSE = [
    DEEP,
    f'{{"n0":{DEEP}',
    "[]",
    "no JSON",
    '{"n0": Infinity, "7": 1e999}',
    f'{{"n0": {FIGURES}, "7": "{FIGURES}"}}',
    '{"n0": 3, "7": {"queues": {}, "topics": [1]}}',
    '{"n0": {"log": 5, "ageMs": true, "bytes": -1}, "²": {}, "-7": {}}',
    json.dumps({EVIL: {EVIL: EVIL, "log": EVIL, "state": EVIL, "by": EVIL}}),
    json.dumps({"7": {EVIL: EVIL}, "control": EVIL}),
]

KEYS = (
    *("raftNode", "raftRole", "raftMembers", "raftMemberAddresses", "raftVersion", "raftPins"),
    *("raftAppliedIndex", "raftWireVersion", "raftFormats", "raftControlCommands", "raftLogGroup"),
    *("digestMarks", "digestAlarms", "digestBeganAt", "raftForgettingHeldUp", "raftServing"),
)


def shown(capsys: pytest.CaptureFixture[str]) -> str:
    """Return what was printed, which keeps to its lines."""
    printed = "".join(capsys.readouterr())
    assert all(each.isprintable() or each == "\n" for each in printed), repr(printed)
    return printed


def answers_of(table: Mapping[str, str]) -> list[NodeAnswer]:
    return [NodeAnswer(f"h:{port}", table, "") for port in (1, 2)] + [NodeAnswer("h:3", {}, EVIL)]


@pytest.mark.parametrize("place", range(len(NONSENSE) + 1))
@pytest.mark.parametrize(
    "command",
    [
        lambda answers: print_verdict(compare(answers)),
        partial(show_retention, as_json=False),
        partial(show_upgrade_check, names=[EVIL], entries_min=1, as_json=False),
    ],
)
def test_runtime_tables_of_nonsense_are_shown(
    command: Callable[[list[NodeAnswer]], object], place: int, capsys: pytest.CaptureFixture[str]
) -> None:
    text = [*NONSENSE, EVIL][place]
    command(answers_of(dict.fromkeys(KEYS, text)))
    shown(capsys)


@pytest.mark.parametrize("text", NONSENSE)
def test_members_are_not_looked_for_in_nonsense(text: str) -> None:
    with pytest.raises(NobodyAnsweredError):
        members_in(answers_of(dict.fromkeys(KEYS, text)))


def test_components_of_a_strange_name_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    table = {"digestMarks": json.dumps({"7": {"[/]": "1", "queues": {}}}), "raftNode": "[/]"}
    other = {"digestMarks": json.dumps({"7": {"[/]": "2", "queues": {}}}), "raftNode": "n1"}
    print_verdict(compare([NodeAnswer("h:1", table), NodeAnswer("h:2", other)]))
    printed = shown(capsys)
    assert "DIFFERS" in printed
    assert "not like the majority: [/], n1" in printed


def test_dead_letters_have_the_keys_that_their_senders_gave_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    outcome = ResendOutcome([EVIL, "[bold]k"], {f"{EVIL}2": EVIL}, 3)
    resend_dlq_command._print(outcome, is_dry=False)
    printed = shown(capsys)
    assert r"[/]\x1b]0;x\x07" in printed
    assert "[bold]k" in printed


def test_errors_titles_and_headings_keep_to_their_lines(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(f"refused with code 1: {EVIL}\nall is well")
    print_table(EVIL, (EVIL,), [(EVIL,)])
    console().print(StatusTable(ClusterHealth({}, ()), 0.0, f"no name server answers: {EVIL}"))
    assert r"\nall is well" in shown(capsys)


def test_a_record_of_a_strange_topic_keeps_to_its_lines() -> None:
    record: dict[str, Any] = {
        "topic": EVIL.encode(),
        "queue_id": 1,
        "queue_offset": 2,
        "physical_offset": 3,
        "sys_flag": 0,
        "born_timestamp_ms": 2**62,
        "born_host": pack_host("127.0.0.1", 1),
        "store_timestamp_ms": -1,
        "store_host": pack_host("127.0.0.1", 1),
        "body": EVIL.encode(),
        "properties": f"{EVIL}\x01{EVIL}\x02".encode(),
    }
    found = FoundMessage(EVIL, decode_record(encode_record(**record)))
    lines = list(message_lines(found, BodyForm()))
    assert len(lines) > 5
    assert [line for line in lines if not line.isprintable()] == []
