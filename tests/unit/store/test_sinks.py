"""The table of sinks: which rows of whose current batch stand in the log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.store.refusals import RefusalKind
from broker.store.sinks import IDLE_MS, RowKeys, Sinks

NOW_MS = 1_700_000_000_000


def key(number: int) -> bytes:
    return number.to_bytes(8, "big")


def keys(*numbers: int) -> bytes:
    return b"".join(map(key, numbers))


def taken(sinks: Sinks, sink_id: str) -> tuple[int, set[bytes]]:
    sink = sinks.get(sink_id)
    assert sink is not None
    return sink.batch_id, set(sink.keys)


# Few values per byte, so that keys overlap in every way that a search in a bucket could mistake.
crowded = st.lists(st.lists(st.integers(0, 2), min_size=8, max_size=8).map(bytes), max_size=60)


@given(crowded, crowded)
def test_row_keys_are_a_set(added: list[bytes], asked: list[bytes]) -> None:
    twin: set[bytes] = set()
    packed = RowKeys()
    for one in added:
        assert (one in packed) == (one in twin)
        if one not in twin:
            packed.add(one)
            twin.add(one)
    assert [one in packed for one in asked] == [one in twin for one in asked]
    assert sorted(packed) == sorted(twin)
    assert len(packed) == len(twin)


def test_rows_gather_in_a_batch_and_a_higher_one_drops_them() -> None:
    sinks = Sinks()
    assert sinks.take("s", 4, keys(1, 2), NOW_MS) is None
    assert sinks.take("s", 4, keys(3), NOW_MS) is None
    assert taken(sinks, "s") == (4, {key(1), key(2), key(3)})
    assert sinks.take("s", 7, keys(1), NOW_MS) is None
    assert taken(sinks, "s") == (7, {key(1)})
    assert sinks.key_count == 1


def test_sinks_do_not_know_each_other() -> None:
    sinks = Sinks()
    sinks.take("s", 4, keys(1), NOW_MS)
    assert sinks.take("t", 2, keys(1), NOW_MS) is None
    assert taken(sinks, "s") == (4, {key(1)})
    assert sinks.key_count == 2


@pytest.mark.parametrize(
    ("batch_id", "more", "kind"),
    [
        (3, keys(9), RefusalKind.STALE_PROGRESS),  # a lower batch
        (4, keys(9, 1), RefusalKind.STALE_PROGRESS),  # a row that is there
        (4, keys(9, 9), RefusalKind.STALE_PROGRESS),  # one twice
        (5, keys(9) + b"x", RefusalKind.OUT_OF_RANGE),
    ],
)
def test_what_no_leader_of_ours_writes_is_refused_and_changes_nothing(
    batch_id: int, more: bytes, kind: RefusalKind
) -> None:
    sinks = Sinks()
    sinks.take("s", 4, keys(1, 2), NOW_MS)
    before = sinks.dump()
    assert sinks.take("s", batch_id, more, NOW_MS + 1) is kind
    assert sinks.dump() == before


def test_without_keys_a_batch_is_only_ended() -> None:
    sinks = Sinks()
    sinks.take("s", 4, keys(1), NOW_MS)
    assert sinks.take("s", 5, b"", NOW_MS) is None
    assert taken(sinks, "s") == (5, set())
    assert sinks.key_count == 0


def test_idle_sinks_are_forgotten_by_log_time_in_the_order_of_their_last_use() -> None:
    sinks = Sinks()
    sinks.take("old", 1, keys(1, 2), NOW_MS)
    sinks.take("busy", 1, keys(1), NOW_MS)
    sinks.take("busy", 1, keys(2), NOW_MS + 1000)
    digest = sinks.digest
    sinks.take("new", 1, keys(1), NOW_MS + IDLE_MS)
    assert sinks.get("old") is not None, "idle for exactly as long as it may"
    sinks.take("new", 1, keys(2), NOW_MS + IDLE_MS + 1)
    assert [sink_id for sink_id, _ in sinks] == ["busy", "new"]
    assert sinks.key_count == 4
    assert sinks.digest != digest


def test_a_dump_is_the_whole_table() -> None:
    sinks = Sinks()
    for number in range(1, 301):
        sinks.take(f"s{number % 3}", 1, keys(number, number << 50), NOW_MS + number)
    other = Sinks()
    other.load(sinks.dump())
    assert other.dump() == sinks.dump()
    assert other.key_count == sinks.key_count == 600
