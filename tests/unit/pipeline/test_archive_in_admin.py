"""`dledger-admin find` and `why` on archives of the writer itself: as pyarrow alone has it, and as the log tells it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `spark`)")

import pyarrow as pa
import pyarrow.parquet as pq

from broker.admin.cli import main
from broker.server.handlers.transactions import stage_end
from broker.service.transactions import CommitPlan
from broker.store.control import (
    AckMessages,
    CheckTransactions,
    CommitOffsets,
    ForgetBefore,
    OffsetCommit,
    PopMessages,
    RemoveOffsets,
)
from broker.store.groups import SubscriptionGroupConfig
from broker.store.record_reader import read_message
from broker.story.places import StorePlaces
from broker.story.tell import MessageStory, tell
from dledger.raft.entry import Entry
from dledger.raft.ids import Position
from dledger_mq.client.messages import pack_body
from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset
from dledger_mq.message.properties import decode_properties, encode_properties
from pipeline.archive import runs
from pipeline.archive.manifests import listed_files, topic_of
from pipeline.archive.story import UNKNOWN, Looked, archived_story
from pipeline.folders import source_of
from tests.unit.pipeline.archives import write_archive
from tests.unit.server.lone_leader import LoneLeader
from tests.unit.store.lone_broker import BORN, START_MS, LoneBroker
from tests.unit.story.story_stores import KEY, events_of, new_broker, nothing

DAY_MS = 86_400_000
MESSAGES = 120


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of two stretches and three days, with messages of three topics."""
    broker = LoneBroker()
    for number in range(MESSAGES):
        broker.now_ms = START_MS + number // 40 * DAY_MS + number
        topic = ("orders", "a b=c", "%RETRY%bills")[number % 3]
        keys = f"order-{number % 4} order-{number} common"
        broker.stage(topic, number % 2, b"body %d" % number, KEYS=keys, UNIQ_KEY=f"U{number}")
        if number % 5 == 4:
            broker.commit()
    return write_archive(tmp_path_factory.mktemp("find"), broker.log.entries, ends=(14,))


def rows_of(archive: Path) -> list[dict[str, Any]]:
    """Everything in an archive, in the order of the log, read by pyarrow alone."""
    rows = [
        {"topic": topic_of(str(Path(path).relative_to(archive))), **row}
        for path in listed_files(archive)
        for row in pq.ParquetFile(path).read().to_pylist()
    ]
    return sorted(rows, key=lambda row: row["physicalOffset"])


