"""Checks at the leader: what is counted when, how much at a time, and whose clock (rules O15 to O21)."""

from __future__ import annotations

from typing import Any, cast

from broker.server.deliveries import transaction_checks as module
from broker.server.deliveries.transaction_checks import TransactionChecks
from broker.server.handlers.new_topics import NewTopics
from broker.server.handlers.transactions import TransactionEnds
from broker.server.requests.commits import Commits
from broker.server.requests.origin import Outputs
from broker.service.catalog import Catalog
from broker.store.transactions import TransactionVerdict
from dledger import Committed, Failed, NotLeaderError
from dledger.raft.ids import EntryId, Term
from dledger_mq.message.record import decode_record
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.header import RemotingCommand, decode_command
from tests.unit.store.lone_broker import START_MS, LoneBroker

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"


class Bench:
    """A leader with nothing but checks; commits at the word of the test."""

    is_serving = True

    def __init__(self, *, check_max: int = 2, steady_ms: int = 0) -> None:
        self.broker = LoneBroker()
        self.state = self.broker.state
        self.wall_ms = START_MS
        self.steady_ms = steady_ms
        self.asked: list[tuple[str, RemotingCommand]] = []
        self.flying: list[Any] = []
        catalog = Catalog(self.state.topics.get, self.state.groups.get)
        self.commits = Commits(
            cast("Any", self),
            self.broker.staging,
            catalog,
            Outputs(),
            count_max=1000,
            bytes_max=10**9,
            now_ms=lambda: self.wall_ms,
        )
        none = cast("Any", None)
        self.ends = TransactionEnds(
            none,
            self.commits,
            none,
            lambda: self.state.transactions,
            rules=none,
            answers=none,
            repeats=None,
            new_topics=NewTopics(lambda then: then(), lambda _: 0),
            open_max=9,
            now_ms=lambda: self.wall_ms,
        )
        self.appender = self.reader = self
        self.checks = TransactionChecks(
            cast("Any", self),
            self.state,
            self.commits,
            self.ends,
            catalog=catalog,
            ask=self._ask,
            broker_name="b",
            timeout_ms=6000,
            interval_ms=30_000,
            check_max=check_max,
            wall_ms=lambda: self.wall_ms,
            monotonic_ms=lambda: self.steady_ms,
        )
        self.checks.leadership_began()

    @property
    def end_position(self) -> Any:
        return self.broker.log.end_position

    def entry_at(self, position: Any) -> Any:
        return self.broker.log.entry_at(position)

    def span_at(self, position: Any, size_bytes: int, *, only_memory: bool = False) -> Any:
        return self.broker.log.span_at(position, size_bytes, only_memory=only_memory)

    def propose(self, body: bytes, done: Any) -> EntryId:
        self.flying.append((body, done))
        return EntryId(Term(1), self.state.applied_index + 1)  # type: ignore[arg-type]  # an Index

    def _ask(self, group: str, frame: bytes) -> None:
        decoder = FrameDecoder()
        decoder.feed(frame)
        (whole,) = decoder.frames()
        self.asked.append((group, decode_command(whole)))

    def begin(self, key: str, body: bytes = b"half") -> int:
        return self.broker.send(
            HALF,
            0,
            body,
            REAL_TOPIC="T",
            REAL_QID="1",
            __transactionId__=key,
            UNIQ_KEY=key,
            PGROUP="p",
        ).queue_offset(0)

    def commit(self) -> None:
        self.commits.flush()
        flying, self.flying = self.flying, []
        for body, done in flying:
            entry = self.broker.log.append(body)
            self.state.apply([entry])
            done(Committed(entry.id, entry.id))

    def counts(self) -> list[int]:
        return [half.check_count for half in self.state.transactions]


def test_a_check_is_in_the_log_before_anybody_is_asked() -> None:
    bench = Bench()
    bench.begin("u", b"body")
    bench.wall_ms += 6000
    bench.checks.tick()
    assert (bench.asked, bench.counts()) == ([], [0])
    bench.commit()
    ((group, request),) = bench.asked
    assert (group, bench.counts()) == ("p", [1])
    assert (request.ext["tranStateTableOffset"], request.ext["bname"]) == ("0", "b")
    record = decode_record(request.body)
    assert (record.topic, record.queue_id, record.body) == ("T", 1, b"body")
    assert record.physical_offset == int(request.ext["commitLogOffset"])


def test_one_batch_at_a_time_and_nothing_while_another_node_leads() -> None:
    bench = Bench()
    bench.begin("u")
    bench.wall_ms += 6000
    bench.is_serving = False
    bench.checks.tick()
    assert bench.commits.staging.staged_count == 0
    bench.is_serving = True
    bench.checks.tick()
    bench.checks.tick()
    assert bench.commits.staging.staged_count == 1


