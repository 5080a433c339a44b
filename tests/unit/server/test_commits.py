"""Group commit against a log that does what the test says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker.server.requests.commits import INFLIGHT_MAX, KEPT_BYTES_MAX, Commits, RecordRun
from broker.server.requests.origin import Outputs
from broker.service.catalog import Catalog, Creation
from broker.service.wait_room import FREE_BYTES
from broker.store.control import DeleteGroup, DeleteTopic
from broker.store.groups import SubscriptionGroupConfig
from broker.store.staging import StagedEntry, Staging
from broker.store.state import BrokerState
from broker.store.topics import TopicConfig
from dledger import (
    Committed,
    DLedgerError,
    EntryId,
    Failed,
    Index,
    LeadershipLostError,
    NotLeaderError,
    Position,
    RefusedError,
    Term,
    TooLargeError,
    TooManyPendingError,
    TransferringError,
)
from dledger_mq.message.hosts import pack_host

ENTRY_BYTES_MAX = 1000
HOST = pack_host("127.0.0.1", 1)


class FakeLog:
    """Takes proposals until told otherwise; the test decides them."""

    def __init__(self, entry_bytes_max: int = ENTRY_BYTES_MAX) -> None:
        self.entry_bytes_max = entry_bytes_max
        self.appender = self
        self.end_position = Position(0)
        self.proposed: list[tuple[bytes, Callable[[Any], None]]] = []
        self.refusal: RefusedError | None = None

    def propose(self, body: bytes, done: Callable[[Any], None]) -> EntryId:
        if self.refusal is not None:
            raise self.refusal
        if len(body) > self.entry_bytes_max:
            raise TooLargeError(f"a body of {len(body)} bytes")
        self.proposed.append((body, done))
        self.end_position = Position(self.end_position + 48 + len(body))
        return EntryId(Term(1), Index(len(self.proposed)))

    def decide(self, number: int, error: DLedgerError | None = None) -> None:
        entry = EntryId(Term(1), Index(number + 1))
        self.proposed[number][1](Failed(error) if error else Committed(entry, entry))


def flush_all(bench: Bench) -> None:
    """Flush and commit until nothing is left; proposals were not decided before."""
    decided = 0
    while not bench.commits.is_idle:
        bench.commits.flush()
        bench.log.decide(decided)
        decided += 1


class Told:
    """A waiter that remembers."""

    def __init__(self) -> None:
        self.places: list[tuple[int, int]] = []
        self.errors: list[DLedgerError] = []

    def committed(self, staged: StagedEntry, place: int) -> None:
        self.places.append((place, staged.queue_offset(place) if place >= 0 else -1))

    def failed(self, error: DLedgerError) -> None:
        self.errors.append(error)


class ToldRun(RecordRun):
    """A run that remembers: the place of its first record, how many there are, and the queue offset of the first."""

    def __init__(self, ends: list[int], runs: list[ToldRun]) -> None:
        self.ends = ends
        self.places: list[tuple[int, int, int]] = []
        self.runs = runs
        runs.append(self)

    def committed(self, staged: StagedEntry, place: int) -> None:
        self.places.append((place, len(self.ends), staged.queue_offset(place)))

    def failed(self, error: DLedgerError) -> None:
        raise AssertionError(f"{len(self.ends)} records failed: {error}")

    def divide(self, count: int) -> ToldRun:
        rest = [end - self.ends[count - 1] for end in self.ends[count:]]
        del self.ends[count:]
        return ToldRun(rest, self.runs)


class Bench:
    def __init__(self, count_max: int = 100, entry_bytes_max: int = ENTRY_BYTES_MAX) -> None:
        self.log = FakeLog(entry_bytes_max)
        self.state = BrokerState()
        self.catalog = Catalog(self.state.topics.get, self.state.groups.get)
        self.commits = Commits(
            self.log,  # type: ignore[arg-type]  # the part of a LogServer that is used here
            Staging(self.state, HOST),
            self.catalog,
            Outputs(),
            count_max=count_max,
            bytes_max=10_000,
            entry_bytes_max=entry_bytes_max,
            now_ms=lambda: 1,
        )

    def stage(self, waiter: Told, body: bytes = b"x", kept_bytes: int = 0) -> None:
        place = self.commits.staging.stage(b"T", 0, body, b"", born_timestamp_ms=1, born_host=HOST)
        self.commits.wait(place, waiter, kept_bytes)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_all_that_is_staged_becomes_one_entry(bench: Bench) -> None:
    waiters = [Told() for _ in range(3)]
    for waiter in waiters:
        bench.stage(waiter)
    bench.commits.flush()
    assert len(bench.log.proposed) == 1
    assert waiters[0].places == []
    bench.log.decide(0)
    assert [waiter.places for waiter in waiters] == [[(0, 0)], [(1, 1)], [(2, 2)]]
    assert bench.commits.is_idle


def test_while_enough_is_on_its_way_more_gathers(bench: Bench) -> None:
    told = Told()
    for _ in range(INFLIGHT_MAX + 2):
        bench.stage(told)
        bench.commits.flush()
    assert len(bench.log.proposed) == INFLIGHT_MAX
    bench.log.decide(0)
    bench.commits.flush()
    assert len(bench.log.proposed) == INFLIGHT_MAX + 1
    bench.log.decide(1)
    bench.log.decide(2)
    assert [offset for _, offset in told.places] == [0, 1, 2, 3]


def test_a_refused_proposal_frees_its_offsets(bench: Bench) -> None:
    first, second = Told(), Told()
    bench.log.refusal = TooManyPendingError("full")
    bench.stage(first)
    bench.commits.flush()
    assert [type(error) for error in first.errors] == [TooManyPendingError]
    bench.log.refusal = None
    bench.stage(second)
    bench.commits.flush()
    bench.log.decide(0)
    assert second.places == [(0, 0)]


def test_an_unknown_outcome_is_told_as_such(bench: Bench) -> None:
    told = Told()
    bench.stage(told)
    bench.commits.flush()
    bench.log.decide(0, LeadershipLostError("gone"))
    assert [error.definite for error in told.errors] == [False]


def test_lost_leadership_refuses_what_was_only_staged(bench: Bench) -> None:
    flying, staged = Told(), Told()
    bench.stage(flying)
    bench.commits.flush()
    bench.stage(staged)
    bench.commits.lost(NotLeaderError("n1", 2))
    assert [error.definite for error in staged.errors] == [True]
    assert flying.errors == []
    bench.log.decide(0, LeadershipLostError("gone"))
    assert len(flying.errors) == 1
    assert bench.commits.is_idle


def test_what_a_request_creates_is_seen_by_the_next(bench: Bench) -> None:
    told = Told()
    place = bench.commits.create(Creation(topics=(TopicConfig("New", 1, 1),)))
    bench.commits.wait(place, told)
    assert bench.catalog.topic("New") is not None
    bench.commits.flush()
    bench.log.decide(0)
    assert bench.catalog.topic("New") is None, (
        "the fold of this test never ran: only staged ones were seen"
    )


def test_what_a_refused_entry_would_have_created_is_not_there(bench: Bench) -> None:
    """A hand-over refuses entries; if nobody takes it this node goes on leading, and must create the topic then."""
    bench.stage(Told())
    bench.commits.flush()  # one entry is on its way, so the catalog is not settled meanwhile
    told = Told()
    bench.log.refusal = TransferringError("leadership is being handed to n1")
    created = Creation((TopicConfig("New", 1, 1),), (SubscriptionGroupConfig("G"),))
    bench.commits.wait(bench.commits.create(created), told)
    bench.commits.flush()
    assert [error.definite for error in told.errors] == [True]
    assert bench.catalog.topic("New") is None
    assert bench.catalog.group("G") is None


def test_what_an_entry_on_its_way_creates_outlives_a_refused_one(bench: Bench) -> None:
    bench.commits.wait(bench.commits.create(Creation((TopicConfig("New", 1, 1),))), Told())
    bench.commits.flush()
    bench.log.refusal = TooManyPendingError("full")
    bench.commits.wait(bench.commits.create(Creation((TopicConfig("Newer", 1, 1),))), Told())
    bench.commits.flush()
    assert bench.catalog.topic("New") is not None
    assert bench.catalog.topic("Newer") is None


def test_what_may_rely_on_a_refused_creation_is_refused_with_it(bench: Bench) -> None:
    """A batch that is divided: the topic's creation is too large with its message, the second message would fit."""
    first, second = Told(), Told()
    bench.commits.create(Creation((TopicConfig("New", 1, 1),)))
    bench.stage(first, bytes(ENTRY_BYTES_MAX))
    bench.stage(second)
    bench.commits.flush()
    assert [type(error) for error in first.errors + second.errors] == 2 * [TooLargeError]
    assert bench.log.proposed == []
    assert bench.commits.is_idle
    last = Told()
    bench.stage(last)
    flush_all(bench)
    assert last.places == [(0, 0)]


