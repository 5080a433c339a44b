"""Waiting, beside the loop, for what a figure needs and memory lacks. It must not know which figure that is."""

from __future__ import annotations

import trio

from broker.store.not_in_memory import FilesNotLoadedError, NotInMemoryError, NotLoadedError
from dledger import LogReader


async def read_missing(reader: LogReader, missing: NotInMemoryError) -> None:
    """Wait until that was read, or cannot be; whoever is cancelled meanwhile wants it no more."""
    done, is_wanted = trio.Event(), [True]
    if isinstance(missing, NotLoadedError):
        reader.load(missing.places, done.set, lambda: is_wanted[0])
    else:
        assert isinstance(missing, FilesNotLoadedError), f"{missing!r} says not what to read"
        reader.read_beside(missing.warm, done.set, lambda: is_wanted[0])
    try:
        await done.wait()
    finally:
        is_wanted[0] = False
