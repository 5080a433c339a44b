"""The only member of a group, in this process: what a measurement of its reads begins with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from broker.store.state import BrokerState
from dledger import LogConfig, LogServer


@asynccontextmanager
async def lone_log(
    config: LogConfig, state: BrokerState
) -> AsyncIterator[tuple[LogServer, trio.Nursery]]:
    """Run a log that serves, with its fold; give it and the nursery in which it runs until the block ends.

    Raises:
        DLedgerError, OSError: as `LogServer.run`, in an exception group.
    """
    server = LogServer(config, state)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        serving = trio.Event()
        server.watch_role(lambda view: serving.set() if view.is_serving else None)
        if not server.is_serving:
            await serving.wait()
        yield server, nursery
        nursery.cancel_scope.cancel()
