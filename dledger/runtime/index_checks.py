"""Reading the indexes of finished segments in the background, so that a start need not wait for it.

An index is read whole before anything in it is believed (docs/adr/0189). Here a thread does it, the newest first,
soon after each start and after a segment was finished: then no look-up has to do it on the loop, and damage is found
while the entries can still tell what the index said.
"""

from __future__ import annotations

from typing import Final

import trio

from dledger.codec.index_unit import INDEX_UNIT_BYTES
from dledger.runtime.driver import Driver

CHECK_BYTES_PER_S: Final = 64 * 1024 * 1024
"""A tenth of what a slow disk gives; the indexes of 100 million entries take 50 s."""

IDLE_S: Final = 1.0
"""Before it is asked again whether a segment was finished."""

RETRY_S: Final = 5.0
"""Before an index is read that could not be."""


async def check_indexes(driver: Driver) -> None:
    """Verify each index once, until cancelled."""
    log = driver.engine.log
    while True:
        part = log.unverified()
        if part is None:
            await trio.sleep(IDLE_S)
            continue
        examination = part.examination
        try:
            # A disk that never answers must not keep the process from ending.
            found = await trio.to_thread.run_sync(examination.run, abandon_on_cancel=True)
        except OSError:
            # Nothing was found out: descriptors or memory are short, and come back.
            await trio.sleep(RETRY_S)
            continue
        driver.engine.examined(part, found)
        driver.wake()  # for what it says of damage
        await trio.sleep(examination.count * INDEX_UNIT_BYTES / CHECK_BYTES_PER_S)
