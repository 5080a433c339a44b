"""The leader's marks, and the alarm when this replica's digests differ (docs/adr/0063)."""

from __future__ import annotations

import logging
from typing import Final

from broker.server.requests.commits import Commits
from broker.store.control import MarkDigests
from broker.store.state import BrokerState
from dledger import LogServer
from dledger.runtime.events_log import log_event

MARK_INTERVAL_MS: Final = 10_000
"""Between two marks while records come; a mark costs the digest of what came since the last one."""

ALARM_INTERVAL_MS: Final = 60_000
"""The alarm is repeated: one line may be overlooked."""


class DigestWatch:
    """Writes marks while this node leads, and raises the alarm wherever it runs."""

    def __init__(self, log: LogServer, state: BrokerState, commits: Commits) -> None:
        self._log = log
        self._state = state
        self._commits = commits
        self._next_mark_ms = 0
        self._marked_count = 0
        self._alarm_ms = 0
        self._alarmed_count = 0

    def tick(self, now_ms: int) -> None:
        """Write a mark if something came since the last one, and repeat the alarm while there is cause."""
        if now_ms >= self._next_mark_ms:
            self._next_mark_ms = now_ms + MARK_INTERVAL_MS
            # A mark is a record itself: alone it is no reason for another one.
            if self._log.is_serving and self._state.put_count > self._marked_count + 1:
                self.mark()
        divergences = self._state.marks.divergences
        if divergences and (now_ms >= self._alarm_ms or len(divergences) > self._alarmed_count):
            self._alarm_ms = now_ms + ALARM_INTERVAL_MS
            self._alarmed_count = len(divergences)
            self._alarm()

    def mark(self) -> None:
        """Write a mark; this node leads."""
        self._marked_count = self._state.put_count
        index, digests = self._state.marks.latest()
        applied = self._state.applied_index
        assert index <= applied, f"digests at entry {index} are marked, {applied} is applied"
        self._commits.stage_control(MarkDigests(index, dict(digests)))

    def _alarm(self) -> None:
        for divergence in self._state.marks.divergences:
            log_event(
                logging.ERROR,
                "digests-differ",
                node=self._log.node_id,
                component=divergence.component,
                index=divergence.index,
                own=f"{divergence.own:08x}",
                leaders=f"{divergence.leaders:08x}",
            )