def found(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    code = main(["find", *words, "--json"])
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert code == (0 if result["messages"] else 1)
    return result


@pytest.mark.parametrize(
    ("words", "is_meant"),
    [
        (("-k", "order-1"), lambda row: "order-1" in row["keys"].split()),
        (("-k", "U12"), lambda row: json.loads(row["properties"])["UNIQ_KEY"] == "U12"),
        (("-k", "U12", "-kt", "keys"), lambda row: False),
        (("--unique-key", "U12"), lambda row: json.loads(row["properties"])["UNIQ_KEY"] == "U12"),
        (("-q", "1", "-o", "3"), lambda row: row["queueId"] == 1 and row["queueOffset"] >= 3),
        (
            ("-b", str(START_MS + DAY_MS), "-e", str(START_MS + DAY_MS + 50)),
            lambda row: 0 <= _ms(row) - START_MS - DAY_MS <= 50,
        ),
        ((), lambda row: True),
    ],
)
def test_what_is_found_is_what_pyarrow_alone_finds(
    archive: Path,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    is_meant: Callable[[dict[str, Any]], bool],
) -> None:
    result = found(capsys, "--archive", str(archive), "-t", "orders", *words, "-c", "1000")
    wanted = [row for row in rows_of(archive) if row["topic"] == "orders" and is_meant(row)]
    assert [each["physical_offset"] for each in result["messages"]] == [
        row["physicalOffset"] for row in wanted
    ]
    assert [each["body"] for each in result["messages"]] == [row["body"].decode() for row in wanted]
    assert [each["message_id"] for each in result["messages"]] == [row["msgId"] for row in wanted]
    assert not result["more"]


def _ms(row: dict[str, Any]) -> int:
    ms: int = round(row["storeTimestamp"].timestamp() * 1000)
    return ms


def test_pages_join_to_all_of_it_in_the_order_of_the_log(
    archive: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--archive", str(archive), "-t", "orders", "-k", "common", "-c", "7")
    places: list[int] = []
    page = found(capsys, *words)
    while page["more"]:
        assert len(page["messages"]) == 7
        places += [each["physical_offset"] for each in page["messages"]]
        page = found(capsys, *words, "--after", str(page["last_physical_offset"]))
    places += [each["physical_offset"] for each in page["messages"]]
    assert places == [row["physicalOffset"] for row in rows_of(archive) if row["topic"] == "orders"]
    assert len(places) == MESSAGES // 3
    assert main(["find", *words]) == 0
    assert f"messages: 7; there are more: --after {places[6]}" in capsys.readouterr().out


def test_one_message_of_an_archive_does_not_read_all_of_it(
    archive: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: set[str] = set()

    def noting(path: str) -> pa.NativeFile:
        opened.add(path.removeprefix(f"{archive}/"))
        return source_of(path)

    monkeypatch.setattr(runs, "source_of", noting)
    rows = rows_of(archive)
    last = rows[-1]
    (message,) = found(capsys, "--archive", str(archive), "-i", last["msgId"].lower())["messages"]
    assert message["physical_offset"] == last["physicalOffset"]
    assert opened
    assert not any("part-00000000000000000001" in path for path in opened), "the first stretch"
    opened.clear()
    day = ("-b", str(START_MS + 2 * DAY_MS))
    found(capsys, "--archive", str(archive), "-t", "orders", "-k", "common", *day)
    assert {path.partition("/part-")[0] for path in opened} == {"topic=orders/date=2023-11-16"}
    opened.clear()
    story = archived(archive, last["msgId"])
    assert events_of(story) == ["stored"]
    assert {path.partition("/")[0] for path in opened if "date=2023-11-14" in path} == set()


# Stories.


def archived(archive: Path, message_id: str = KEY) -> MessageStory:
    return archived_story(archive, message_id, Looked(), looking=nothing, following=nothing)


def with_a_transaction() -> list[Entry]:
    broker = new_broker("T")
    broker.now_ms += 10
    named = {"REAL_TOPIC": "T", "REAL_QID": "1", "PGROUP": "P", "TRAN_MSG": "true"}
    staged = broker.send("RMQ_SYS_TRANS_HALF_TOPIC", 0, UNIQ_KEY=KEY, **named)
    broker.command(CheckTransactions([QueueOffset(0)], broker.now_ms))
    half = read_message(broker.log, PhysicalOffset(staged.physical_offset(0)))
    properties = encode_properties({"UNIQ_KEY": KEY})
    broker.now_ms += 500
    stage_end(broker.staging, CommitPlan(half, b"T", QueueId(1), properties, 8), broker.now_ms)
    broker.commit()
    commit(broker, 1, queue=1)
    broker.command(RemoveOffsets("g"))
    return broker.log.entries


def with_retries() -> list[Entry]:
    leader = LoneLeader()
    leader.create(SubscriptionGroupConfig("g", retry_times_max=1))
    leader.send(UNIQ_KEY="other")
    leader.send(UNIQ_KEY=KEY, DELAY="1")
    leader.commit()
    leader.pass_until(leader.now_ms + 1100)
    (_, message) = leader.stored()
    leader.give_back(message, "g")
    leader.commit()
    leader.pass_until(leader.now_ms + 60_000, step_ms=1000)
    leader.give_back(leader.stored("%RETRY%g")[-1], "g")
    leader.commit()
    return leader.log.entries


def with_pops() -> list[Entry]:
    broker = new_broker("T", "U")
    broker.send(UNIQ_KEY=KEY)
    broker.send("T", 1, UNIQ_KEY="other", KEYS=KEY)
    commit(broker, 0, topic="U")
    new = [QueueOffset(0)]
    pop = PopMessages("h", "T", QueueId(0), None, QueueOffset(0), QueueOffset(1), new, [], 5000)
    outcome = broker.state.pops.outcome(PhysicalOffset(broker.command(pop)))
    assert outcome is not None
    handles = [(QueueOffset(0), outcome.popped_ms)]
    broker.command(AckMessages("h", "T", QueueId(0), handles))
    commit(broker, 1)
    return broker.log.entries


def commit(broker: LoneBroker, offset: int, topic: str = "T", queue: int = 0) -> None:
    commits = [OffsetCommit("g", topic, QueueId(queue), QueueOffset(offset), "c1")]
    broker.command(CommitOffsets(commits))


def of_both(
    folder: Path, entries: list[Entry], message_id: str = KEY
) -> tuple[MessageStory, MessageStory]:
    """Return what a store and its archive, of several stretches, tell of a message."""
    count = len(entries)
    archive = write_archive(folder, entries, ends=(count // 3, 2 * count // 3))
    of_store = tell(StorePlaces(folder / "store"), message_id, nothing, nothing)
    return of_store, archived(archive, message_id)


@pytest.mark.parametrize(
    ("entries_of", "events"),
    [
        (
            with_a_transaction,
            ["half_stored", "checked", "stored", "committed", "passed", "offsets_removed"],
        ),
        (
            with_retries,
            ["delayed", "delivered", "sent_back", "delivered", "dead_lettered"],
        ),
        (with_pops, ["stored", "popped", "passed", "acknowledged", "passed"]),
    ],
)
def test_an_archive_tells_the_steps_that_the_log_tells(
    tmp_path: Path, entries_of: Callable[[], list[Entry]], events: list[str]
) -> None:
    of_store, of_archive = of_both(tmp_path, entries_of())
    assert events_of(of_store) == events
    assert events_of(of_archive) == events
    assert _where(of_archive) == _where(of_store)
    assert not any(each.is_sure for each in of_archive.steps)
    assert _messages(of_archive) == _messages(of_store)
    assert of_archive.is_visible is None
    assert of_archive.verdict.endswith(UNKNOWN)
    for copy in of_archive.found.copies:
        again = archived(tmp_path / "archive", copy.message_id)
        assert again.steps == of_archive.steps, copy


def _where(story: MessageStory) -> list[tuple[Any, ...]]:
    return [(each.event, each.index, each.term, each.at_ms, each.place) for each in story.steps]


def _messages(story: MessageStory) -> list[dict[str, Any]]:
    """Return all that an archive keeps of a message's records."""
    return [
        {name: getattr(each.message, name) for name in each.message.__struct_fields__}
        | {"body_crc": None, "properties": decode_properties(each.message.properties)}
        for each in story.found.copies
    ]


def test_what_an_archive_cannot_know_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = new_broker("T", "U")
    broker.send(UNIQ_KEY="before")
    broker.send(UNIQ_KEY=KEY)
    end = broker.log.end_position
    broker.command(ForgetBefore(1, Position(0), "time"))
    archive = str(write_archive(tmp_path, broker.log.entries))
    assert main(["why", KEY, "--archive", archive, "-t", "T"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{KEY} in {archive}, entries 1 to {len(broker.log.entries)}"
    assert lines[1].endswith("term 1 ~")
    last = len(broker.log.entries)
    assert f"stored in queue 0 of T at offset 1, up to entry {last}; {UNKNOWN}" in lines
    assert lines[-1].startswith("~: as asked for; the state before that entry is not in an archive")
    assert main(["why", KEY, "--archive", archive, "--json"]) == 0
    story = json.loads(capsys.readouterr().out)
    assert (story["store"], story["archive"], story["is_visible"]) == (None, archive, None)
    assert [each["is_proven"] for each in story["steps"]] == [True]
    for words in (("-t", "U"), ("-e", str(START_MS - 2 * DAY_MS))):
        assert main(["why", KEY, "--archive", archive, *words]) == 1
        assert (
            "no record of it stands in what was read of the entries 1 to" in capsys.readouterr().out
        )
    broker.command(ForgetBefore(len(broker.log.entries), end, "time"))
    _, story_then = of_both(tmp_path / "then", broker.log.entries)
    assert events_of(story_then) == ["stored", "expired"]
    assert story_then.verdict.startswith("retention has forgotten it")


def test_an_archive_that_cannot_be_read_is_no_empty_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (("find", "-t", "T"), ("why", KEY)):
        assert main([*words, "--archive", str(tmp_path)]) == 2
        assert "is no archive" in capsys.readouterr().err
    broker = new_broker("T")
    broker.send(UNIQ_KEY=KEY)
    archive = write_archive(tmp_path, broker.log.entries)
    path = next(archive.glob("topic=T/*/*.parquet"))
    path.write_bytes(b"x" * path.stat().st_size)
    for words in (("find", "-t", "T"), ("why", KEY)):
        assert main([*words, "--archive", str(archive)]) == 3
        assert "cannot be read" in capsys.readouterr().err


def test_a_body_comes_unpacked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broker = new_broker("T")
    packed, flag = pack_body(b"text " * 2000)
    broker.staging.stage(
        b"T",
        0,
        packed,
        encode_properties({"UNIQ_KEY": KEY}),
        born_timestamp_ms=broker.now_ms,
        born_host=BORN,
        sys_flag=flag,
    )
    broker.commit()
    archive = write_archive(tmp_path, broker.log.entries)
    (message,) = found(capsys, "--archive", str(archive), "-t", "T")["messages"]
    assert (message["body_bytes"], message["body_packed"]) == (10_000, False)
    assert message["body"].startswith("text text ")
    assert message["broker"] == "broker-a"
