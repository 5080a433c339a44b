"""The compiled stage as a module of C: it is built where it can be, keeps its counts, and may be switched off."""

from __future__ import annotations

import socket
import subprocess
import sys
import zlib
from array import array
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from broker.store.chained_sends import CHAIN_MAX, NUMBERS, TABLE_KEYS, ChainedSends, HashedKeys
from broker.store.consume_queue import ConsumeQueue
from broker.store.entry_bodies import QueueEnd
from broker.store.unit_stores import UNIT, MemoryUnitStore
from dledger_mq.filters import layout
from dledger_mq.message import compiled
from dledger_mq.message.batch import BatchItem, encode_batch
from dledger_mq.remoting.frame import Frame, encode_frame
from tests.property.store.test_record_shapes_twin import record_of
from tests.stages import PYTHON_H, needs_compiled, needs_compiler, stage
from tests.unit.store.lone_broker import BORN, HOST

ROOT = Path(__file__).resolve().parents[3]
SOURCES = sorted((ROOT / "dledger_mq/message").glob("_*.c"))
TWINS = (
    "tests/property/store/test_asked_values_twin.py",
    "tests/property/store/test_judged_records_twin.py",
    "tests/property/store/test_chosen_runs_twin.py",
    "tests/property/store/test_encoded_entries_twin.py",
    "tests/property/store/test_record_shapes_twin.py",
    "tests/property/store/test_compiled_fold_twin.py",
    "tests/property/store/test_whole_entries_twin.py",
    "tests/property/store/test_encoded_runs_twin.py",
    "tests/property/service/test_batches_twin.py",
    "tests/property/net/test_cut_frames_twin.py",
    "tests/property/net/test_sockets_twin.py",
    "tests/unit/remoting/test_send_patterns.py",
    "tests/unit/client/test_pulled_messages.py",
    "tests/unit/message/test_compiled.py::test_no_reference_is_kept_or_given_away",
    "tests/unit/message/test_compiled.py::test_no_reference_is_kept_or_given_away_by_the_fold",
    "tests/unit/message/test_compiled.py::test_no_reference_is_kept_or_given_away_by_whole_entries",
    "tests/unit/message/test_compiled.py::test_no_reference_is_kept_or_given_away_by_runs",
    "tests/unit/message/test_compiled.py::test_no_reference_is_kept_or_given_away_by_filters",
    "tests/unit/message/test_compiled.py::test_no_reference_is_kept_or_given_away_by_pulls",
    "tests/unit/message/test_compiled.py::test_no_reference_is_kept_or_given_away_by_bursts",
    "tests/unit/message/test_compiled.py::test_no_reference_is_kept_or_given_away_by_sockets",
    "tests/unit/message/test_compiled.py::test_no_reference_is_kept_or_given_away_by_columns",
    *(("tests/property/pipeline/test_columns_twin.py",) if find_spec("pyarrow") else ()),
)
TIMEOUT_S = 580.0
"""A little less than a test may take (`timeout` in pyproject.toml): what was printed is shown."""

