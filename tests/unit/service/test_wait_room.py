"""The room of what waits: large ones share it, small ones need none, and what is shared counts once."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.service.wait_room import FREE_BYTES, WaitRoom


@dataclass
class One:
    kept_bytes: int = 0
    shared: tuple[object, int] | None = None


def test_large_ones_share_the_room() -> None:
    room = WaitRoom(100_000)
    first, second, third = One(60_000), One(40_000), One(FREE_BYTES + 1)
    assert room.enter(first)
    assert room.enter(second)
    assert not room.has_room(third)
    assert not room.enter(third)
    room.leave(third)  # which changes nothing
    room.leave(first)
    assert room.enter(third)
    assert room.used_bytes == 40_000 + FREE_BYTES + 1


def test_small_ones_need_none() -> None:
    room = WaitRoom(FREE_BYTES + 1)
    assert room.enter(One(FREE_BYTES + 1))
    small = [One(FREE_BYTES) for _ in range(10)]
    assert all(map(room.has_room, small))
    assert all(map(room.enter, small))
    assert room.used_bytes == FREE_BYTES + 1


def test_what_is_shared_counts_once_and_as_long_as_one_keeps_it() -> None:
    room, thing, other = WaitRoom(100_000), "thing", "other"
    first, second = One(0, (thing, 60_000)), One(0, (thing, 60_000))
    third = One(0, (other, 60_000))
    assert room.enter(first)
    assert room.enter(second)
    assert not room.enter(third)
    room.leave(first)
    assert not room.enter(third)
    room.leave(second)
    assert room.enter(third)
    assert room.used_bytes == 60_000


def test_what_is_small_with_what_it_shares_is_kept_out_by_nothing_large() -> None:
    """A full room of others must not end the waits of a group that only chooses by a few tags."""
    room = WaitRoom(FREE_BYTES + 1)
    assert room.enter(One(FREE_BYTES + 1))
    small, beyond = One(4096, ("tags", FREE_BYTES - 4096)), One(4096, ("more", FREE_BYTES - 4095))
    assert room.enter(small)
    assert not room.enter(beyond)
    room.leave(small)
    assert room.used_bytes == FREE_BYTES + 1


def test_one_waits_once() -> None:
    room, one = WaitRoom(), One(FREE_BYTES + 1)
    assert room.enter(one)
    with pytest.raises(AssertionError, match="waits already"):
        room.enter(one)


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from([0, 5_000, 9_000, 30_000]), st.integers(0, 2))
    )
)
def test_what_is_used_is_what_those_inside_keep(steps: list[tuple[int, int, int]]) -> None:
    """Against a sum each time: who is inside leaves, others try to enter."""
    room, things = WaitRoom(50_000), [None, ("a", 7_000), ("b", 100)]
    inside: dict[int, One] = {}
    for number, kept_bytes, thing in steps:
        if number in inside:
            room.leave(inside.pop(number))
        else:
            one = One(kept_bytes, things[thing])
            has_room = room.has_room(one)
            assert room.enter(one) == has_room
            if has_room:
                inside[number] = one
        large = [
            one
            for one in inside.values()
            if one.kept_bytes + (one.shared[1] if one.shared else 0) > FREE_BYTES
        ]
        own = sum(one.kept_bytes for one in large if one.kept_bytes > FREE_BYTES)
        shared = sum(size for _, size in {one.shared for one in large if one.shared})
        assert room.used_bytes == own + shared <= 50_000
