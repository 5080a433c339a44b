"""A leader with compiled code against one without: the same frames, answers, bytes, digests and notes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from dledger_mq.message.batch import BatchItem, encode_batch
from dledger_mq.remoting.frame import FrameDecoder, encode_frame
from tests.property.server.test_bursts_twin import FIRST, STEPS, USUAL, carry_out, plain
from tests.property.server.twin_leaders import TwinLeader
from tests.stages import needs_compiled, stage

pytestmark = needs_compiled

Step = tuple[str, int, bytes]


def run_both(steps: list[Step]) -> TwinLeader:
    """Do all steps with both, and compare after each; return the one with compiled code."""
    fast, ordinary = TwinLeader(has_lane=True), TwinLeader(has_lane=True)
    ordinary.ahead = fast
    for step in (*FIRST, *steps, ("lead", 0, b""), ("route", 0, b""), *[("commit", 0, b"")] * 9):
        with stage(is_compiled=True):
            carry_out(fast, *step)
        with stage(is_compiled=False):
            carry_out(ordinary, *step)
        assert fast.seen() == ordinary.seen(), step[0]
    return fast


@pytest.mark.slow
@given(st.lists(STEPS, min_size=5, max_size=14))
@settings(max_examples=100, deadline=None, phases=[Phase.generate])
def test_both_do_the_same(steps: list[Step]) -> None:
    run_both(steps)


def batch(opaque: int, *keys: str, extra: str = "TAGS\x01red\x02") -> bytes:
    """One frame with a batch, a message for each key."""
    body = encode_batch(
        BatchItem(number, b"body", f"UNIQ_KEY\x01{key}\x02{extra}".encode())
        for number, key in enumerate(keys)
    )
    ext = ",".join(
        f'"{name}":"{value}"' for name, value in {**USUAL, "a": "P", "m": "true"}.items()
    )
    header = f'{{"code":320,"flag":0,"opaque":{opaque},"version":409,"extFields":{{{ext}}}}}'
    return encode_frame(header.encode(), body)


@pytest.mark.parametrize("extra", ["TAGS\x01red\x02", "", "KEYS\x01a b\x02", "DELAY\x013\x02"])
def test_a_batch_is_answered_and_recognised_when_it_comes_again(extra: str) -> None:
    """Once among other sends, again in part while it is in flight, and again under the next leader."""
    first = plain(1, "one") + batch(2, "a", "b", "c", extra=extra) + plain(3, "two")
    again = batch(4, "b", "d", extra=extra)
    steps: list[Step] = [("read", 0, first), ("read", 1, again), ("commit", 0, b"")]
    steps += [("lose", 0, b""), ("lead", 0, b""), ("read", 1, again), ("read", 2, first)]
    fast = run_both(steps)
    answers = [header for header in headers(fast.origins[0].sent) if header["opaque"] == 2]
    ids = [len(header["extFields"]["msgId"].split(",")) for header in answers if not header["code"]]
    assert ids == ([] if "DELAY" in extra else [3])


def headers(data: bytes) -> list[dict[str, Any]]:
    """The headers of answers, in their order."""
    decoder = FrameDecoder()
    decoder.feed(data)
    return [json.loads(frame.header) for frame in decoder.frames()]
