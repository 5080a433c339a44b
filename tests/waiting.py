"""Waiting in async tests for what has no event of its own: another process, a file."""

from __future__ import annotations

from collections.abc import Callable

import trio

WAIT_S = 180.0
"""Nothing takes that long; a test that waits for more has failed."""


async def wait_until(condition: Callable[[], bool]) -> None:
    """Poll until it holds.

    Raises:
        trio.TooSlowError: it does not hold within WAIT_S.
    """
    with trio.fail_after(WAIT_S):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.01)