def test_a_check_that_was_not_committed_is_due_again() -> None:
    bench = Bench()
    bench.begin("u")
    bench.wall_ms += 6000
    bench.checks.tick()
    bench.commits.flush()
    ((_, done),) = bench.flying
    bench.flying = []
    done(Failed(NotLeaderError(None, Term(1))))
    bench.commits.staging.discard()
    bench.checks.tick()
    bench.commit()
    assert (len(bench.asked), bench.counts()) == (1, [1])


def test_o21_after_the_last_check_copy_and_op_record_are_one_entry() -> None:
    bench = Bench(check_max=1)
    bench.begin("u", b"body")
    for pause_ms in (6000, 30_000):
        bench.wall_ms += pause_ms
        bench.checks.tick()
        entries = len(bench.broker.log.entries)
        bench.commit()
        assert len(bench.broker.log.entries) == entries + 1
    assert bench.state.transactions.verdict(0) is TransactionVerdict.GIVEN_UP
    queue = bench.state.queues.get("TRANS_CHECK_MAX_TIME_TOPIC", 0)
    assert queue is not None
    assert queue.max_offset == 1
    config = bench.state.topics.get("TRANS_CHECK_MAX_TIME_TOPIC")
    assert config is not None
    assert (config.write_queue_count, config.perm) == (1, 6)
    assert len(bench.asked) == 1


def test_a_half_message_whose_end_is_on_its_way_is_left_alone() -> None:
    bench = Bench(check_max=1)
    offset = bench.begin("u")
    bench.wall_ms += 6000
    bench.ends.note_ending([offset])
    bench.checks.tick()
    assert bench.commits.staging.staged_count == 0


def test_a_half_message_that_nobody_can_answer_for_is_given_up_all_the_same() -> None:
    bench = Bench(check_max=1)
    bench.broker.send(HALF, 0, b"half")
    for pause_ms in (6000, 30_000):
        bench.wall_ms += pause_ms
        bench.checks.tick()
        bench.commit()
    assert bench.asked == []
    assert bench.state.transactions.verdict(0) is TransactionVerdict.GIVEN_UP


def test_few_large_messages_at_a_time_but_one_at_least() -> None:
    bench = Bench()
    for key in ("u", "v", "w"):
        bench.begin(key, b"x" * (module.CHECKED_BYTES_MAX // 2))
    bench.wall_ms += 6000
    bench.checks.tick()
    bench.commit()
    assert bench.counts() == [1, 0, 0]
    bench.commit()
    bench.commit()
    assert bench.counts() == [1, 1, 1]


def test_a_leader_whose_clock_is_behind_goes_on_from_the_log() -> None:
    bench = Bench(steady_ms=5)
    bench.begin("u")
    bench.checks.leadership_began()
    bench.wall_ms -= 3_600_000
    bench.steady_ms += 5999
    bench.checks.tick()
    assert bench.commits.staging.staged_count == 0
    bench.steady_ms += 1
    bench.checks.tick()
    bench.commit()
    assert bench.counts() == [1]
    bench.steady_ms += 29_999
    bench.checks.tick()
    bench.commit()
    assert bench.counts() == [1]
    bench.steady_ms += 1
    bench.checks.tick()
    bench.commit()
    assert bench.counts() == [2]


def test_a_half_message_that_cannot_be_read_now_is_checked_once_it_can() -> None:
    bench = Bench()
    bench.begin("u", b"first")
    damaged = bench.broker.log.entries[-1].index
    bench.begin("v", b"second")
    bench.broker.log.damaged = {damaged}
    bench.wall_ms += 6000
    bench.checks.tick()
    bench.commit()
    assert bench.counts() == [0, 1], "a check that nobody is asked is not counted"
    assert [decode_record(request.body).body for _, request in bench.asked] == [b"second"]
    bench.broker.log.damaged.clear()
    bench.checks.tick()
    bench.commit()
    assert bench.counts() == [1, 1]
    assert [decode_record(request.body).body for _, request in bench.asked] == [b"second", b"first"]


def test_a_half_message_that_cannot_be_read_now_is_not_given_up_without_its_copy() -> None:
    bench = Bench(check_max=1)
    bench.begin("u", b"body")
    damaged = bench.broker.log.entries[-1].index
    bench.wall_ms += 6000
    bench.checks.tick()
    bench.commit()
    bench.broker.log.damaged = {damaged}
    bench.wall_ms += 30_000
    bench.checks.tick()
    bench.commit()
    assert bench.state.transactions.verdict(0) is TransactionVerdict.OPEN
    bench.broker.log.damaged.clear()
    bench.checks.tick()
    bench.commit()
    assert bench.state.transactions.verdict(0) is TransactionVerdict.GIVEN_UP
    queue = bench.state.queues.get("TRANS_CHECK_MAX_TIME_TOPIC", 0)
    assert queue is not None
    assert queue.max_offset == 1