def test_a_creation_in_the_later_part_of_a_divided_batch_is_forgotten_with_that_part(
    bench: Bench,
) -> None:
    first, second = Told(), Told()
    bench.stage(first, bytes(500))
    bench.commits.create(Creation((TopicConfig("New", 1, 1),)))
    bench.stage(second, bytes(500))
    propose = bench.log.propose

    def propose_once(body: bytes, done: Callable[[Any], None]) -> EntryId:
        bench.log.refusal = TooManyPendingError("full") if bench.log.proposed else None
        return propose(body, done)

    bench.log.propose = propose_once  # type: ignore[method-assign]
    bench.commits.flush()
    bench.log.decide(0)
    assert first.places == [(0, 0)]
    assert [type(error) for error in second.errors] == [TooManyPendingError]
    assert bench.catalog.topic("New") is None


def test_waiting_for_everything_staged(bench: Bench) -> None:
    told = Told()
    bench.commits.stage_control(DeleteTopic("T"))
    bench.commits.wait_for_staged(told)
    bench.commits.flush()
    bench.commits.wait_for_staged(told)
    assert told.places == []
    bench.log.decide(0)
    assert len(told.places) == 2


def test_the_bound_counts_what_is_on_its_way() -> None:
    bench = Bench(count_max=2)
    bench.stage(Told())
    assert not bench.commits.is_full
    bench.stage(Told())
    assert bench.commits.is_full
    bench.commits.flush()
    assert bench.commits.is_full
    bench.log.decide(0)
    assert not bench.commits.is_full


