"""Frames: whole, byte by byte, with bytes after them, cut off anywhere, any bit flipped."""

from __future__ import annotations

import struct
import tracemalloc

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.codec.frame import (
    BLOB_GOES_ON,
    CHUNK_BYTES,
    FRAME_BYTES_MAX,
    Frame,
    FrameDecoder,
    encode_frame,
    encode_frames,
)
from dledger.errors import PeerProtocolError

MEBI = 1024 * 1024


def new_decoder(blob_bytes_max: int = 4 * MEBI) -> FrameDecoder:
    return FrameDecoder(blob_bytes_max=blob_bytes_max)


def plain(frames: list[Frame]) -> list[tuple[bytes, bytes]]:
    return [(frame.header, bytes(frame.blob)) for frame in frames]


def raw_frame(header_length: int, rest: bytes) -> bytes:
    covered = struct.pack(">I", header_length) + rest
    return struct.pack(">II", 4 + len(covered), crc32c.crc32c(covered)) + covered


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.binary(max_size=80)), max_size=6))
def test_what_is_encoded_is_decoded_in_any_cut(said: list[tuple[bytes, bytes]]) -> None:
    stream = b"".join(encode_frame(header, blob) for header, blob in said)
    assert plain(new_decoder().feed(stream)) == said
    decoder = new_decoder()
    found = [
        frame for at in range(len(stream)) for frame in plain(decoder.feed(stream[at : at + 1]))
    ]
    assert found == said
    assert decoder.is_between_frames


@given(
    st.binary(max_size=30),
    st.binary(max_size=30),
    st.integers(0, 100),
    st.integers(0, 8),
    st.integers(-6, 6),
    st.booleans(),
)
def test_a_lone_frame_is_cut_as_any_other(
    header: bytes, blob: bytes, at: int, bit: int, more_bytes: int, is_open: bool
) -> None:
    """What comes in one piece has a way of its own; in two pieces it has not."""
    data = bytearray(encode_frame(header, blob))
    data = data[:more_bytes] if more_bytes < 0 else data + bytes(more_bytes)
    if at < len(data) and bit < 8:
        data[at] ^= 1 << bit
    found: list[object] = []
    for pieces in ([bytes(data)], [bytes(data[:1]), bytes(data[1:])]):
        decoder = new_decoder(blob_bytes_max=20)
        if is_open:
            decoder.feed(encode_frame(b"H", b"begun", goes_on=True))
        try:
            frames = [frame for piece in pieces for frame in plain(decoder.feed(piece))]
        except PeerProtocolError as error:
            found.append(str(error))
        else:
            found.append(
                (frames, decoder.ended_count, decoder.need_bytes, decoder.is_between_frames)
            )
    assert found[0] == found[1]


def test_layout_is_as_documented() -> None:
    frame = encode_frame(b"HD", b"blob")
    assert struct.unpack_from(">I", frame)[0] == len(frame) - 4
    assert struct.unpack_from(">I", frame, 4)[0] == crc32c.crc32c(frame[8:])
    assert struct.unpack_from(">I", frame, 8)[0] == 2
    assert frame[12:] == b"HDblob"


def test_every_truncation_waits_and_nothing_else() -> None:
    frame = encode_frame(b"header", b"blob")
    for end in range(len(frame)):
        decoder = new_decoder()
        assert decoder.feed(frame[:end]) == []
        assert decoder.is_between_frames == (end == 0)
        assert plain(decoder.feed(frame[end:])) == [(b"header", b"blob")]


def test_every_flipped_bit_is_noticed_or_waits() -> None:
    frame = encode_frame(b"header", b"blob")
    for bit in range(8 * len(frame)):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            # A longer length waits for bytes that never come; the handshake's and the peers' timeouts end that.
            assert new_decoder().feed(bytes(damaged)) == []
        except PeerProtocolError:
            continue
        assert bit // 8 < 4, f"bit {bit} went unnoticed"


