"""The search for the leader during one call of a client: deadline, pauses, redirects, and the outcome.

Knows no connection and no kind of call; client.py tries, and reports here how each attempt ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import trio

from dledger.errors import (
    DeadlineError,
    DLedgerError,
    HandshakeRefusedError,
    OutcomeUnknownError,
    RefusedError,
)
from dledger.raft.ids import NodeId
from dledger.runtime.clock import now_s

PAUSE_MIN_S: Final = 0.02
PAUSE_MAX_S: Final = 0.05
"""Between two attempts while nobody leads; it doubles. An election takes about half a second."""

REDIRECTS_AT_ONCE: Final = 2
"""Redirects that are followed without a pause."""


class LeaderSearch:
    """One call on its way to the leader: deadline, pauses, and what is known of its outcome.

    Invariant: once an attempt may have happened, the search as a whole is of unknown outcome.

    Attributes:
        is_unknown: whether an attempt may have happened.
    """

    def __init__(self, limit_s: float) -> None:
        self._not_connected: dict[NodeId, DLedgerError] = {}
        self._limit_s = limit_s
        self._deadline_s = now_s() + limit_s
        self._pause_s = PAUSE_MIN_S
        self._redirect_count = 0
        self.is_unknown = False
        self._last: DLedgerError | None = None

    @property
    def remaining_s(self) -> float:
        """The time until the deadline, in seconds."""
        return self._deadline_s - now_s()

    def unknown(self, error: OutcomeUnknownError) -> None:
        """Note that an attempt may have happened."""
        self.is_unknown = True
        self._last = error

    def refused(self, error: RefusedError) -> None:
        """Note that an attempt has surely not happened."""
        self._last = error

    def too_late(self, error: DeadlineError) -> None:
        """Note that the deadline came before another attempt; an earlier attempt's error takes precedence."""
        self._last = self._last or error

    def not_connected(self, node_id: NodeId, error: DLedgerError) -> None:
        """Note that a member is down, or turned this client away."""
        self._not_connected[node_id] = error

    def is_turned_away_by_all(self, members: Iterable[NodeId]) -> bool:
        """Return whether to stop searching: no member has accepted this client, and some have refused it."""
        errors = [self._not_connected.get(node_id) for node_id in members]
        refusals = [error for error in errors if isinstance(error, HandshakeRefusedError)]
        if None in errors or not refusals:
            return False
        self._last = refusals[-1]
        return True

    def may_follow_at_once(self) -> bool:
        """Count a redirect: two lead anywhere; more are an election, and that takes its time."""
        self._redirect_count += 1
        return self._redirect_count <= REDIRECTS_AT_ONCE

    async def pause(self) -> None:
        """Wait a little, then longer, but not beyond the deadline."""
        await trio.sleep(min(self._pause_s, max(0.0, self.remaining_s)))
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)

    def failure(self) -> DLedgerError:
        """Return the error from which the caller may conclude what happened, when time is up."""
        why = f"; the last attempt: {self._last}" if self._last else ""
        when = "not done" if self.remaining_s > 0 else f"not done within {self._limit_s:g} s"
        text = f"{when}{why}"
        return OutcomeUnknownError(text) if self.is_unknown else RefusedError(text)
