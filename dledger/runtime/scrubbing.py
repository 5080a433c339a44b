"""Reading the whole log slowly in the background, so that damage is found while others can still mend it.

Old entries may not be read for months, and then two copies may be bad. Parts of 256 KiB are read and
verified in a thread; what does not fit is looked at again on the loop and asked for like any damage. When
the end is reached it begins anew, at the earliest an hour after it began.

A read through the page cache sees what the kernel has: damage of the device shows once the pages were
dropped, which old ones are.
"""

from __future__ import annotations

from typing import Final

import trio

from dledger.raft.ids import Index
from dledger.runtime.clock import now_ms, now_s
from dledger.runtime.driver import Driver

PART_BYTES: Final = 256 * 1024
ROUND_MIN_S: Final = 3600.0
RETRY_S: Final = 5.0
"""Before a part is read that could not be: descriptors or memory are short, and come back."""


async def scrub(driver: Driver, bytes_per_s: int) -> None:
    """Read the durable log again and again, until cancelled."""
    log = driver.engine.log
    while True:
        started_s = now_s()
        index = log.layout.first_index
        # What was forgotten meanwhile is not read any more.
        while (first := Index(max(index, log.layout.first_index))) <= log.durable_index:
            try:
                plan = log.plan_check(first, PART_BYTES)
                # A disk that never answers must not keep the process from ending.
                is_whole = await trio.to_thread.run_sync(plan.is_whole, abandon_on_cancel=True)
            except OSError as error:
                log.shortage.seen(f"entry {first}", error)
                driver.wake()
                await trio.sleep(RETRY_S)
                continue
            index = plan.end_index
            if not is_whole and log.layout.has(first):
                driver.engine.look_for_damage(first, index, now_ms())
                driver.wake()
            await trio.sleep(plan.size_bytes / bytes_per_s)
            index = Index(min(index, log.durable_index + 1))
        await trio.sleep(max(ROUND_MIN_S - (now_s() - started_s), 1.0))
