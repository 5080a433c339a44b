"""The engine with the real core: what is committed, confirmed and refused."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from dledger.codec.entry import chain_crc
from dledger.engine import Engine
from dledger.errors import (
    ForkedError,
)
from dledger.log_history import check_history
from dledger.raft.effects import (
    AppendEntries,
    Committed,
    EntriesCut,
)
from dledger.raft.entry import Entry
from dledger.raft.events import (
    Propose,
    Received,
)
from dledger.raft.ids import EntryId, Index, Term
from dledger.raft.messages import (
    AppendRequest,
    AppendResponse,
)
from dledger.storage.scan import ChainEnd
from dledger.storage.segmented_log import SegmentedLog
from dledger.testing.sim_disk import SimDisk
from tests.unit.engine.scripted import (
    N0,
    N1,
    START,
    alone,
    config,
    entry,
    give,
    lead,
    persist,
    scripted,
)


def test_a_group_of_one_commits_only_what_its_disk_has_and_keeps_it() -> None:
    disk = SimDisk(Random(1))
    engine = Engine(alone(), disk, draw=lambda low, high: low, now_ms=0)
    lead(engine)
    engine.step(Propose((b"a", b"b"), 1), 10)
    assert engine.take_resolved() == []
    persist(engine)
    assert engine.take_resolved() == [
        (1, Committed(EntryId(Term(1), Index(2)), EntryId(Term(1), Index(3))))
    ]
    disk.crash(keep=0.0)
    again = Engine(alone(), disk, draw=lambda low, high: low, now_ms=20)
    assert again.node.term == 1
    lead(again)
    assert [each.body for each in again.take_committed(1 << 20)] == [
        START,
        b"a",
        b"b",
        START,
    ]


def test_a_follower_confirms_entries_only_when_they_are_durable() -> None:
    source = scripted()
    give(source, AppendEntries((entry(1, body=b"x"),)))
    sealed = source.log.entries(Index(1), Index(2))
    request = AppendRequest(Term(1), N1, Index(0), Term(0), tuple(sealed), Index(0), 1)
    disk = SimDisk(Random(1))
    engine = Engine(config(), disk, draw=lambda low, high: low, now_ms=0)
    engine.step(Received(request), 1)
    assert engine.take_outbox() == []
    persist(engine)
    ((to, answer),) = engine.take_outbox()
    assert to == N1
    assert isinstance(answer, AppendResponse)
    assert answer.success
    assert answer.match_index == 1
    # The same request again changes nothing, so the answer leaves at once.
    engine.step(Received(replace(request, round=2)), 2)
    assert len(engine.take_outbox()) == 1


def test_entries_of_the_same_terms_and_another_history_are_not_taken() -> None:
    """A node that ran alone may have led the very term that its group led without it: index and term are the same."""

    def sealed(*bodies: bytes, term: int = 1) -> list[Entry]:
        source = scripted()
        give(source, AppendEntries((entry(1, body=b"x"),)))
        place = source.log.layout.end_position
        for index, body in enumerate(bodies, 2):
            give(source, AppendEntries((entry(index, term, body, place),)))
            place = source.log.layout.end_position
        return source.log.entries(Index(1), Index(len(bodies) + 2))

    def request(entries: list[Entry], first: int, prev_term: int) -> Received:
        after = tuple(entries[first - 1 :])
        return Received(
            AppendRequest(Term(5), N1, Index(first - 1), Term(prev_term), after, Index(0), 1)
        )

    engine = Engine(config(), SimDisk(Random(1)), draw=lambda low, high: low, now_ms=0)
    own, theirs = sealed(b"own", b"own", term=2), sealed(b"led", b"led", b"led", term=2)
    engine.step(request(own, 1, 0), 1)
    assert engine.log.last_id == EntryId(Term(2), Index(3))
    # The first one has an entry of both before those that differ.
    for first, prev_term in ((1, 0), (2, 1), (3, 2), (4, 2)):
        with pytest.raises(ForkedError, match="n1 leads term 5 with another history"):
            engine.step(request(theirs, first, prev_term), 2)
    assert engine.failure is None
    assert engine.log.last_id == EntryId(Term(2), Index(3))
    for first, prev_term in ((1, 0), (2, 1), (3, 2)):
        engine.step(request(own, first, prev_term), 3)
    assert engine.failure is None


@pytest.mark.parametrize("is_fork", [True, False])
def test_entries_that_a_group_of_others_wrote_are_cut_with_an_error(*, is_fork: bool) -> None:
    """The store of a node that was run alone, and whose last term names it as the only voter."""
    disk = SimDisk(Random(1))
    three = config("n0-127.0.0.1:1;n1-127.0.0.1:2;n2-127.0.0.1:3")
    own = Engine(alone() if is_fork else three, disk, draw=lambda low, high: low, now_ms=0)
    if is_fork:
        lead(own)
        own.step(Propose((b"a",), 1), 10)
        persist(own)
    source = scripted()
    give(source, AppendEntries((entry(1, 5, body=b"x"),)))
    theirs = tuple(source.log.entries(Index(1), Index(2)))
    if not is_fork:
        first = scripted()
        give(first, AppendEntries((entry(1, 1, body=b"own"),)))
        sent = tuple(first.log.entries(Index(1), Index(2)))
        own.step(Received(AppendRequest(Term(1), N1, Index(0), Term(0), sent, Index(0), 1)), 10)
        persist(own)
    engine = Engine(three, disk, draw=lambda low, high: low, now_ms=20)
    engine.step(Received(AppendRequest(Term(5), N1, Index(0), Term(0), theirs, Index(0), 1)), 30)
    (cut,) = [news for news in engine.take_news() if isinstance(news, EntriesCut)]
    assert cut.writers == ({N0} if is_fork else set())
    assert cut.first == 1


@pytest.mark.parametrize("before_first", [2, 3])
def test_what_a_deposed_leader_still_sends_from_before_the_start_is_no_other_history(
    before_first: int,
) -> None:
    """Other entries were committed there since, in a later term, and forgotten; the answer has to tell it that term."""
    source = scripted()
    give(source, AppendEntries(tuple(entry(index, body=b"x") for index in (1, 2, 3))))
    theirs = tuple(source.log.entries(Index(1), Index(4)))
    log = SegmentedLog.open(SimDisk(Random(1)), segment_size_bytes=4096)
    place = theirs[before_first - 1].end_position
    same_crc = chain_crc(theirs[before_first - 1])
    request = AppendRequest(Term(1), N1, Index(0), Term(0), theirs, Index(0), 1)
    log.begin_after(ChainEnd(Index(before_first), Term(2), place, same_crc ^ 1))
    check_history(log, request, N0, term=Term(2))
    with pytest.raises(ForkedError, match=f"up to {before_first} are not"):
        check_history(log, replace(request, term=Term(2)), N0, term=Term(2))
    log.begin_after(ChainEnd(Index(before_first), Term(1), place, same_crc))
    check_history(log, request, N0, term=Term(1))
