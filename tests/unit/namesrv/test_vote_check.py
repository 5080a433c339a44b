"""A term and vote that the library has written are right; damage is told of, for which the library would have none."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from pysyncobj.journal import FileJournal

from broker.namesrv.journal_check import journal_problem, last_term
from broker.namesrv.vote_check import SIZE_BYTES_MAX, vote_problem

TERM = 300
ADDRESS = "127.0.0.1:9870"


def opened(path: Path) -> FileJournal:
    """Open a journal; the library leaves the file beside it for the collector to close."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        return FileJournal(str(path))


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A journal that has reached a term, for which its node has given its vote."""
    path = tmp_path / "kv.journal"
    journal = opened(path)
    journal.add(b"", 1, 0)
    journal.setRaftCommitIndex(1)
    journal.onOneSecondTimer()
    assert vote_problem(Path(f"{path}.meta"), last_term(path)) is None
    journal.setCurrentTerm(TERM, ADDRESS)
    journal.add(b"x" * 100, 2, TERM)
    journal._destroy()
    return path


def problem_of(journal: Path) -> str | None:
    assert journal_problem(journal) is None
    return vote_problem(journal.with_name("kv.journal.meta"), last_term(journal))


def test_what_the_library_writes_is_right(journal: Path) -> None:
    assert last_term(journal) == TERM
    assert problem_of(journal) is None
    again = opened(journal)
    assert (again.getCurrentTerm(), again.getVotedForNodeId()) == (TERM, ADDRESS)
    again.setCurrentTerm(TERM + 1, None)
    again._destroy()
    assert problem_of(journal) is None


def test_before_the_first_vote_there_is_none(tmp_path: Path) -> None:
    path = tmp_path / "kv.journal"
    assert (last_term(path), problem_of(path)) == (0, None)
    path.touch()
    assert (last_term(path), problem_of(path)) == (0, None)
    path.unlink()
    opened(path)._destroy()
    assert (last_term(path), problem_of(path)) == (0, None)


def changed(at: bytes, to: bytes) -> Callable[[bytes], bytes]:
    def change(whole: bytes) -> bytes:
        assert at in whole
        return whole.replace(at, to)

    return change


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda _: b"", "it is empty"),
        (lambda whole: whole[:-1], "pickle exhausted"),
        (lambda whole: bytes(len(whole)), "cannot be read"),
        (lambda _: bytes(SIZE_BYTES_MAX + 1), "more than 4096 bytes"),
        (changed(b"q\x02", b"r\x02\0\0\xff"), "stands LONG_BINPUT"),
        (changed(b"votedForNodeId", b"votedForNoteId"), "it has one"),
        (lambda _: pickle.dumps([TERM], 2), "stands EMPTY_LIST"),
        (lambda _: pickle.dumps(TERM, 2), "it holds 300, and no table"),
    ],
    ids=["empty", "cut off", "zeros", "large", "much memory", "a name", "a list", "a number"],
)
def test_damage_for_which_the_library_has_no_vote_is_named(
    journal: Path, damage: Callable[[bytes], bytes], problem: str
) -> None:
    path = journal.with_name("kv.journal.meta")
    path.write_bytes(damage(path.read_bytes()))
    assert problem in (problem_of(journal) or "it is right")


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"currentTerm": TERM - 1, "votedForNodeId": None}, "it is of term 299, and the journal"),
        ({"raftCommitIndex": 1}, "it is of term 0, and the journal has reached term 300"),
        ({"currentTerm": "x", "votedForNodeId": None}, "it holds 'x' where a number belongs"),
        ({"currentTerm": -1, "votedForNodeId": None}, "it holds -1 where a number belongs"),
        ({"currentTerm": TERM, "votedForNodeId": 7}, "a vote for 7, which is no address"),
    ],
)
def test_values_that_cannot_be_are_named(
    journal: Path, values: dict[str, object], problem: str
) -> None:
    journal.with_name("kv.journal.meta").write_bytes(pickle.dumps(values, 2))
    assert problem in (problem_of(journal) or "it is right")


def test_a_file_that_is_gone_is_missed(journal: Path) -> None:
    journal.with_name("kv.journal.meta").unlink()
    assert problem_of(journal) == "it is missing, and the journal has reached term 300"
    forgetful = opened(journal)
    assert (forgetful.getCurrentTerm(), forgetful.getVotedForNodeId()) == (0, None)
    forgetful._destroy()


def test_nothing_runs_that_a_file_names(journal: Path, tmp_path: Path) -> None:
    class Runs:
        def __reduce__(self) -> tuple[object, tuple[Path]]:
            return Path.touch, (tmp_path / "ran",)

    journal.with_name("kv.journal.meta").write_bytes(pickle.dumps(Runs(), 2))
    assert "stands GLOBAL" in (problem_of(journal) or "it is right")
    assert not (tmp_path / "ran").exists()
