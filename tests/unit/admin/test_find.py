"""`dledger-admin find`, and `why` of archives, with a reader in place of the pipeline's: asked, printed, refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from broker.admin.archive_search import ArchiveSearch
from broker.admin.archives import READER, ArchiveUnreadableError
from broker.admin.cli import main
from broker.admin.find import FIND
from broker.admin.message_search import FoundMessage
from dledger.errors import UsageError
from dledger_mq.message.record import StoredMessage, decode_records
from tests.unit.store.lone_broker import LoneBroker

ARCHIVE = ("--archive", "/var/archive")


class Reader:
    """Finds the same messages whatever is asked for, and keeps that."""

    def __init__(self, records: list[StoredMessage]) -> None:
        self.records = records
        self.taken = 0
        self.asked: ArchiveSearch | None = None
        self.problem: Exception | None = None

    def find(self, archive: str, search: ArchiveSearch) -> Iterator[FoundMessage]:
        self.asked = search
        if self.problem is not None:
            raise self.problem
        for record in self.records:
            self.taken += 1
            yield FoundMessage("", record)


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Reader:
    broker = LoneBroker()
    for number in range(5):
        broker.stage("T", 0, b"body %d" % number, KEYS="k")
    broker.commit()
    found = Reader(decode_records(broker.log.entries[-1].body))
    monkeypatch.setitem(sys.modules, READER, SimpleNamespace(find=found.find))
    return found


def test_a_page_says_where_the_next_one_goes_on(
    reader: Reader, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["find", *ARCHIVE, "-t", "T", "-k", "k", "-c", "2", "--after", "7"]
    assert main([*words, "--json"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert [each["body"] for each in page["messages"]] == ["body 0", "body 1"]
    assert page["messages"][0]["broker"] is None
    assert (page["more"], page["last_physical_offset"]) == (
        True,
        reader.records[1].physical_offset,
    )
    assert reader.taken == 3, "no more than the page, and whether there is more"
    assert reader.asked == ArchiveSearch(topic="T", any_key="k", after_place=7)
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "T, - queue 0, offset 0"
    assert lines[-1] == f"messages: 2; there are more: --after {page['last_physical_offset']}"
    reader.records = []
    assert main(words) == 1
    assert capsys.readouterr().out == "messages: 0\n"


def test_everything_that_is_given_is_asked_for(reader: Reader) -> None:
    words = ["-t", "T", "--unique-key", "U", "-k", "k", "-kt", "keys", "-q", "1", "-o", "2"]
    words += ["--last-offset", "3", "-b", "1700000000000", "-e", "1700000000001"]
    assert main(["find", *ARCHIVE, *words]) == 0
    assert reader.asked == ArchiveSearch(
        topic="T",
        unique_key="U",
        key="k",
        queue_id=1,
        first_offset=2,
        last_offset=3,
        begin_ms=1_700_000_000_000,
        end_ms=1_700_000_000_001,
    )


def test_the_example_of_the_help_runs(reader: Reader) -> None:
    assert main(FIND.example.split()) == 0
    assert reader.asked is not None
    assert (reader.asked.topic, reader.asked.any_key) == ("Orders", "order-17")


@pytest.mark.parametrize(
    ("problem", "code"), [(ArchiveUnreadableError("torn"), 3), (UsageError("none there"), 2)]
)
def test_an_archive_that_cannot_be_asked_is_a_sentence_and_an_exit_code(
    problem: Exception, code: int, reader: Reader, capsys: pytest.CaptureFixture[str]
) -> None:
    reader.problem = problem
    assert main(["find", *ARCHIVE, "-t", "T"]) == code
    assert capsys.readouterr() == ("", f"dledger-admin: {problem}\n")


@pytest.mark.parametrize("words", [("find", "-t", "T"), ("why", "K")])
def test_without_what_reads_archives_it_is_said_what_is_missing(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, READER, None)
    assert main([*words, *ARCHIVE]) == 3
    assert "not installed (extra `spark`)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("find", *ARCHIVE), "a search needs --topic, or --id"),
        (("why", "K", "--store", "n0", "-t", "T"), "are for archives"),
    ],
)
def test_what_makes_no_sense_is_refused(
    words: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(list(words)) == 2
    assert text in capsys.readouterr().err
