"""Queries by key and by time, and views of old messages, do not read the disk on the loop, and answer the same.

The reads, their threads and their order are the real ones; the threads run when a test says so.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from broker.server.handlers.admin import AdminHandlers
from broker.server.handlers.offsets import Offsets
from broker.server.requests.disk_waits import DiskWaits
from broker.server.requests.dispatch import Dispatch
from broker.server.requests.request import HOLD_MS
from broker.server.requests.router import DISK_WAITS_MAX, Router
from broker.server.watches.trims import Trims
from broker.store import key_index
from broker.store.control import DeleteTopic, ForgetBefore, PutTopic
from broker.store.key_index import MemorySegmentStore, ReadPart
from broker.store.not_in_memory import FilesNotLoadedError
from broker.store.state import BrokerState, StateLimits
from broker.store.topics import TopicConfig
from broker.store.unit_stores import UNIT_BYTES, MemoryUnitStore, QueueKey
from dledger.raft.effects import AppendEntries, Commit
from dledger.raft.ids import Index
from dledger.runtime.cold_reads import ColdReads
from dledger.runtime.log_reader import LogReader
from dledger.storage.part_cache import PartCache
from dledger.testing.sim_disk import SimDisk, SimFile
from dledger_mq.message.numbers import QueueId, QueueOffset
from dledger_mq.message.record import decode_records
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.header import RemotingCommand, decode_command, encode_command, make_request
from tests.unit.engine.scripted import give, persist, scripted
from tests.unit.runtime.test_cold_reads import ManualThreads
from tests.unit.server.lone_leader import Asker
from tests.unit.server.pending import Confirmed
from tests.unit.store.lone_broker import START_MS, LoneBroker

MESSAGES = 40
BODY = bytes(8_000)
"""Eight of them fill a part of the log."""

LIMITS = StateLimits(index_segment_units=8)


class ColdFiles:
    """What units and segments have in common: nothing is in memory but what a thread has read."""

    def __init__(self, threads: ManualThreads) -> None:
        super().__init__()
        self.threads = threads
        self.on_the_loop = 0
        self.forgets = False
        """Whether what was read leaves memory at once."""

    def note(self) -> None:
        if not self.threads.is_running:
            self.on_the_loop += 1


class ColdUnits(ColdFiles, MemoryUnitStore):
    def __init__(self, threads: ManualThreads) -> None:
        super().__init__(threads)
        self.warm: set[int] = set()

    def read(self, key: QueueKey, first: QueueOffset, count: int) -> bytes:
        self.note()
        return super().read(key, first, count)

    def read_resident(self, key: QueueKey, first: QueueOffset, count: int) -> bytes | None:
        if not self.warm.issuperset(range(first, first + count)):
            return None
        return super().read(key, first, count)

    def warming(self, key: QueueKey, first: QueueOffset, count: int) -> Callable[[], None]:
        def warm() -> None:
            assert self.threads.is_running
            if not self.forgets and self._firsts[key] <= first:
                self.warm = {*range(first, first + count)}

        return warm

    def read_beside(self, key: QueueKey, first: QueueOffset, count: int) -> bytes:
        assert self.threads.is_running
        if self._firsts.get(key, first + 1) > first:
            raise OSError("it was forgotten")
        return super().read_beside(key, first, count)


class ColdSegments(ColdFiles, MemorySegmentStore):
    walked = 0

    def read(self, number: int, offset: int, size: int) -> bytes:
        self.note()
        return super().read(number, offset, size)

    def read_resident(self, number: int, offset: int, size: int) -> bytes | None:
        return None

    def read_beside(self, number: int, work: Callable[[ReadPart], None]) -> None:
        self.walked += 1
        if number not in self._segments:
            raise OSError(f"there is no segment {number}")
        super().read_beside(number, work)


class Bench:
    """A leader with forty messages, of which the disk has to be asked.

    Attributes:
        on_the_loop: reads of the log's files that the loop has waited for.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads = ManualThreads()
        self.units, self.segments = ColdUnits(self.threads), ColdSegments(self.threads)
        self.state = BrokerState(self.units, self.segments, LIMITS)
        self.broker = LoneBroker(self.state)
        self.now_ms = 0
        self.on_the_loop = 0
        self.engine = scripted(SimDisk(Random(1)), cache_bytes_max=0)
        self.written = 0
        self.broker.command(PutTopic(TopicConfig("T", 1, 1)))
        self.firsts: list[int] = []
        for number in range(MESSAGES):
            self.broker.now_ms = START_MS + 10 * number
            staged = self.broker.send(body=b"%d:" % number + BODY, KEYS=f"k{number % 4}")
            self.firsts.append(staged.physical_offset(0))
        self.write()
        self.queue.spill(0)
        self.reader = self._reader()
        self.router = Router(
            cast("Any", self),
            MagicMock(is_open=False),
            cast("Any", Confirmed()),
            cast("Any", SimpleNamespace(staged_end=0)),
            waiting_max=5,
            now_ms=lambda: self.now_ms,
        )
        self.dispatch = Dispatch(self.router, lambda: self.now_ms)
        self._register()
        self._watch(monkeypatch)

    is_serving = True
    node_id = "n0"
    lost_votes = SimpleNamespace(problem="")

    @property
    def queue(self) -> Any:
        return self.state.queues.get("T", QueueId(0))

    @property
    def waits_on_the_loop(self) -> int:
        return self.on_the_loop + self.units.on_the_loop + self.segments.on_the_loop

    def _reader(self) -> LogReader:
        driver = SimpleNamespace(
            engine=self.engine,
            read=lambda first, end, bytes_max: self.engine.read(first, end, bytes_max, 0),
        )
        standing = SimpleNamespace(driver=driver, running=driver, node_id="n0")
        reader = LogReader(standing, None)  # type: ignore[arg-type]  # what is used of them
        reader.cold = ColdReads(
            self.engine.log,
            PartCache(1 << 24),
            self.threads,
            commit_index=lambda: reader.commit_index,
        )
        return reader

    def _register(self) -> None:
        log: Any = self
        self.dispatch.register(
            Offsets(
                log,
                self.state,
                MagicMock(),
                self.router,
                committers=cast("Any", None),
                resets=cast("Any", None),
                now_ms=lambda: self.now_ms,
            ).handlers()
        )
        self.dispatch.register(
            AdminHandlers(
                log,
                self.state,
                self.router,
                members=cast("Any", None),
                broker_name="broker-a",
                runtime=dict,
                consumed_per_second=lambda group, topic: 0.0,
                given=lambda _group, _topic: {},
                made=lambda token: False,
                looked=lambda _group, _address: None,
            ).handlers()
        )

    def _watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        read_at = SimFile.read_at

        def noted(file: SimFile, offset: int, size: int) -> bytes:
            self.on_the_loop += not self.threads.is_running
            return read_at(file, offset, size)

        monkeypatch.setattr(SimFile, "read_at", noted)
        monkeypatch.setattr(SimFile, "read_resident", lambda *_: None)

    def write(self) -> None:
        """Let the log have what the broker has committed; what the storage reads for that does not count."""
        self.threads.is_running = True
        entries = self.broker.log.entries
        for entry in entries[self.written :]:
            give(self.engine, AppendEntries((entry,)))
        self.written = len(entries)
        while self.engine.has_unsaved:
            persist(self.engine)
        while part := self.engine.log.unverified():
            self.engine.log.examined(part, part.examination.run())
        give(self.engine, Commit(Index(len(entries))))
        self.engine.node.commit_index = Index(len(entries))  # type: ignore[misc]  # a scripted node
        self.threads.is_running = False

    def ask(self, code: RequestCode, **ext: object) -> Asker:
        asker = Asker()
        named = {name: str(value) for name, value in ext.items()}
        decoder = FrameDecoder()
        decoder.feed(encode_command(make_request(code, 9, named)))
        self.dispatch.handle(cast("Any", asker), list(decoder.frames()))
        return asker

    def by_time(self, time_ms: int, **ext: object) -> Asker:
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        return self.ask(code, topic="T", queueId=0, timestamp=time_ms, **ext)

    def by_key(self, key: str, count: int = 64, begin_ms: int = 0, **ext: object) -> Asker:
        span = {"beginTimestamp": begin_ms, "endTimestamp": 1 << 60}
        return self.ask(RequestCode.QUERY_MESSAGE, topic="T", key=key, maxNum=count, **span, **ext)

    def earliest(self) -> Asker:
        return self.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, topic="T", queueId=0)

    def forget(self, number: int) -> None:
        """Let the group forget what came before a message."""
        entry = self.broker.log.entry_at(self.firsts[number])
        self.broker.command(ForgetBefore(entry.index, entry.position, "time"))
        self.write()

    def view(self, number: int) -> Asker:
        return self.ask(RequestCode.VIEW_MESSAGE_BY_ID, offset=self.firsts[number])

    def answered(self, asker: Asker, most: int = 200) -> RemotingCommand:
        """Run the threads until somebody is answered."""
        for _ in range(most):
            if asker.frames:
                break
            self.threads.run_first()
        return answer_of(asker)

    def run_all(self) -> None:
        while self.threads.begun:
            self.threads.run_first()


