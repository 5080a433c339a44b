"""What an archive holds is found by key, id, place and time, and nothing else is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `spark`)")

from dledger_mq.message.ids import offset_msg_id
from dledger_mq.message.record import StoredMessage, decode_records
from pipeline.cli import main
from tests.unit.pipeline.archives import write_archive
from tests.unit.store.lone_broker import START_MS, LoneBroker

DAY_MS = 86_400_000
ODD = 'k"é\\/[1]'


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[StoredMessage]]:
    """An archive of two days of three topics, and the messages in it."""
    folder = tmp_path_factory.mktemp("find")
    broker = LoneBroker()
    for number in range(60):
        broker.now_ms = (
            START_MS + number // 30 * DAY_MS + number
        )  # as the fifth of each entry has it
        keys = f"order-{number % 4} order-{number}" if number != 7 else ODD
        topic = ("orders", "a b=c", "%RETRY%bills")[number % 3]
        unique_key = f"U{number}" if number != 9 else ODD
        broker.stage(topic, number % 2, b"body %d" % number, KEYS=keys, UNIQ_KEY=unique_key)
        if number % 5 == 4:
            broker.commit()
    entries = broker.log.entries
    written = write_archive(folder, entries, ends=(6,))
    records = [record for entry in entries if entry.body for record in decode_records(entry.body)]
    return written, records


def found(
    archive: tuple[Path, list[StoredMessage]], capsys: pytest.CaptureFixture[str], *words: str
) -> list[str]:
    code = main(["find", str(archive[0]), *words, "--json", "-c", "100"])
    rows = json.loads(capsys.readouterr().out)["messages"]
    assert code == (0 if rows else 1)
    return sorted(
        f"{row['topic']}/{row['queueId']}/{row['queueOffset']}/{row['physicalOffset']}"
        for row in rows
    )


def those(records: list[StoredMessage], *bodies: int) -> list[str]:
    wanted = {b"body %d" % number for number in bodies}
    return sorted(
        f"{each.topic}/{each.queue_id}/{each.queue_offset}/{each.physical_offset}"
        for each in records
        if each.body in wanted
    )


def test_messages_are_found_by_what_they_have(
    archive: tuple[Path, list[StoredMessage]], capsys: pytest.CaptureFixture[str]
) -> None:
    records = archive[1]
    orders = ("-t", "orders")
    for words, numbers in (
        ((*orders, "-k", "order-1"), range(9, 60, 12)),
        ((*orders, "-k", "order-45"), [45]),
        ((*orders, "-k", "order"), []),
        (("-t", "a b=c", "-k", ODD), [7]),
        ((*orders, "--unique-key", "U12"), [12]),
        ((*orders, "--unique-key", "U1"), []),
        ((*orders, "--unique-key", ODD), [9]),
        ((*orders, "--unique-key", "order-12"), []),
        ((*orders, "-q", "1", "-o", "2", "--last-offset", "3"), [15, 21]),
        ((*orders, "--begin", str(START_MS + DAY_MS)), range(30, 60, 3)),
        ((*orders, "--end", str(START_MS + 14)), range(0, 15, 3)),
        ((*orders, "--begin", str(START_MS + 10), "--end", str(START_MS + 19)), [12, 15, 18]),
        (("-t", "none"), []),
    ):
        assert found(archive, capsys, *words) == those(records, *numbers), words
    retried = next(each for each in records if each.body == b"body 41")
    message_id = offset_msg_id(retried.store_host, retried.physical_offset)
    assert found(archive, capsys, "-i", message_id.lower()) == those(records, 41)
    stranger = f"{message_id[:-1]}{'0' if message_id[-1] != '0' else '1'}"
    assert found(archive, capsys, "-i", stranger) == []


def test_more_than_was_asked_for_is_said(
    archive: tuple[Path, list[StoredMessage]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["find", str(archive[0]), "-t", "orders", "-c", "2"]) == 0
    out = capsys.readouterr().out
    assert "messages: 2; there are more: --limit" in out
    assert "body 0" in out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "a search needs --topic, or --id"),
        (("-i", "zz"), "looked up by --unique-key"),
        (("-t", "orders", "-c", "0"), "must be above 0"),
        (("-t", "orders", "-o", str(2**63)), f"--offset {2**63} is no number"),
        (("-t", "orders", "--begin", "9" * 30), "is no number that an archive can hold"),
        (("-t", "orders", "-c", str(2**63)), f"--limit {2**63} is no number"),
    ],
)
def test_wrong_usage_is_said_in_one_sentence(
    archive: tuple[Path, list[StoredMessage]],
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    text: str,
) -> None:
    assert main(["find", str(archive[0]), *words]) == 2
    assert text in capsys.readouterr().err


def test_a_folder_that_is_no_archive_is_none_that_lacks_the_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["find", str(tmp_path / "mistyped"), "-t", "orders"]) == 2
    assert f"{tmp_path}/mistyped is no archive: no manifest is in it" in capsys.readouterr().err


def test_a_file_that_is_cut_is_no_empty_one(
    archive: tuple[Path, list[StoredMessage]], capsys: pytest.CaptureFixture[str]
) -> None:
    path = next(archive[0].glob("topic=orders/*/*.parquet"))
    whole = path.read_bytes()
    try:
        path.write_bytes(b"x" * len(whole))
        assert main(["find", str(archive[0]), "-t", "orders"]) == 1
        assert "cannot be read" in capsys.readouterr().err
    finally:
        path.write_bytes(whole)