@pytest.mark.parametrize("error", [None, LeadershipLostError("gone"), NotLeaderError("n1", 2)])
def test_what_large_requests_keep_meanwhile_counts(
    bench: Bench, error: DLedgerError | None
) -> None:
    """Their records may be small; usual requests keep as little as nothing."""
    told = Told()
    for kept_bytes in (KEPT_BYTES_MAX - FREE_BYTES - 1, FREE_BYTES, FREE_BYTES + 1):
        assert bench.commits.room[1] > 0
        bench.stage(told, kept_bytes=kept_bytes)
    assert (bench.commits.is_full, bench.commits.room) == (True, (0, 0))
    bench.commits.flush()
    assert bench.commits.is_full
    bench.log.decide(0, error)
    assert not bench.commits.is_full
    assert len(told.places) + len(told.errors) == 3


def test_what_a_divided_run_keeps_counts_until_all_of_it_is_decided(bench: Bench) -> None:
    staging, ends = bench.commits.staging, list[int]()
    for _ in range(3):
        staging.stage(b"T", 0, bytes(600), b"", born_timestamp_ms=1, born_host=HOST)
        ends.append(staging.staged_bytes)
    bench.commits.wait(0, ToldRun(ends, []), KEPT_BYTES_MAX)
    bench.commits.flush()
    assert len(bench.log.proposed) == 2
    bench.log.decide(0)
    bench.commits.flush()
    bench.log.decide(1)
    assert bench.commits.is_full
    bench.log.decide(2)
    assert not bench.commits.is_full


def test_no_entry_passes_the_bound_of_the_log(bench: Bench) -> None:
    """Each record takes 300 bytes and a little more; two of one unit stand in one entry."""
    told = [Told() for _ in range(7)]
    for waiter in told:
        bench.commits.staging.stage(b"T", 0, bytes(150), b"", born_timestamp_ms=1, born_host=HOST)
        bench.stage(waiter, bytes(150))
    flush_all(bench)
    assert all(len(body) <= 1000 for body, _ in bench.log.proposed)
    assert len(bench.log.proposed) > 1
    # The place within its entry, and the offset in the queue, which goes on from one to the next.
    assert [waiter.places[0][1] for waiter in told] == [1, 3, 5, 7, 9, 11, 13]
    assert all(waiter.places[0][0] % 2 == 1 for waiter in told)


def test_a_run_is_divided_where_an_entry_ends_and_late_waiters_are_told_with_its_end(
    bench: Bench,
) -> None:
    """Two records fit an entry; one that stands before takes the room of one of them."""
    before, late, runs = Told(), Told(), list[ToldRun]()
    bench.stage(before, bytes(300))
    staging, ends, began = bench.commits.staging, list[int](), bench.commits.staging.staged_bytes
    for _ in range(4):
        staging.stage(b"T", 0, bytes(300), b"", born_timestamp_ms=1, born_host=HOST)
        ends.append(staging.staged_bytes - began)
    bench.commits.wait(1, ToldRun(ends, runs))
    bench.commits.wait_for_staged(late)
    flush_all(bench)
    assert before.places == [(0, 0)]
    assert [run.places for run in runs] == [[(1, 1, 1)], [(0, 2, 2)], [(0, 1, 4)]]
    assert late.places == [(0, 4)]


def test_what_is_too_large_alone_is_refused_alone(bench: Bench) -> None:
    before, giant, after = Told(), Told(), Told()
    bench.stage(before)
    bench.stage(giant, bytes(2000))
    bench.stage(after)
    flush_all(bench)
    assert [type(error) for error in giant.errors] == [TooLargeError]
    assert (before.places, after.places) == ([(0, 0)], [(0, 1)])
    assert bench.commits.is_idle