def answer_of(asker: Asker) -> RemotingCommand:
    decoder = FrameDecoder()
    decoder.feed(b"".join(asker.frames))
    (frame,) = decoder.frames()
    return decode_command(frame)


def numbers_of(answer: RemotingCommand) -> list[int]:
    return [int(record.body.split(b":")[0]) for record in decode_records(answer.body)]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


ASKED: dict[str, Callable[[Bench], Asker]] = {
    "time": lambda bench: bench.by_time(START_MS + 133),
    "upper": lambda bench: bench.by_time(START_MS + 133, boundaryType="UPPER"),
    "earliest": lambda bench: bench.earliest(),
    "key": lambda bench: bench.by_key("k3"),
    "few": lambda bench: bench.by_key("k1", 3),
    "later": lambda bench: bench.by_key("k1", begin_ms=START_MS + 300),
    "unique": lambda bench: bench.by_key("k1", _UNIQUE_KEY_QUERY="true"),
    "absent": lambda bench: bench.by_key("absent"),
    "view": lambda bench: bench.view(5),
}


@pytest.mark.parametrize("asked", ASKED)
def test_the_disk_is_waited_for_beside_the_loop_and_the_answer_is_the_same(
    bench: Bench, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asker = ASKED[asked](bench)
    assert asker.frames == []
    assert (len(bench.threads.begun), bench.router.waiting_count) == (1, 1)
    other = bench.ask(RequestCode.GET_MAX_OFFSET, topic="T", queueId=0)
    assert answer_of(other).ext["offset"] == str(MESSAGES), "the loop goes on meanwhile"
    answer = bench.answered(asker)
    assert bench.waits_on_the_loop == 0
    assert not bench.router.waiting_count
    twin = Bench(monkeypatch)
    monkeypatch.setattr(twin.router, "may_wait_for_disk", lambda request: False)
    assert answer == answer_of(ASKED[asked](twin))
    assert twin.waits_on_the_loop


def test_a_search_by_time_finds_each_message(bench: Bench) -> None:
    for number in range(MESSAGES):
        for beside, found in ((0, number), (1, number + 1)):
            answer = bench.answered(bench.by_time(START_MS + 10 * number + beside))
            assert answer.ext["offset"] == str(found)
    assert bench.waits_on_the_loop == 0


def test_a_search_goes_on_where_it_was_though_what_it_has_read_is_gone_and_the_queue_grows(
    bench: Bench,
) -> None:
    bench.reader.running_cold.cache = bench.reader.running_cold.planner._cache = PartCache(1)
    asker = bench.by_time(START_MS + 10 * MESSAGES + 5)
    turns = 0
    while not asker.frames and turns < 100:
        turns += 1
        bench.broker.now_ms += 10
        bench.broker.send(body=BODY)
        bench.write()
        bench.threads.run_first()
    assert answer_of(asker).ext["offset"] == str(MESSAGES + 1)


def test_a_search_begins_anew_in_a_topic_that_was_made_again(bench: Bench) -> None:
    asker = bench.by_time(START_MS + 305)
    for _ in range(4):
        bench.threads.run_first()
    assert asker.frames == []
    bench.broker.command(DeleteTopic("T"))
    bench.broker.command(PutTopic(TopicConfig("T", 1, 1)))
    bench.broker.send(body=b"new")
    bench.write()
    assert bench.answered(asker).ext["offset"] == "0", "all of the new one is later"


def test_what_was_trimmed_meanwhile_is_not_found(bench: Bench) -> None:
    earliest, by_time = bench.earliest(), bench.by_time(START_MS)
    view, by_key = bench.view(0), bench.by_key("k0")
    bench.forget(20)
    assert bench.answered(earliest).ext["timestamp"] == str(START_MS + 200)
    assert bench.answered(by_time).ext["offset"] == "20"
    assert bench.answered(view).code == ResponseCode.SYSTEM_ERROR
    assert numbers_of(bench.answered(by_key)) == [20, 24, 28, 32, 36]


def test_a_query_by_key_sees_what_came_meanwhile(bench: Bench) -> None:
    asker = bench.by_key("k2")
    bench.broker.send(body=b"40:", KEYS="k2")
    bench.write()
    assert numbers_of(bench.answered(asker))[-2:] == [38, 40]


def test_what_is_in_memory_is_not_all_that_is_found(bench: Bench) -> None:
    assert numbers_of(bench.answered(bench.view(MESSAGES - 1))) == [MESSAGES - 1]
    assert numbers_of(bench.answered(bench.by_key("k3"))) == [*range(3, MESSAGES, 4)]


def test_no_more_is_read_than_was_asked_for(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    load = bench.reader.load

    def noted(places: Any, done: Any, is_wanted: Any) -> None:
        read.append(len(places))
        load(places, done, is_wanted)

    monkeypatch.setattr(bench.reader, "load", noted)
    assert numbers_of(bench.answered(bench.by_key("k1", 3))) == [29, 33, 37]
    assert max(read) == 3


def test_nothing_goes_on_that_was_given_up(bench: Bench) -> None:
    """Not even what wants no answer, and so is never closed."""
    went_on: list[object] = []
    waiter = cast("Any", SimpleNamespace(deadline_ms=5, is_closed=False, kept_bytes=0, shared=None))
    waits = DiskWaits[Any](bench.reader, went_on.append, most=1)
    waits.wait_for(waiter, FilesNotLoadedError(lambda: None), lambda: went_on.append("on"))
    waits.expire(5)
    bench.run_all()
    assert went_on == [waiter]


def test_a_long_way_through_a_segment_is_gone_in_parts(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_index, "STEPS_WALKED", 1)
    monkeypatch.setattr(key_index, "SEGMENTS_WALKED", 2)
    asker = bench.by_key("k3")
    assert numbers_of(bench.answered(asker)) == [*range(3, MESSAGES, 4)]
    assert bench.segments.walked == 10
    assert bench.waits_on_the_loop == 0


def test_who_waits_too_long_is_told_to_ask_again(bench: Bench) -> None:
    asker = bench.by_key("k3")
    bench.router.expire(HOLD_MS - 1)
    assert asker.frames == []
    bench.router.expire(HOLD_MS)
    answer = answer_of(asker)
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "ask again" in (answer.remark or "")
    bench.run_all()
    assert len(asker.frames) == 1


def test_for_a_client_that_went_nothing_is_read(bench: Bench) -> None:
    for _ in range(3):
        bench.by_time(START_MS + 50).is_closed = True
    bench.run_all()
    assert bench.router.waiting_count == 0
    assert bench.reader.running_cold.load_count == 0


def test_no_more_wait_than_may_and_the_next_one_is_answered_on_the_loop(bench: Bench) -> None:
    waiting = [bench.earliest() for _ in range(5)]
    assert answer_of(bench.earliest()).ext["timestamp"] == str(START_MS)
    assert bench.waits_on_the_loop
    assert [bench.answered(each).ext["timestamp"] for each in waiting] == [str(START_MS)] * 5


def test_what_leaves_memory_at_once_is_read_on_the_loop_in_the_end(bench: Bench) -> None:
    bench.units.forgets = True
    answer = bench.answered(bench.earliest(), DISK_WAITS_MAX)
    assert answer.ext["timestamp"] == str(START_MS)
    assert bench.units.on_the_loop == 1


def test_a_segment_that_a_thread_cannot_read_is_read_as_ever(bench: Bench) -> None:
    def refuse(number: int, work: Callable[[ReadPart], None]) -> None:
        raise OSError("no descriptor is left")

    bench.segments.read_beside = refuse  # type: ignore[method-assign]
    assert numbers_of(bench.answered(bench.by_key("k3"))) == [*range(3, MESSAGES, 4)]
    assert bench.segments.on_the_loop


def test_where_a_queue_begins_is_looked_for_beside_the_loop(bench: Bench) -> None:
    trims = Trims(bench.reader, lambda: bench.state.queues)
    bench.forget(17)
    queue = bench.state.queues.by_key[b"T", QueueId(0)]
    trims.tick()
    trims.tick()
    assert len(bench.threads.begun) == 1
    assert (queue.min_offset, bench.waits_on_the_loop) == (0, 0)
    bench.run_all()
    trims.tick()
    assert (queue.min_offset, queue.held_first, bench.waits_on_the_loop) == (17, 17, 0)
    assert bench.state.queues.looks() is None
    bench.forget(23)
    for _ in range(2):
        trims.tick()
        bench.run_all()
    assert (queue.min_offset, bench.waits_on_the_loop) == (23, 0)


def test_one_look_for_beginnings_is_under_way_at_a_time(bench: Bench) -> None:
    trims = Trims(bench.reader, lambda: bench.state.queues)
    for first in (10, 20, 30):
        bench.forget(first)
        trims.tick()
    assert len(bench.threads.begun) == 1
    while bench.threads.begun:
        bench.run_all()
        trims.tick()
    assert (bench.queue.min_offset, bench.waits_on_the_loop) == (30, 0)


@pytest.mark.parametrize("first", [1, 2, 19, 38, 39])
@pytest.mark.parametrize("in_memory", [0, 1, 5, 39])
def test_it_is_found_wherever_it_is(bench: Bench, first: int, in_memory: int) -> None:
    queue = bench.state.queues.by_key[b"T", QueueId(0)]
    queue.tail = bytearray(bench.units._kept[queue.key][(MESSAGES - in_memory) * UNIT_BYTES :])
    queue.tail_first = QueueOffset(MESSAGES - in_memory)
    queue._digested_bytes = len(queue.tail)
    trims = Trims(bench.reader, lambda: bench.state.queues)
    bench.forget(first)
    for _ in range(3):
        trims.tick()
        bench.run_all()
    assert (queue.min_offset, queue.held_first, bench.waits_on_the_loop) == (first, first, 0)


def test_who_asks_for_a_queue_meanwhile_waits_until_it_is_known_where_it_begins(
    bench: Bench,
) -> None:
    bench.forget(17)
    asker = bench.ask(RequestCode.GET_MIN_OFFSET, topic="T", queueId=0)
    assert asker.frames == []
    assert bench.answered(asker, 1).ext["offset"] == "17"
    assert bench.waits_on_the_loop == 0


def test_what_was_found_does_not_hold_for_a_later_beginning(bench: Bench) -> None:
    bench.forget(10)
    asker = bench.ask(RequestCode.GET_MIN_OFFSET, topic="T", queueId=0)
    bench.forget(30)
    assert bench.answered(asker).ext["offset"] == "30"
    assert bench.waits_on_the_loop == 0


def test_a_thread_that_cannot_read_units_leaves_a_queue_to_who_asks_for_it(bench: Bench) -> None:
    def refuse(key: QueueKey, first: QueueOffset, count: int) -> bytes:
        raise OSError("no descriptor is left")

    bench.units.read_beside = refuse  # type: ignore[method-assign]
    trims = Trims(bench.reader, lambda: bench.state.queues)
    bench.forget(17)
    trims.tick()
    bench.run_all()
    assert bench.state.queues.min_max("T", QueueId(0)) == (17, MESSAGES)
    assert bench.units.on_the_loop
