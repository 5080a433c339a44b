"""Frames are found whatever the pieces, and mangled as asked."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.codec.frame import FrameDecoder, encode_frame
from dledger.errors import PeerProtocolError
from jepsen.nemeses.mangling import (
    FRAME_BYTES_MAX,
    KEPT_FRAME_BYTES_MAX,
    FrameCutter,
    Mangler,
    Recorder,
    flip_bit,
)
from jepsen.systems.api import Shape


def frame(number: int) -> bytes:
    return encode_frame(b"%d" % number, b"x" * (number % 50))


@given(
    st.lists(st.integers(0, 200), max_size=20),
    st.lists(st.integers(0, 300), max_size=20),
)
def test_frames_come_out_whole_whatever_the_pieces(numbers: list[int], cuts: list[int]) -> None:
    frames = [frame(number) for number in numbers]
    stream = b"".join(frames)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    cutter = FrameCutter()
    found: list[bytes] = []
    for at, end in pairwise(edges):
        found += cutter.feed(stream[at:end])
    assert found == frames
    assert cutter.take_rest() == b""


def test_an_unfinished_frame_is_kept_back() -> None:
    cutter = FrameCutter()
    assert cutter.feed(frame(7)[:9]) == []
    assert cutter.take_rest() == frame(7)[:9]


def test_bytes_that_are_no_frames_pass_as_they_come() -> None:
    cutter = FrameCutter()
    data = (FRAME_BYTES_MAX + 1).to_bytes(4, "big") + b"what is this"
    assert cutter.feed(data) == [data]
    assert cutter.feed(b"and more") == [b"and more"]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (Shape(lose=1.0), []),
        (Shape(duplicate=1.0), [1, 1, 2, 2, 3, 3, 4, 4]),
        (Shape(reorder=1.0), [2, 1, 4, 3]),
        (Shape(), [1, 2, 3, 4]),
    ],
)
def test_frames_are_lost_doubled_swapped(shape: Shape, expected: list[int]) -> None:
    mangler = Mangler(random.Random(1))
    frames = [frame(number) for number in (1, 2, 3, 4)]
    assert mangler.treat(frames, shape) + mangler.release() == [frame(each) for each in expected]


def test_a_share_is_a_share() -> None:
    frames = [frame(1)] * 10_000
    passed = Mangler(random.Random(1)).treat(frames, Shape(lose=0.1))
    assert 8_800 < len(passed) < 9_200


@given(st.integers(0, 1000))
def test_a_corrupt_frame_has_its_length_and_is_refused_by_the_members(seed: int) -> None:
    damaged = flip_bit(frame(33), random.Random(seed))
    assert len(damaged) == len(frame(33))
    assert damaged[:4] == frame(33)[:4]
    with pytest.raises(PeerProtocolError):
        FrameDecoder(blob_bytes_max=1000).feed(damaged)


def test_old_frames_are_the_first_and_the_newest() -> None:
    recorder = Recorder()
    recorder.note(frame(number) for number in range(1000))
    old = recorder.old_frames(20, random.Random(1))
    assert len(old) == 20
    assert set(old[:10]) <= {frame(number) for number in range(64)}
    assert set(old[10:]) <= {frame(number) for number in range(800, 1000)}


def test_large_frames_are_not_kept() -> None:
    recorder = Recorder()
    recorder.note([bytes(KEPT_FRAME_BYTES_MAX + 1)])
    assert recorder.old_frames(10, random.Random(1)) == []