def test_large_blob_travels_in_chunks_and_small_frames_pass_between() -> None:
    blob = bytes(range(256)) * (3 * CHUNK_BYTES // 256) + b"end"
    chunks = encode_frames(b"large", blob)
    assert len(chunks) == 4
    assert max(map(len, chunks)) <= 4 + FRAME_BYTES_MAX
    decoder = new_decoder()
    small = encode_frame(b"small")
    seen: list[tuple[bytes, bytes]] = []
    for chunk in chunks:
        seen += plain(decoder.feed(chunk + small))
    assert seen == [(b"small", b"")] * 3 + [(b"large", blob), (b"small", b"")]
    assert decoder.is_between_frames


def test_blob_of_exactly_one_chunk_is_one_frame() -> None:
    assert len(encode_frames(b"h", bytes(CHUNK_BYTES))) == 1
    assert len(encode_frames(b"h", bytes(CHUNK_BYTES + 1))) == 2


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (struct.pack(">I", 7) + bytes(20), "frame of 7 bytes"),
        (b"GET / HTTP/1.1\r\n\r\n", "frame of 1195725856 bytes"),
        (struct.pack(">I", FRAME_BYTES_MAX + 1), "allowed are 8 to"),
        (struct.pack(">II", 8, 1) + bytes(4), "checksum"),
        (raw_frame(9, b"short"), "header of 9 bytes"),
        (raw_frame(0, b"chunk of nothing"), "belongs to no blob"),
        (
            encode_frame(b"a", b"1", goes_on=True) + encode_frame(b"b", b"2", goes_on=True),
            "second blob",
        ),
        (raw_frame(BLOB_GOES_ON | 1, b"h"), "never end"),
    ],
)
def test_nonsense_is_refused_with_the_reason(stream: bytes, reason: str) -> None:
    with pytest.raises(PeerProtocolError, match=reason):
        new_decoder().feed(stream)


def test_blob_bound_holds_for_one_frame_and_for_chunks() -> None:
    with pytest.raises(PeerProtocolError, match="allowed are 10"):
        new_decoder(10).feed(encode_frame(b"h", bytes(11)))
    decoder = new_decoder(10)
    decoder.feed(encode_frame(b"h", bytes(6), goes_on=True))
    with pytest.raises(PeerProtocolError, match="allowed are 10"):
        decoder.feed(encode_frame(b"", bytes(6)))


def test_bounds_are_raised_once_the_other_side_is_trusted() -> None:
    decoder = FrameDecoder(frame_bytes_max=64, blob_bytes_max=0)
    frame = encode_frame(b"h", bytes(100))
    decoder.raise_bounds(frame_bytes_max=FRAME_BYTES_MAX, blob_bytes_max=100)
    assert plain(decoder.feed(frame)) == [(b"h", bytes(100))]


def test_what_has_begun_tells_how_much_it_may_take() -> None:
    first, last = encode_frames(b"h", bytes(CHUNK_BYTES + 1))
    small = encode_frame(b"h", b"blob")
    decoder = FrameDecoder(frame_bytes_max=FRAME_BYTES_MAX, blob_bytes_max=MEBI)
    assert decoder.need_bytes == 0
    decoder.feed(small[:11])
    assert decoder.need_bytes == 12
    decoder.feed(small[11:-1])
    assert decoder.need_bytes == len(small)
    decoder.feed(small[-1:] + first[:12])
    assert decoder.need_bytes == MEBI + FRAME_BYTES_MAX
    assert decoder.ended_count == 1
    decoder.feed(first[12:] + small)
    assert decoder.need_bytes == MEBI + FRAME_BYTES_MAX
    assert decoder.ended_count == 1
    decoder.feed(last)
    assert decoder.need_bytes == 0
    assert decoder.ended_count == 2


def test_small_pieces_take_no_more_memory_than_their_bytes() -> None:
    chunks = [encode_frame(b"h" if n == 0 else b"", b"ab", goes_on=True) for n in range(2000)]
    last = encode_frame(b"", b"z" * CHUNK_BYTES)
    decoder = FrameDecoder(blob_bytes_max=MEBI)
    tracemalloc.start()
    try:
        for chunk in chunks:
            decoder.feed(chunk)
        for at in range(0, 10_000, 2):
            decoder.feed(last[at : at + 2])
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # A piece kept as an object of its own takes 40 bytes and more, 7 000 of them 280 000. What other
    # threads of this process take meanwhile (a worker's channel) is counted, too.
    assert held_bytes < 100_000
    (frame,) = decoder.feed(last[10_000:])
    assert frame.blob == b"ab" * 2000 + b"z" * CHUNK_BYTES
