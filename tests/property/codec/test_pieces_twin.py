"""Frames and entries in pieces, against the same bytes as one: what goes out, what comes in, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.codec import frame as frame_codec
from dledger.codec.entry import EntryFormatError, decode_entries, decode_pieces, seal
from dledger.codec.frame import FrameDecoder, encode_frame, encode_frames, frames_in_pieces
from dledger.codec.rpc import encode_entries
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.ids import Index, Position, Term
from tests.stages import examples

CHUNK_BYTES = 16
cuts = st.lists(st.integers(0, 200), max_size=8)
bodies = st.lists(st.binary(max_size=60), min_size=1, max_size=3)


@pytest.fixture(autouse=True, scope="module")
def small_chunks() -> Iterator[None]:
    with (
        patch.object(frame_codec, "CHUNK_BYTES", CHUNK_BYTES),
        patch.object(frame_codec, "_VIEWS_MAX", 3),
    ):
        yield


def cut_at(data: bytes, places: list[int]) -> list[bytes]:
    """Cut bytes at places; pieces may be empty."""
    edges = [0, *sorted(min(place, len(data)) for place in places), len(data)]
    return [data[begin:end] for begin, end in pairwise(edges)]


def framed_as_one(header: bytes, blob: bytes) -> list[bytes]:
    """Cut a blob and encode each chunk by itself."""
    firsts = range(0, max(len(blob), 1), CHUNK_BYTES)
    return [
        encode_frame(
            b"" if first else header,
            blob[first : first + CHUNK_BYTES],
            goes_on=first != firsts[-1],
        )
        for first in firsts
    ]


@given(st.binary(min_size=1, max_size=5), st.binary(max_size=100), cuts)
@examples(300)
def test_frames_in_pieces_are_the_same_bytes(header: bytes, blob: bytes, places: list[int]) -> None:
    frames = [b"".join(each) for each in frames_in_pieces(header, cut_at(blob, places))]
    assert frames == framed_as_one(header, blob) == encode_frames(header, blob)


@given(st.lists(st.binary(max_size=100), max_size=4), cuts)
@examples(300)
def test_frames_come_whole_out_of_a_buffer_that_is_used_again(
    blobs: list[bytes], places: list[int]
) -> None:
    said = [(b"h%d" % number, blob) for number, blob in enumerate(blobs)]
    stream = b"".join(frame for each in said for frame in encode_frames(*each))
    decoder = FrameDecoder(frame_bytes_max=64, blob_bytes_max=100)
    found: list[tuple[bytes, bytes]] = []
    for piece in cut_at(stream, places):
        room = bytearray(piece)
        found += [(each.header, bytes(each.blob)) for each in decoder.feed(memoryview(room))]
        room[:] = bytes(len(room))
    assert found == said
    assert decoder.is_between_frames


@given(bodies, cuts, st.integers(0, 400), st.integers(0, 255), st.booleans())
@examples(400)
def test_entries_in_pieces_are_the_same_entries(
    said: list[bytes], places: list[int], at: int, byte: int, is_cut: bool
) -> None:
    entries: list[Entry] = []
    position = 0
    for index, body in enumerate(said, 1):
        entry = Entry(Index(index), Term(1), Position(position), EntryKind.NORMAL, body)
        entries.append(seal(entry, 0))
        position = entry.end_position
    data = bytearray(encode_entries(entries))
    if at < len(data):
        data[at] ^= byte
    blob = bytes(data[:at] if is_cut else data)
    try:
        expected: object = decode_entries(blob)
    except EntryFormatError as error:
        expected = str(error)
    try:
        found: object = decode_pieces(cut_at(blob, places))
    except EntryFormatError as error:
        found = str(error)
    assert found == expected
