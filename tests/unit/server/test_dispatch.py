"""What a node takes from another one's link: requests of that one's clients."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest

from broker.server.dispatch import Dispatch
from broker.server.origin import ClientOrigin
from broker.server.private_codes import TRIED_FIELD, PrivateCode, link_proof
from dledger_mq.remoting.frame import Frame, FrameDecoder
from dledger_mq.remoting.header import encode_command, make_request

NONCE = "abc"


def frame_of(data: bytes) -> Frame:
    decoder = FrameDecoder()
    decoder.feed(data)
    (frame,) = decoder.frames()
    return frame


@pytest.mark.parametrize("was_tried", [False, True])
def test_an_earlier_try_of_unknown_outcome_is_passed_on_with_the_request(
    *, was_tried: bool
) -> None:
    gate = MagicMock()
    dispatch = Dispatch(
        gate,
        *(MagicMock() for _ in range(10)),
        group="g",
        node_ids=frozenset({"n1"}),
        secret=None,
        link_nonce=NONCE,
        frame_bytes_max=1 << 20,
        now_ms=lambda: 0,
    )
    link = MagicMock(spec=ClientOrigin, number=7, is_forwarded=False)
    proof = link_proof(None, group="g", node_id="n1", nonce=NONCE)
    hello = {"group": "g", "node": "n1", "nonce": NONCE, "proof": proof}
    dispatch.handle(link, frame_of(encode_command(make_request(PrivateCode.HELLO, 1, hello))))
    ext = {"address": "1.2.3.4:5"} | ({TRIED_FIELD: "true"} if was_tried else {})
    body = encode_command(make_request(41, 2, body=b"{}"))
    forward = make_request(PrivateCode.FORWARD, 3, ext, body)
    dispatch.handle(link, frame_of(encode_command(forward)))
    (errand, _) = gate.bring.call_args.args
    assert (errand.code, errand.origin.is_forwarded) == (41, True)
    assert errand.may_be_done == was_tried