RUN_TWINS = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("dledger_mq.message._compiled", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
sys.modules[spec.name] = module
import pytest
from dledger_mq.message import compiled
assert all(getattr(module, name) is each for name, each in compiled._FOUND._asdict().items())
options = ["-q", "-p", "no:cacheprovider", "--hypothesis-profile=fewer"]
sys.exit(pytest.main([*options, *sys.argv[2:]]))
"""
"""A quarter of the examples: they go through each line, and each branch of it, that all of them go through (gcov)."""


@needs_compiler
def test_it_is_built_where_there_is_a_compiler() -> None:
    assert compiled.is_built, "make setup"
    assert compiled.is_used


@needs_compiled
def test_either_way_can_be_chosen_and_says_so() -> None:
    with stage(is_compiled=True):
        assert compiled.describe() == "compiled code"
        with stage(is_compiled=False):
            assert compiled.describe() == "Python (the compiled code is switched off)"
            assert compiled.read_batch(encode_batch([ITEM]), 1, shape_of) is None
        assert compiled.read_batch(encode_batch([ITEM]), 1, shape_of) is not None


def test_where_it_was_not_built_python_does_all(monkeypatch: pytest.MonkeyPatch) -> None:
    was_used = compiled.is_used
    with monkeypatch.context() as patched:
        patched.setattr(compiled, "is_built", False)
        compiled.choose(is_wanted=True)
        assert compiled.describe() == "Python (not compiled)"
        assert compiled.encode_records([], 0, 0, HOST, zlib.crc32, bytes) is None
    compiled.choose(is_wanted=was_used)


ITEM = BatchItem(3, b"body", b"UNIQ_KEY\x01key\x02TAGS\x01red\x02")


def shape_of(_before: bytes, _rest: bytes) -> compiled.ShapeParts | None:
    return SHAPE


SHAPE = (b"before that is no constant"[:6], b"ending"[:6], 12_345_678, b"some keys"[:9])
FOLDED = (23_456_789, b"key", None)


def queue_end(topic: bytes) -> QueueEnd:
    return QueueEnd((topic, 1), 0)  # type: ignore[arg-type]


@needs_compiled
def test_no_reference_is_kept_or_given_away() -> None:
    """On all ways out: done, declined, and failed at each place."""
    body, ends = b"x" * 600, [queue_end(b"T"), queue_end(b"t" * 128)]
    fine, broken = ITEM, BatchItem(0, b"", b"no key")
    other = BatchItem(0, b"", b"UNIQ_KEY\x01other shape\x02")
    some_batches = ([fine] * 3, [fine, broken], [fine, fine], [fine, other, fine])
    batches = [encode_batch(some) for some in some_batches]
    batches.append(batches[0][:-1])

    def fail(*_arguments: Any) -> Any:
        raise ZeroDivisionError

    properties, answer = b"p\x01v\x02" * 9, b"folded" * 9
    watched: list[Any] = [body, properties, answer, *ends, *batches, SHAPE, *SHAPE, FOLDED, HOST]
    watched += [BORN, None, shape_of, fail, *(end.key for end in ends), ends[0].topic_field]

    def use_all() -> None:
        for data in batches:
            for ask in (shape_of, lambda *_cut: None, lambda *_cut: (), fail):
                _outcome(compiled.read_batch, data, 3, ask)
                _outcome(compiled.read_batch, data, 2, ask)
        for end in (*ends, None):
            for folded in (FOLDED, None):
                message = (end, body, properties, 0, 1, BORN, 0, 0, 0, folded)
                for some in (
                    [message] * 3,
                    [message, 5],
                    [message, (*message[:3], 4, *message[4:])],
                ):
                    for crc32 in (zlib.crc32, fail, lambda _body: None):
                        for fold in (lambda _properties: answer, fail):
                            _outcome(compiled.encode_records, some, 0, 7, HOST, crc32, fold)

    with stage(is_compiled=True):
        use_all()
        before = [sys.getrefcount(each) for each in watched if each is not None]
        blocks = sys.getallocatedblocks()
        for _ in range(50):
            use_all()
        assert [sys.getrefcount(each) for each in watched if each is not None] == before
        assert sys.getallocatedblocks() - blocks < 50, "one for each round would be a leak"


@needs_compiled
def test_no_reference_is_kept_or_given_away_by_runs() -> None:
    """On all ways out, as before."""
    data = encode_batch([ITEM, ITEM, BatchItem(0, b"b", b"UNIQ_KEY\x01k\x02x\x01y\x02")])
    plain = (*SHAPE[:3], None)
    field, crc = b"\x01T and more"[:2], 2**40 + 5
    start, store_ms, sys_flag = 2**33 + 1, 2**41 + 1, 1_000_003

    def fail(*_arguments: Any) -> Any:
        raise ZeroDivisionError

    rest = (field, sys_flag, store_ms, BORN, HOST)
    with stage(is_compiled=True):
        run = compiled.batch_records(data, lambda *_cut: plain, 1, *rest, lambda _body: crc)
    assert run is not None
    watched: list[Any] = [data, plain, *plain[:2], field, BORN, HOST, fail, run, start, store_ms]

    def use_all() -> None:
        for shape_of_it in (lambda *_cut: plain, lambda *_cut: SHAPE, lambda *_cut: None, fail):
            for body in (data, data[:-1], data + b"x", b""):
                _outcome(compiled.batch_keys, body, 9, shape_of_it)
                _outcome(compiled.batch_keys, body, 1, shape_of_it)
                for sum_up in (lambda _body: crc, lambda _body: None, fail):
                    _outcome(compiled.batch_records, body, shape_of_it, 1, *rest, sum_up)
        _outcome(compiled.batch_records, data, shape_of, 1, *rest[:3], b"", HOST, zlib.crc32)
        for runs, starts in (
            ([run, run], [start, 5]),
            ([run], []),
            ([run[:-1]], [start]),
            ([run, 5], [start, start]),
            ([run], [None]),
            ([run], None),
        ):
            _outcome(compiled.place_records, runs, starts, 5048, store_ms)

    with stage(is_compiled=True):
        use_all()
        before = [sys.getrefcount(each) for each in watched]
        blocks = sys.getallocatedblocks()
        for _ in range(50):
            use_all()
        assert [sys.getrefcount(each) for each in watched] == before
        assert sys.getallocatedblocks() - blocks < 50, "one for each round would be a leak"


@needs_compiled
def test_no_reference_is_kept_or_given_away_by_filters() -> None:
    """On all ways out, as before."""
    sound = memoryview(record_of(b"UNIQ_KEY\x01k1\x02a\x01b\x02"))
    marks = (b"a\x01"[:2], b"no\x01"[:3])
    far, size = 1 << 40, len(sound)
    one, two = UNIT.pack(far, size, 0), UNIT.pack(far + size, size, 0)
    places = [far, far + size]
    calls: list[tuple[Any, ...]] = [
        (one + two, places, [sound, sound], marks),
        (one + two, places, [sound, sound[:-1]], marks),
        (one + two, places, [sound], marks),
        (one + two, places[:1], [sound, sound], marks),
        (one + two, [far, None], [sound, sound], marks),
        (one + two, [far, "x"], [sound, sound], marks),
        (one + two, places, [sound, 5], marks),
        (one + two, places, [sound[1:], sound], marks),
        (two + one, places, [sound, sound], marks),
        (one, places, [sound], (marks[0], 5)),
        (one[:-1], [], [], ()),
        (one, [], [], marks),
        (5, places, [sound], marks),
        (one, 5, [sound], marks),
    ]
    layouts = [layout.is_text(0, text) for text in (b"b", b"c")] + [layout.NOT_LAID_OUT]
    watched: list[Any] = [sound, marks, *marks, places, *places, one, two, None, *layouts]

    def use_all() -> None:
        for arguments in calls:
            _outcome(compiled.asked_values, *arguments)
            for laid_out in (*layouts, 5):
                _outcome(compiled.judged_records, *arguments, laid_out)

    with stage(is_compiled=True):
        assert compiled.asked_values(*calls[0]) == [(b"b", None)] * 2
        for laid_out, verdicts in ((layouts[0], ([0, 1], [])), (layouts[2], ([], [0, 1]))):
            units, *others = *calls[0], laid_out
            assert compiled.judged_records(units, *others) == (2, *verdicts)
        use_all()
        before = [sys.getrefcount(each) for each in watched if each is not None]
        blocks = sys.getallocatedblocks()
        for _ in range(50):
            use_all()
        assert [sys.getrefcount(each) for each in watched if each is not None] == before
        assert sys.getallocatedblocks() - blocks < 50, "one for each round would be a leak"


@needs_compiled
def test_no_reference_is_kept_or_given_away_by_bursts() -> None:
    """On all ways out, as before."""
    header, body = b'{"o":12,"q":"3","b":"9","k":"key"}', b"x" * 600
    segments = (b'{"o":', b',"q":"', b'","b":"', b'","k":"', b'"}')
    frame, end, prefix = Frame(0, header, body), queue_end(b"T"), b"1234567890ABCDEF"
    queues, flags = {3: end, 4: None}, 1 << 20
    mine = (queues, flags, flags, 9)
    rest = (BORN, 9, 999, 999, 999_999, 0)
    kinds = ((segments, b"oqbk", SHAPE, *mine), ((b"", *segments[1:]), b"oqbk", SHAPE, *mine))
    sound, other = [frame] * 3, Frame(0, header.replace(b'"3"', b'"4"'), body)
    reads: list[tuple[Any, ...]] = [
        (sound, 0, kinds[:1], *rest),
        (sound, 0, kinds[::-1], *rest),
        (sound, 0, (), *rest),
        ([frame, other], 0, kinds, *rest),
        ([frame, 5], 0, kinds, *rest),
        (sound, 0, kinds, [BORN] * 3, *rest[1:]),
        (sound, 0, kinds, [BORN], *rest[1:]),
        (sound, 0, kinds, 5, *rest[1:]),
        (sound, 0, (5,), *rest),
        (sound, 0, kinds * 33, *rest),
        (sound, 0, (kinds[0][:-1],), *rest),
        (sound, 0, ((segments, b"oqbo", SHAPE, *mine),), *rest),
        (sound, 0, (((*segments[:4], 5), b"oqbk", SHAPE, *mine),), *rest),
        (sound, 0, ((segments, b"oqbk", (b"", 5, None, None), *mine),), *rest),
        (sound, 0, ((segments, b"oqbk", 5, *mine),), *rest),
        (sound, 0, ((segments, b"oqbk", SHAPE, {}, *mine[1:]),), *rest),
        (sound, 0, ((segments, b"oqbk", SHAPE, 5, *mine[1:]),), *rest),
        (sound, 0, ((segments, "oqbk", SHAPE, *mine),), *rest),
        (sound, 0, [], *rest),
        (5, 0, kinds, *rest),
    ]
    data = encode_frame(header, body) * 2

    def fail(*_arguments: Any) -> Any:
        raise ZeroDivisionError

    cuts: list[tuple[Any, ...]] = [
        (data, 0, 9999, 999, Frame),
        (data[:-1], 0, 9999, 999, Frame),
        (data, 0, 99, 999, Frame),
        (data, 0, 9999, 999, fail),
        (data, 9999, 9999, 999, Frame),
        (5, 0, 9999, 999, Frame),
    ]
    record = (end.key, flags, flags, 9, 9, False, None)
    joins: list[tuple[Any, ...]] = [
        (segments, [record] * 2, [flags, 9]),
        (segments, [record], [-1]),
        (segments, [record], ["x"]),
        (segments, [record], []),
        (segments, [record[:-1]], [9]),
        (segments, [((b"T",), *record[1:])], [9]),
        (segments[:-1], [record], [9]),
        ((*segments[:4], b"x" * 40_000), [record], [9]),
    ]
    watched: list[Any] = [header, body, *segments, frame, other, end, prefix, queues, SHAPE, *SHAPE]
    watched += [BORN, sound, data, record, flags, fail, Frame, None]

    def use_all() -> None:
        for arguments in reads:
            _outcome(compiled.read_sends, *arguments)
        for arguments in cuts:
            _outcome(compiled.cut_frames, *arguments)
        for arguments in joins:
            _outcome(compiled.join_answers, *arguments)
            _outcome(compiled.each_answer, *arguments)

    with stage(is_compiled=True):
        found = compiled.read_sends(*reads[0])
        assert found is not None
        assert found[2] == [b"key"] * 3
        use_all()
        before = [sys.getrefcount(each) for each in watched if each is not None]
        blocks = sys.getallocatedblocks()
        for _ in range(50):
            use_all()
        assert [sys.getrefcount(each) for each in watched if each is not None] == before
        assert sys.getallocatedblocks() - blocks < 50, "one for each round would be a leak"


@needs_compiled
def test_no_reference_is_kept_or_given_away_by_sockets() -> None:
    """On all ways out, as before."""
    data, other = encode_frame(b"header", b"x" * 600), b"no frame"
    limits = (9999, 99_999, 9999, 999)

    def fail(*_arguments: Any) -> Any:
        raise ZeroDivisionError

    watched: list[Any] = [data, other, fail, Frame, None]
    with stage(is_compiled=True), socket.socket() as unconnected:
        near, far = socket.socketpair()
        with near, far:
            both = [near.fileno(), far.fileno()]

            def use_all() -> None:
                for make in (Frame, fail):
                    for sent in (data, other):
                        assert compiled.send_each(both, [sent, data]) == [len(sent), len(data)]
                        _outcome(compiled.receive_frames, both, *limits, make)
                for wrong in (5, ["x"], [-1], [unconnected.fileno()]):
                    _outcome(compiled.receive_frames, wrong, *limits, Frame)
                    _outcome(compiled.send_each, wrong, [data])
                _outcome(compiled.receive_frames, both, *limits, Frame)
                _outcome(compiled.send_each, both, [data, 5])
                _outcome(compiled.send_each, both, [data])

            use_all()
            before = [sys.getrefcount(each) for each in watched if each is not None]
            blocks = sys.getallocatedblocks()
            for _ in range(50):
                use_all()
            assert [sys.getrefcount(each) for each in watched if each is not None] == before
            assert sys.getallocatedblocks() - blocks < 50, "one for each round would be a leak"


class Unequal:
    """It cannot be compared with a number that has its hash."""

    def __hash__(self) -> int:
        return 7

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError


@needs_compiled
def test_no_reference_is_kept_or_given_away_by_pulls() -> None:
    """On all ways out, as before."""
    far = 1 << 40
    units = b"".join(UNIT.pack(far + at, 91, 7 + at % 2) for at in (0, 91, 200, 500))
    tags, count, most = frozenset((7, far)), far + 5, far + 7
    calls: list[tuple[Any, ...]] = [
        (units, None, count, most),
        (units, tags, count, most),
        (units, set[int](), count, most),
        (units, tags, 2, most),
        (units, tags, count, 1),
        (units, [7], count, most),
        (units, {Unequal()}, count, most),
        (units, tags, None, most),
        (units, tags, count, "x"),
        (units[1:], tags, count, most),
        (UNIT.pack(far, -1, 7), tags, count, most),
        (5, tags, count, most),
    ]
    watched: list[Any] = [units, tags, count, most, far, calls]

    def use_all() -> None:
        for arguments in calls:
            _outcome(compiled.chosen_runs, *arguments)

    with stage(is_compiled=True):
        assert _outcome(compiled.chosen_runs, *calls[6]) is ZeroDivisionError
        use_all()
        before = [sys.getrefcount(each) for each in watched]
        blocks = sys.getallocatedblocks()
        for _ in range(50):
            use_all()
        assert [sys.getrefcount(each) for each in watched] == before
        assert sys.getallocatedblocks() - blocks < 50, "one for each round would be a leak"


@needs_compiled
def test_no_reference_is_kept_or_given_away_by_columns() -> None:
    """On all ways out, as before."""
    pairs = b"UNIQ_KEY\x01k1\x02a\x01\xc3\xa9\x02"
    record, bad = record_of(pairs), pairs.replace(b"\xa9", b"z")
    bounds = array("q", [0, len(record)]).tobytes()
    begins, ends = (array("q", [at]).tobytes() for at in (0, len(pairs)))
    calls: list[tuple[Any, tuple[Any, ...]]] = [
        (compiled.record_columns, (record, bounds)),
        (compiled.record_columns, (record, bounds[:-1])),
        (compiled.record_columns, (record[:-1] + b"x", bounds)),
        (compiled.record_columns, (record[:-1], bounds)),
        (compiled.record_columns, (record, 5)),
        *(
            (function, (data, *places, *name))
            for function, name in (
                (compiled.property_json, ()),
                (compiled.property_values, (b"a",)),
            )
            for data in (pairs, bad, pairs[:-1] + b"x", pairs[:-1], 5)
            for places in ((begins, ends), (begins, begins), (ends, begins), (begins, b""))
        ),
        (compiled.property_values, (pairs, begins, ends, 5)),
    ]
    watched: list[Any] = [pairs, bad, record, bounds, begins, ends, None]

    def use_all() -> None:
        for function, arguments in calls:
            _outcome(function, *arguments)

    with stage(is_compiled=True):
        assert compiled.property_json(pairs, begins, ends) is not None
        use_all()
        before = [sys.getrefcount(each) for each in watched if each is not None]
        blocks = sys.getallocatedblocks()
        for _ in range(50):
            use_all()
        assert [sys.getrefcount(each) for each in watched if each is not None] == before
        assert sys.getallocatedblocks() - blocks < 50, "one for each round would be a leak"


@needs_compiled
def test_no_reference_is_kept_or_given_away_by_the_fold() -> None:
    """On all ways out, as before."""
    sound = record_of(b"UNIQ_KEY\x01k1\x02a\x01b\x02")
    two = sound + record_of(b"UNIQ_KEY\x01k2\x02a\x01c\x02", len(sound), topic=b"Other")
    bodies = [sound, two, two[:-1], sound + b"x" * 95, b""]
    shape = (b"the topic"[:5], 2, 12_345_678, b"some keys"[:9])
    queue = ConsumeQueue((b"T", 1), MemoryUnitStore())  # type: ignore[arg-type]
    special = ConsumeQueue((b"S", 1), MemoryUnitStore(), special=True)  # type: ignore[arg-type]
    by_key = {queue.key: queue, special.key: special}
    uniq_key, others, seed = b"unique"[:6], b"a b"[:3], 987_654_321
    queue.key_seed = seed
    record = (queue.key, 0, 5_000_000, 91, 3, False, (7, uniq_key, others))
    odd: list[Any] = [
        (special.key, *record[1:]),
        (([], 1), *record[1:]),
        (queue.key, 5, *record[2:]),
        5,
    ]
    cells, hashes = array("I", [0] * 4), array("I", [2**30, 2**31])
    sealed, sealed_key = ChainedSends(), b"sealed and more"[:6]
    sealed.add(HashedKeys.of([b"a%d" % number for number in range(64)], range(64)), 0, oldest_ms=0)
    sealed.add(HashedKeys.of([sealed_key], [64]), 0, oldest_ms=0)
    held = sealed._heads, sealed._first, len(sealed), NUMBERS
    table = sealed._tables[0]

    def fail(*_arguments: Any) -> Any:
        raise ZeroDivisionError

    watched: list[Any] = [
        *bodies,
        shape,
        *shape,
        queue,
        special,
        queue.key,
        queue.tail,
        by_key,
        cells,
        sealed_key,
        held[0],
        sealed._tables,
        table,
        table.tags,
        table.before,
    ]
    watched += [
        uniq_key,
        others,
        seed,
        record,
        record[2],
        hashes,
        fail,
        *odd[:3],
        shape_of,
    ]

    def use_all() -> None:
        for body in bodies:
            for find in (lambda *_cut: shape, lambda *_cut: None, lambda *_cut: (1, 2, 3, 4), fail):
                _outcome(compiled.parse_records, body, 5048, find)
        for after in ([], [record], *([each] for each in odd)):
            for take in (lambda *_others: None, fail):
                queue.max_offset, queue.put_bytes = 0, 0  # type: ignore[assignment]
                queue.tail.clear()
                _outcome(compiled.fold_usual, [record, *after], by_key, 3, [], [], [], take)
        for numbers in (hashes, b"12345", None):
            for some in (cells, cells[:3], b"four"):
                _outcome(compiled.chain, some, 1, numbers)
        for keys in ([sealed_key, b"none"], [sealed_key, 5]):
            for tables in (sealed._tables, [], [5]):
                _outcome(compiled.chained_keys, keys, *held, tables, TABLE_KEYS, CHAIN_MAX)
        _outcome(compiled.chained_keys, [sealed_key], *held, [table], 0, 1)
        _outcome(compiled.chained_keys, [sealed_key], None, *held[1:], [table], 1, 1)

    with stage(is_compiled=True):
        use_all()
        before = [sys.getrefcount(each) for each in watched]
        blocks = sys.getallocatedblocks()
        for _ in range(50):
            use_all()
        assert [sys.getrefcount(each) for each in watched] == before
        assert sys.getallocatedblocks() - blocks < 50, "one for each round would be a leak"


@needs_compiled
def test_no_reference_is_kept_or_given_away_by_whole_entries() -> None:
    """On all ways out, as before."""
    sound = record_of(b"UNIQ_KEY\x01k1\x02a\x01b\x02")
    two = sound + record_of(b"UNIQ_KEY\x01k2\x02a\x01c\x02", len(sound), topic=b"Other")
    bodies = [sound, two, two[:-1], sound + b"x" * 95, b"", sound * 2]
    topic, seed = b"the topic"[:5], 987_654_321
    queues = [
        ConsumeQueue((topic, 1), MemoryUnitStore(), special=special)  # type: ignore[arg-type]
        for special in (False, True)
    ]
    shapes: list[Any] = [(topic, 2, 12_345_678, more) for more in (None, b"some keys"[:9])]
    shapes += [None, 5, (topic, "2", 3, None), (topic, 2, 2**63, None)]

    def fail(*_cut: bytes) -> Any:
        raise ZeroDivisionError

    watched: list[Any] = [*bodies, *shapes[:2], topic, seed, fail]
    watched += [each for queue in queues for each in (queue, queue.tail, queue.key)]

    def use_all() -> None:
        for queue in queues:
            queue.key_seed = seed
            for find in (*(lambda *_cut, found=found: found for found in shapes), fail):
                for body in bodies:
                    queue.max_offset, queue.put_bytes = 0, 0  # type: ignore[assignment]
                    queue.tail.clear()
                    _outcome(compiled.fold_entry, body, 5048, find, {(topic, 1): queue}, 0)
                    _outcome(compiled.fold_entry, body, 5048, find, {}, 0)
            with memoryview(queue.tail):
                _outcome(
                    compiled.fold_entry, sound, 5048, lambda *_: shapes[0], {(topic, 1): queue}, 0
                )

    with stage(is_compiled=True):
        use_all()
        before = [sys.getrefcount(each) for each in watched]
        blocks = sys.getallocatedblocks()
        for _ in range(50):
            use_all()
        assert [sys.getrefcount(each) for each in watched] == before
        assert sys.getallocatedblocks() - blocks < 50, "one for each round would be a leak"


def _outcome(function: Any, *arguments: Any) -> Any:
    """Call it, whatever it raises."""
    try:
        return function(*arguments)
    except (
        ArithmeticError,
        AttributeError,
        BufferError,
        LookupError,
        RuntimeError,
        TypeError,
    ) as error:
        return type(error)


def compile_with(*options: str, out: Path) -> None:
    command = ["cc", "-std=c11", "-O1", "-g", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]
    command += [*options, "-I", str(PYTHON_H.parent), *map(str, SOURCES), "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert (done.returncode, done.stderr) == (0, "")


@needs_compiler
@pytest.mark.parametrize("optimized", ["-O0", "-O2", "-O3"])
def test_it_compiles_without_a_warning(tmp_path: Path, optimized: str) -> None:
    out = tmp_path / "_compiled.abi3.so"
    compile_with(optimized, out=out)
    assert out.stat().st_size > 0


def sanitizers() -> list[str]:
    """The libraries to load before Python; empty: the compiler has none."""
    found = []
    for name in ("libasan.so", "libubsan.so"):
        asked = subprocess.run(
            ["cc", f"-print-file-name={name}"], capture_output=True, text=True, timeout=TIMEOUT_S
        )
        found.append(asked.stdout.strip())
    return found if all(Path(name).is_absolute() for name in found) else []


@pytest.fixture(scope="module")
def instrumented(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The module with what the sanitizers put into it."""
    if not sanitizers():
        pytest.skip("this compiler has no sanitizers")
    out = tmp_path_factory.mktemp("instrumented") / "_compiled.abi3.so"
    compile_with("-fsanitize=address,undefined", "-fno-sanitize-recover=all", out=out)
    return out


@needs_compiler
@pytest.mark.slow
def test_sanitizers_find_nothing_in_all_that_the_twins_do(instrumented: Path) -> None:
    """With Python's objects allocated one by one, so that a byte beyond one of them is seen."""
    done = subprocess.run(
        [sys.executable, "-c", RUN_TWINS, str(instrumented), *TWINS],
        cwd=ROOT,
        env={
            "PATH": "/usr/bin:/bin",
            "LD_PRELOAD": ":".join(sanitizers()),
            "ASAN_OPTIONS": "detect_leaks=0",
            "PYTHONMALLOC": "malloc",
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
