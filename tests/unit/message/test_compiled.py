"""The compiled stage as a module of C: it is built where it can be, keeps its counts, and may be switched off."""

from __future__ import annotations

import subprocess
import sys
import zlib
from array import array
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from broker.store.consume_queue import ConsumeQueue
from broker.store.entry_bodies import QueueEnd
from broker.store.sealed_sends import CHAIN_MAX, NUMBERS, TABLE_KEYS, SealedSends
from broker.store.unit_stores import UNIT, MemoryUnitStore
from dledger_mq.message import compiled
from dledger_mq.message.batch import BatchItem, encode_batch
from tests.property.store.test_record_shapes_twin import record_of
from tests.stages import PYTHON_H, needs_compiled, needs_compiler, stage
from tests.unit.store.lone_broker import BORN, HOST

ROOT = Path(__file__).resolve().parents[3]
SOURCES = sorted((ROOT / "dledger_mq/message").glob("_*.c"))
TWINS = (
    "tests/property/store/test_asked_values_twin.py",
    "tests/property/store/test_chosen_runs_twin.py",
    "tests/property/store/test_encoded_entries_twin.py",
    "tests/property/store/test_record_shapes_twin.py",
    "tests/property/store/test_compiled_fold_twin.py",
    "tests/property/service/test_batches_twin.py",
    "tests/unit/message/test_compiled.py::test_no_reference_is_kept_or_given_away",
    "tests/unit/message/test_compiled.py::test_no_reference_is_kept_or_given_away_by_the_fold",
    "tests/unit/message/test_compiled.py::test_no_reference_is_kept_or_given_away_by_filters",
    "tests/unit/message/test_compiled.py::test_no_reference_is_kept_or_given_away_by_pulls",
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
    watched: list[Any] = [sound, marks, *marks, places, *places, one, two, None]

    def use_all() -> None:
        for arguments in calls:
            _outcome(compiled.asked_values, *arguments)

    with stage(is_compiled=True):
        assert compiled.asked_values(*calls[0]) == [(b"b", None)] * 2
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
    cells, hashes = array("I", [0] * 4), [2**40, 2**41]
    sealed, sealed_key = SealedSends(), b"sealed and more"[:6]
    sealed.add([b"a%d" % number for number in range(64)], range(64), 0, oldest_ms=0)
    sealed.add([sealed_key], [64], 0, oldest_ms=0)
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
        *hashes,
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
        for numbers in (hashes, [*hashes, None]):
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
