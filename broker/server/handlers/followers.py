"""The nodes that follow this one, as they report: whether they live, how far they are, how full their disks are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.server.requests.origin import ClientOrigin

FRESH_MS: Final = 2_500
"""Nodes report every second: who was silent for longer than this may be gone."""


class Followers:
    """The latest report of each node."""

    def __init__(
        self, broker_id_of: Callable[[str], int | None], now_ms: Callable[[], int]
    ) -> None:
        """Know of no node yet.

        Args:
            broker_id_of: returns the id that routes give a follower, by its node id; None: it is no member.
            now_ms: a clock that never goes back.
        """
        self._broker_id_of = broker_id_of
        self._now_ms = now_ms
        self._reports: dict[str, tuple[ClientOrigin, int, int]] = {}
        """By node: the link that it came on, when, and the byte place up to which the log is applied there."""
        self._used_percents: dict[str, float] = {}

    def reported(
        self,
        node_id: str,
        link: ClientOrigin,
        applied_position: int,
        disk_used_percent: float | None = None,
    ) -> None:
        """Take a report of a node."""
        if self._broker_id_of(node_id) is not None:
            self._reports[node_id] = link, self._now_ms(), applied_position
            self._used_percents.pop(node_id, None)
            if disk_used_percent is not None:
                self._used_percents[node_id] = disk_used_percent

    def used_percents(self) -> dict[str, float]:
        """Return the shares of their disks that are in use, of nodes that live and know it."""
        fresh_ms = self._now_ms() - FRESH_MS
        return {
            node_id: used
            for node_id, used in self._used_percents.items()
            if self._reports[node_id][1] >= fresh_ms and self._broker_id_of(node_id) is not None
        }

    def broker_ids(self, position: int) -> list[int]:
        """Return the broker ids of those that live and have applied more than a byte place, in order."""
        fresh_ms = self._now_ms() - FRESH_MS
        found = (
            self._broker_id_of(node_id)
            for node_id, (link, seen_ms, applied_position) in self._reports.items()
            if seen_ms >= fresh_ms and applied_position > position and not link.is_closed
        )
        return sorted(broker_id for broker_id in found if broker_id is not None)
