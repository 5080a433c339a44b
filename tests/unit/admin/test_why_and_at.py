"""`dledger-admin why` and `at` on stores: what is printed, fields of their JSON, exit codes, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from broker.admin.at import AT
from broker.admin.cli import main
from broker.admin.command import Command
from broker.admin.why import WHY
from broker.store.control import CheckTransactions, CommitOffsets, LockQueues, OffsetCommit
from dledger_mq.message.numbers import QueueId, QueueOffset
from tests.unit.pipeline.stores import write_snapshot, write_store
from tests.unit.story.story_stores import KEY, SEGMENT_BYTES, cut_beginning, new_broker

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store in which every kind of row has one."""
    broker = new_broker("T")
    broker.send(UNIQ_KEY=KEY)
    commits = [OffsetCommit("g\x1b[31m", "T", QueueId(0), QueueOffset(1), "c\n1")]
    broker.command(CommitOffsets(commits))
    broker.send(HALF, 0, UNIQ_KEY="h", REAL_TOPIC="T", REAL_QID="0", __transactionId__="h\x1b")
    broker.command(CheckTransactions([QueueOffset(0)], broker.now_ms))
    broker.command(LockQueues("g", "holder", [("T", QueueId(0))]))
    broker.send("SCHEDULE_TOPIC_XXXX", 1, UNIQ_KEY="d", DELAY="2", REAL_TOPIC="T", REAL_QID="0")
    broker.send("rmq_sys_wheel_timer", 0, TIMER_OUT_MS="1700000060000")
    sealed = write_store(tmp_path / "n0", broker.log.entries)
    write_snapshot(tmp_path / "n0", sealed, 3)
    return tmp_path / "n0"


def names(value: Any) -> set[str]:
    """Return the names of all fields in a JSON value, but those of facts, which depend on the step."""
    if isinstance(value, list):
        return {name for each in value for name in names(each)}
    if not isinstance(value, dict):
        return set()
    return set(value) | {n for name, each in value.items() if name != "facts" for n in names(each)}


def assert_documented(command: Command, value: dict[str, Any]) -> None:
    assert names(value) <= set(re.findall(r"\w+", command.fields))


def test_a_story_is_printed_and_names_of_others_stay_on_their_lines(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["why", KEY, "--store", str(store)]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0] == f"{KEY} in {store}, entries 1 to 9"
    assert lines[1].strip() == "2023-11-14 22:13:20 UTC  entry 3, term 1"
    assert lines[2].strip().startswith("stored: received by 127.0.0.1:10911 from 127.0.0.1:50000")
    assert lines[3].endswith("entry 4, term 1 ?")
    assert (
        r"g\x1b[31m went from no offset to offset 1 in queue 0 of T: committed by c\n1" in lines[4]
    )
    assert lines[5] == "visible in queue 0 of T at offset 0"
    assert lines[-1].startswith("?: nothing in this store proves entries after 3 to be committed")
    assert "\x1b" not in said.out
    assert said.err == ""


def test_a_story_for_scripts(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["why", KEY, "--store", str(store), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert_documented(WHY, found)
    assert found["is_visible"] is True
    assert [each["event"] for each in found["steps"]] == ["stored", "passed"]
    assert [each["is_proven"] for each in found["steps"]] == [True, False]
    (record,) = found["records"]
    assert record["groups"][0]["is_passed"] is True


@pytest.mark.parametrize(
    ("message_id", "reason"),
    [
        ("h", "its transaction is open"),
        ("d", "it waits at delay level 2 until 2023-11-14T22:13:25+00:00"),
        ("nobody", "no record of it stands in the entries 1 to 9"),
    ],
)
def test_why_a_message_is_not_visible(
    message_id: str, reason: str, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["why", message_id, "--store", str(store)])
    assert code == (1 if message_id == "nobody" else 0)
    assert reason in capsys.readouterr().out


def test_a_log_without_beginning_is_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = new_broker("T")
    for number in range(20):
        broker.send(UNIQ_KEY=f"before {number}")
    broker.send(UNIQ_KEY=KEY)
    sealed = write_store(tmp_path, broker.log.entries, SEGMENT_BYTES)
    cut_beginning(tmp_path, sealed, len(sealed))
    assert main(["why", KEY, "--store", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "term 1 ~?" in said
    assert "~: as asked for" in said
    assert main(["at", "--time", "now", "--store", str(tmp_path)]) == 3
    assert "cannot be told" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["why", KEY], ["at", "--time", "now"]])
def test_what_is_no_store_is_a_wrong_command_line(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--store", str(tmp_path / "missing")]) == 2
    assert f"{tmp_path}/missing: this is no store" in capsys.readouterr().err


def test_a_time_is_shown_with_all_its_tables(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["at", "--time", "now", "--store", str(store)]) == 0
    said = capsys.readouterr().out
    assert f"{store} after entry 9" in said
    assert "the last one in its log" in said
    assert "holder" in said
    assert "\x1b" not in said
    assert main(["at", "--time", "now", "--store", str(store), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert_documented(AT, found)
    assert [len(found[kind]) for kind in ("offsets", "transactions", "locks", "timers")] == [
        1,
        1,
        1,
        2,
    ]
    assert found["transactions"][0]["checks"] == 1
    assert found["cut"] == []


def test_a_time_is_shown_of_a_topic_or_of_a_group(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["at", "--time", "now", "--store", str(store)]
    assert main([*words, "--json", "-t", "T"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert_documented(AT, found)
    assert [(each["level"], each["topic"]) for each in found["timers"]] == [(2, "T")]
    assert main([*words, "--json", "timers", "transactions", "-t", "Other"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["timers"], found["transactions"]) == ([], [])
    assert main([*words, "--json", "-g", "g"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert ([each["group"] for each in found["locks"]], found["offsets"]) == (["g"], [])
    assert not {"transactions", "timers"} & found.keys()
    for kind in ("transactions", "timers"):
        assert main([*words, "offsets", kind, "-g", "g"]) == 2
        assert f"{kind} belong to no consumer group" in capsys.readouterr().err


def test_a_time_is_shown_in_parts(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["at", "timers", "--time", "now", "--store", str(store), "--limit", "1"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (len(found["timers"]), found["cut"], "locks" in found) == (1, ["timers"], False)
    assert main(words) == 0
    assert "there are more timers: --limit" in capsys.readouterr().out
    assert main(["at", "timer", "--time", "now", "--store", str(store)]) == 2
    assert "'timer' is none of: offsets, transactions, locks, timers" in capsys.readouterr().err
    assert main(["at", "offsets", "--time", "2000-01-01", "--store", str(store)]) == 0
    assert "offsets: none" in capsys.readouterr().out
