"""Frames that compiled code cuts, against the Python code that does the same: frames, state, and errors.

The bytes are a client's: cut off anywhere, with lengths that lie.
"""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from dledger_mq.remoting.errors import FrameError
from dledger_mq.remoting.frame import Frame, FrameDecoder, encode_frame
from tests.stages import examples, needs_compiled, stage

pytestmark = needs_compiled

whole = st.builds(
    encode_frame, st.binary(max_size=20), st.binary(max_size=60), st.sampled_from([0, 1])
)
lying = st.tuples(whole, st.integers(0, 7), st.integers(0, 255)).map(
    lambda each: each[0][: each[1]] + bytes((each[2],)) + each[0][each[1] + 1 :]
)
pieces = st.lists(st.one_of(whole, whole, whole, lying, st.binary(max_size=9)), max_size=8).map(
    b"".join
)


def cut(data: list[bytes], frame_bytes_max: int) -> list[tuple[list[Frame] | str, int, int]]:
    """Feed pieces one after the other; the frames of each, or the error that ends it all, and what is left."""
    decoder = FrameDecoder(frame_bytes_max)
    seen: list[tuple[list[Frame] | str, int, int]] = []
    for piece in data:
        decoder.feed(piece)
        try:
            seen.append((decoder.frames(), decoder.pending_bytes, decoder.need_bytes))
        except FrameError as error:
            return [*seen, (str(error), 0, 0)]
    return seen


@given(st.lists(pieces, max_size=5), st.sampled_from([64, 100, 1 << 24]))
@example([b"\x00\x00\x00\x04\x00\x00\x00\x00" * 2 + b"\x00"], 64)
@example([b"\xff" * 8], 64)
@example([b"\x00\x00\x00\x04\x02\x00\x00\x00"], 64)
@example([b"\x00\x00\x00\x04\x00\x00\x00\x01"], 64)
@example([b"\x00\x00\x00\x03\x00\x00\x00\x00"], 64)
@examples(400)
def test_both_ways_cut_the_same(data: list[bytes], frame_bytes_max: int) -> None:
    with stage(is_compiled=True):
        compiled_way = cut(data, frame_bytes_max)
    with stage(is_compiled=False):
        assert cut(data, frame_bytes_max) == compiled_way
