"""Opening a connection: whatever keeps it from being made is one error, also an address that is none."""

from __future__ import annotations

from functools import partial

import pytest
import trio

from dledger_mq.client.errors import ConnectionLostError
from dledger_mq.client.wire import open_wire
from dledger_mq.remoting.frame import encode_frame


@pytest.mark.parametrize(
    "address",
    [
        "",
        "nowhere",
        "a:0",
        "a:70000",
        ":1",
        "a:" + "9" * 5000,
        "\ud800:1",
        "é" * 300 + ":1",
        "127.0.0.1:1",
    ],
)
async def test_an_address_that_cannot_be_reached_is_a_lost_connection(address: str) -> None:
    """A broker or name server sends what it was configured with; a client must live on with it."""
    async with trio.open_nursery() as nursery:
        with pytest.raises(ConnectionLostError) as lost:
            await open_wire(address, nursery)
    assert str(lost.value)


@pytest.mark.parametrize("answers", [False, True])
async def test_who_closes_plain_text_without_a_word_may_want_tls(answers: bool) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some(4)
            if answers:
                await stream.send_all(encode_frame(b"{}", b""))

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        address = "{}:{}".format(*listener.socket.getsockname())
        wire = await open_wire(address, nursery)
        wire.send_nowait(b"asks")
        with pytest.raises(ConnectionLostError) as lost:
            await wire.serve(lambda _frames: None)
        nursery.cancel_scope.cancel()
    hint = "" if answers else " without a word: does this port take TLS only?"
    assert str(lost.value) == f"{address}: closed by the peer{hint}"
