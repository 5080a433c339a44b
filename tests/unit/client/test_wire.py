"""Opening a connection: whatever keeps it from being made is one error, also an address that is none."""

from __future__ import annotations

import pytest
import trio

from dledger_mq.client.errors import ConnectionLostError
from dledger_mq.client.wire import open_wire


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
