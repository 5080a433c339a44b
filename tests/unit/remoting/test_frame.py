"""Cutting a stream into frames: every way to split it, cut it off, and damage it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_mq.remoting.errors import FrameError
from dledger_mq.remoting.frame import (
    FRAME_BYTES_MAX,
    HEADER_BYTES_MAX,
    Frame,
    FrameDecoder,
    encode_frame,
)

contents = st.tuples(st.binary(max_size=30), st.binary(max_size=30), st.sampled_from([0, 1]))


def joined(frames: list[tuple[bytes, bytes, int]]) -> tuple[bytes, list[Frame]]:
    return (
        b"".join(encode_frame(header, body, kind) for header, body, kind in frames),
        [Frame(kind, header, body) for header, body, kind in frames],
    )


@given(st.lists(contents, max_size=6))
def test_a_whole_stream(many: list[tuple[bytes, bytes, int]]) -> None:
    data, expected = joined(many)
    decoder = FrameDecoder()
    decoder.feed(data)
    assert decoder.frames() == expected
    assert decoder.pending_bytes == 0


@given(st.lists(contents, max_size=4), st.data())
def test_a_stream_in_any_pieces(many: list[tuple[bytes, bytes, int]], data: st.DataObject) -> None:
    stream, expected = joined(many)
    decoder = FrameDecoder()
    found: list[Frame] = []
    at = 0
    while at < len(stream):
        size = data.draw(st.integers(1, len(stream) - at))
        decoder.feed(stream[at : at + size])
        at += size
        if data.draw(st.booleans()):
            found += decoder.frames()
        elif (frame := decoder.next_frame()) is not None:
            found.append(frame)
    assert found + decoder.frames() == expected
    assert decoder.pending_bytes == 0


def test_byte_by_byte() -> None:
    stream, expected = joined([(b"header", b"body", 0), (b"", b"", 1), (b"h", b"", 0)])
    decoder = FrameDecoder()
    found = []
    for at in range(len(stream)):
        decoder.feed(stream[at : at + 1])
        found += decoder.frames()
    assert found == expected


@given(contents)
def test_every_truncation_waits_for_more(content: tuple[bytes, bytes, int]) -> None:
    stream, _ = joined([content])
    for size in range(len(stream)):
        decoder = FrameDecoder()
        decoder.feed(stream[:size])
        assert decoder.frames() == []
        assert decoder.pending_bytes == size


@given(st.binary(max_size=64))
def test_any_bytes_are_cut_or_refused(data: bytes) -> None:
    decoder = FrameDecoder(frame_bytes_max=1024)
    decoder.feed(data)
    try:
        frames = decoder.frames()
    except FrameError:
        return
    used = sum(8 + len(frame.header) + len(frame.body) for frame in frames)
    assert used + decoder.pending_bytes == len(data)


@pytest.mark.parametrize(
    ("prefix", "reason"),
    [
        ("7fffffff00000000", "frame of 2147483651 bytes, at most 16777216"),
        ("ffffffff00000000", "frame of 4294967299 bytes"),
        ("00fffffd00000000", "frame of 16777217 bytes"),
        ("0000000300000000", "header of 0 bytes in a frame of length 3"),
        ("0000000400000001", "header of 1 bytes in a frame of length 4"),
        ("00fffffc00100001", "header of 1048577 bytes, at most 1048576"),
        ("0000000802000001", "serialize type 2"),
        ("16030100c8010000", "it begins as TLS does, which is off here"),
        ("474554202f204854", "frame of"),
    ],
)
def test_impossible_prefixes_are_refused_at_once(prefix: str, reason: str) -> None:
    """Before anything of the frame is waited for; the last two are TLS and HTTP."""
    decoder = FrameDecoder()
    decoder.feed(bytes.fromhex(prefix))
    with pytest.raises(FrameError, match=reason):
        decoder.frames()


def test_the_largest_frame_passes() -> None:
    body = bytes(FRAME_BYTES_MAX - 8)
    data = encode_frame(b"", body)
    decoder = FrameDecoder()
    for at in range(0, len(data), 1 << 20):
        assert decoder.frames() == []
        decoder.feed(data[at : at + (1 << 20)])
    (frame,) = decoder.frames()
    assert len(frame.body) == len(body)
    with pytest.raises(FrameError):
        encode_frame(b"", body + b"x")
    with pytest.raises(FrameError):
        encode_frame(bytes(HEADER_BYTES_MAX + 1), b"")


def test_frames_before_a_faulty_one_can_be_taken_singly() -> None:
    decoder = FrameDecoder()
    decoder.feed(encode_frame(b"good", b"") + b"\xff" * 8)
    frame = decoder.next_frame()
    assert frame is not None
    assert frame.header == b"good"
    with pytest.raises(FrameError):
        decoder.next_frame()


def test_a_large_frame_in_many_pieces_is_collected_once() -> None:
    """Looking for frames in between must not copy what was collected: it would take quadratic time."""
    frame = encode_frame(b"", bytes(1024 * 1024))
    decoder = FrameDecoder()
    for first in range(0, len(frame) - 1000, 1000):
        decoder.feed(frame[first : first + 1000])
        assert decoder.frames() == []
        assert decoder.need_bytes == len(frame)
        assert not first or not decoder._data
    decoder.feed(frame[decoder.pending_bytes :])
    assert [len(each.body) for each in decoder.frames()] == [1024 * 1024]
    assert decoder.pending_bytes == 0


@given(st.lists(contents, max_size=4), st.data())
def test_what_was_fed_may_be_overwritten(
    many: list[tuple[bytes, bytes, int]], data: st.DataObject
) -> None:
    stream, expected = joined(many)
    decoder = FrameDecoder()
    found: list[Frame] = []
    at = 0
    while at < len(stream):
        room = bytearray(stream[at : at + data.draw(st.integers(1, len(stream) - at))])
        decoder.feed(memoryview(room))
        at += len(room)
        room[:] = bytes(len(room))
        found += decoder.frames()
    assert found == expected