def test_a_deleted_topic_begins_anew_in_whichever_entry_it_stands(bench: Bench) -> None:
    told = [Told() for _ in range(4)]
    bench.stage(told[0], bytes(500))
    bench.stage(told[1], bytes(500))
    bench.commits.wait(bench.commits.stage_control(DeleteTopic("T")), Told())
    bench.stage(told[2], bytes(500))
    bench.stage(told[3], bytes(500))
    flush_all(bench)
    assert len(bench.log.proposed) == 4
    assert [waiter.places[0][1] for waiter in told] == [0, 1, 0, 1]


def test_lost_leadership_forgets_where_entries_would_have_ended(bench: Bench) -> None:
    for _ in range(5):
        bench.stage(Told(), bytes(500))
    bench.commits.lost(NotLeaderError("n1", 2))
    told = Told()
    bench.stage(told)
    bench.stage(told)
    bench.commits.flush()
    assert len(bench.log.proposed) == 1
    bench.log.decide(0)
    assert told.places == [(0, 0), (1, 1)]


def test_what_is_staged_after_a_divided_batch_counts_from_where_its_own_entry_begins(
    bench: Bench,
) -> None:
    told = Told()
    for _ in range(3):
        bench.stage(told, bytes(500))
    bench.commits.flush()  # two of them are on their way, the third waits
    for _ in range(2):
        bench.stage(told, bytes(500))
    decided = 0
    while not bench.commits.is_idle:
        bench.log.decide(decided)
        bench.commits.flush()
        decided += 1
    assert told.errors == []
    assert [offset for _, offset in told.places] == [0, 1, 2, 3, 4]
    assert max(len(body) for body, _ in bench.log.proposed) <= ENTRY_BYTES_MAX


def test_who_flushes_is_notified_of_all_that_is_left_to_flush(bench: Bench) -> None:
    wanted: list[str] = []
    bench.commits.wanted = lambda: wanted.append("flush")
    bench.stage(Told())
    assert wanted == ["flush"]
    bench.commits.flush()
    for _ in range(INFLIGHT_MAX):
        bench.stage(Told())
        bench.commits.flush()
    del wanted[:]
    bench.log.decide(0)
    assert wanted == ["flush"], "what gathered meanwhile has room now"
    bench.commits.flush()
    del wanted[:]
    bench.log.decide(1)
    assert wanted == [], "nothing is staged"


def test_what_a_failed_waiter_stages_anew_is_wanted_again(bench: Bench) -> None:
    told, wanted = Told(), [0]

    class Again(Told):
        def failed(self, error: DLedgerError) -> None:
            bench.log.refusal = None
            bench.stage(told)

    def want() -> None:
        wanted[0] += 1

    bench.log.refusal = TooManyPendingError("full")
    bench.commits.wanted = want
    bench.stage(Again())
    assert wanted == [1]
    bench.commits.flush()
    assert wanted == [2], "while it flushes"
    bench.commits.flush()
    bench.log.decide(0)
    assert told.places == [(0, 0)]


def test_a_full_entry_does_not_wait_for_others_that_are_on_their_way(bench: Bench) -> None:
    told = Told()
    for _ in range(2 * INFLIGHT_MAX + 1):
        bench.stage(told, bytes(500))
    bench.commits.flush()
    assert len(bench.log.proposed) == 2 * INFLIGHT_MAX, "the last one is alone in its entry"
    bench.log.decide(0)
    bench.commits.flush()
    for number in range(1, 2 * INFLIGHT_MAX):
        bench.log.decide(number)
        bench.commits.flush()
    bench.log.decide(2 * INFLIGHT_MAX)
    assert [offset for _, offset in told.places] == list(range(2 * INFLIGHT_MAX + 1))


def test_who_waits_late_for_an_earlier_record_is_told_with_it(bench: Bench) -> None:
    early, late, last = Told(), Told(), Told()
    bench.stage(early, bytes(500))
    bench.stage(last, bytes(500))
    bench.commits.wait(0, late)
    flush_all(bench)
    assert len(bench.log.proposed) == 2
    assert (early.places, late.places, last.places) == ([(0, 0)], [(0, 0)], [(0, 1)])


def test_a_group_that_was_deleted_is_not_known_as_staged_though_it_never_was_idle(
    bench: Bench,
) -> None:
    bench.commits.create(Creation(groups=(SubscriptionGroupConfig("G"),)))
    bench.commits.flush()
    bench.commits.stage_control(DeleteGroup("G", clean_offsets=False))
    bench.commits.flush()
    bench.log.decide(0)
    bench.stage(Told())
    bench.commits.flush()
    bench.log.decide(1)
    assert not bench.commits.is_idle
    assert bench.catalog.group("G") is None
