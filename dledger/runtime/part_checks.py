"""Reading the parts of snapshots from which the state is served, in the background, so that a start need not wait.

A part is read whole before anything in it is believed (docs/adr/0253). Here a thread does it, one part after the other,
soon after each start: then nobody has to wait for it who asks for old messages, and damage is found while the second
file is whole. Where both files of a part are damaged the node stops: its next start goes on from another snapshot, or
from the log.
"""

from __future__ import annotations

import logging
from typing import Final

import trio

from dledger.errors import CorruptionError, DiskFailedError
from dledger.runtime.events_log import log_event
from dledger.storage.parts_in_use import PartOnDisk, PartsInUse

CHECK_BYTES_PER_S: Final = 64 * 1024 * 1024
"""As indexes are (index_checks.py); the parts of 100 million messages take 75 s."""

IDLE_S: Final = 1.0
"""Before it is asked again whether a part was lost, or taken over with a state."""

RETRY_S: Final = 5.0
"""Before a part is read that could not be."""


async def check_parts(parts: PartsInUse, node_id: str) -> None:
    """Verify each part once, until cancelled; then what is lost is set aside, whoever has found it.

    Raises:
        DiskFailedError: both files of one are damaged. They are set aside; the node must stop.
    """
    try:
        await _check_all(parts, node_id)
    finally:
        # The fold may have met it first, and stopped the node: it would at each start that finds the files again.
        parts.set_lost_aside()


async def _check_all(parts: PartsInUse, node_id: str) -> None:
    """Verify each part once.

    Raises:
        DiskFailedError: both files of one are damaged.
    """
    while True:
        part = parts.unverified()
        if part is not None:
            await _check(parts, part, node_id)
        lost = await trio.to_thread.run_sync(parts.set_lost_aside) if parts.lost else None
        if lost is not None:
            raise DiskFailedError(
                f"both files of a part of the snapshots are damaged; the next start does without them: {lost}"
            ) from lost
        if part is None:
            await trio.sleep(IDLE_S)


async def _check(parts: PartsInUse, part: PartOnDisk, node_id: str) -> None:
    """Read one part whole; what is found is noted there."""
    was_damaged = part.stored.number in parts.damaged
    try:
        # A disk that never answers must not keep the process from ending.
        await trio.to_thread.run_sync(part.verify, abandon_on_cancel=True)
    except CorruptionError:
        return
    except OSError:
        # Nothing was found out: descriptors or memory are short, and come back.
        parts.put_back(part)
        await trio.sleep(RETRY_S)
        return
    if part.stored.number in parts.damaged and not was_damaged:
        reason = f"a file of part {part.stored.number} is damaged; the next snapshot writes it anew"
        log_event(logging.WARNING, "part-damaged", node=node_id, reason=reason)
    await trio.sleep(part.stored.size_bytes / CHECK_BYTES_PER_S)
