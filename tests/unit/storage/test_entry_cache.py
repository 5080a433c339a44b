"""The newest entries in memory: where their bodies stand, beside a plain list of entries, whatever comes and goes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dledger.raft.entry import ENTRY_HEADER_BYTES, Entry, EntryKind
from dledger.raft.ids import Index, Position, Term
from dledger.storage import entry_cache
from dledger.storage.entry_cache import EntryCache

BYTES_MAX = 40 * (ENTRY_HEADER_BYTES + 4)
steps = st.lists(
    st.tuples(st.sampled_from(["add"] * 4 + ["truncate", "forget", "shrink", "clear"]), st.integers(0, 60)),
    max_size=30,
)  # fmt: skip


def entry(index: int) -> Entry:
    position = 7 + 100 * index
    return Entry(Index(index), Term(1), Position(position), EntryKind.NORMAL, b"%4d" % index)


@given(steps=steps)
def test_the_columns_hold_what_the_entries_do(steps: list[tuple[str, int]]) -> None:
    cache, held, last = EntryCache(BYTES_MAX), list[Entry](), 0
    was, entry_cache._GONE_MAX = entry_cache._GONE_MAX, 3  # type: ignore[misc]  # so few that they are cut off here
    try:
        for kind, number in steps:
            if kind == "add":
                for index in range(last + 1, last + 1 + number):
                    cache.add(entry(index))
                    held.append(entry(index))
                last += number
            elif kind == "truncate":
                first = max(last - number, 0) + 1
                cache.truncate_from(Index(first))
                held = [each for each in held if each.index < first]
                last = first - 1
            elif kind == "clear":
                cache.clear()
                held = []
            else:
                bound = max(last - number, 0)
                if kind == "forget":
                    cache.forget_before(Index(bound))
                    held = [each for each in held if each.index >= bound]
                else:
                    cache.shrink(Index(bound))
                    while len(held) > 40 and held[0].index <= bound:
                        del held[0]
            compare(cache, held)
    finally:
        entry_cache._GONE_MAX = was  # type: ignore[misc]


def compare(cache: EntryCache, held: list[Entry]) -> None:
    assert len(cache) == len(held)
    assert cache.size_bytes == sum(each.size_bytes for each in held)
    if not held:
        return
    places = [each.position + ENTRY_HEADER_BYTES for each in held]
    bodies = [each.body for each in held]
    indexes = [each.index for each in held]
    assert cache.bodies_between(indexes[0], indexes[-1]) == (places, bodies)
    middle = len(held) // 2
    assert cache.bodies_between(indexes[middle], indexes[-1]) == (places[middle:], bodies[middle:])
    assert cache.bodies_of(indexes[::3]) == (places[::3], bodies[::3])
