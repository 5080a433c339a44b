"""The pages of a server: its figures, whether it runs, and whether it is ready. It must not know what either means."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import trio
from prometheus_client import CollectorRegistry

from broker.metrics.exposition import CONTENT_TYPE, render
from broker.metrics.http_port import HttpPort, Page, plain

METRICS_PATH: Final = "/metrics"
HEALTH_PATH: Final = "/healthz"
READINESS_PATH: Final = "/readyz"

FRESH_S: Final = 0.5
"""A text of all figures is made once in so long at most, however often it is asked for."""


@dataclass(frozen=True, slots=True)
class Readiness:
    """A server's judgement of itself: it can do its work now, or it cannot, and why.

    Attributes:
        causes: why it cannot; empty: it can.
        facts: what else is said of it, as JSON.
    """

    causes: tuple[str, ...] = ()
    facts: Mapping[str, object] = field(default_factory=dict)

    @property
    def page(self) -> Page:
        """The answer to whoever asks: 503 with the causes, unless it is ready."""
        table = {"ready": not self.causes, "causes": list(self.causes), **self.facts}
        body = json.dumps(table, indent=1).encode() + b"\n"
        return Page(body, "application/json", 503 if self.causes else 200)


async def _nothing() -> None:
    """Do nothing before figures are gathered."""


class Endpoint:
    """The pages of one server, and the port that they are on."""

    def __init__(
        self,
        sock: socket.socket,
        registry: CollectorRegistry,
        readiness: Callable[[], Readiness],
        *,
        before: Callable[[], Awaitable[None]] = _nothing,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:
        """Set up the pages; `run` serves them.

        Args:
            sock: listens.
            registry: of all figures.
            readiness: returns whether the server can do its work now.
            tls: returns what the next connection is encrypted with; None: it is plain text.
            before: gathers, before a text is made, what has to be waited for; for a bounded time.
        """
        self._registry = registry
        self._readiness = readiness
        self._before = before
        self._making = trio.Lock()
        self._made: tuple[float, Page] | None = None
        self._port = HttpPort(
            sock,
            {METRICS_PATH: self._figures, HEALTH_PATH: self._health, READINESS_PATH: self._ready},
            tls=tls,
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        await self._port.run(task_status=task_status)

    async def _figures(self) -> Page:
        """Return the figures; who asks while they are gathered gets the same."""
        async with self._making:
            if self._made is None or trio.current_time() - self._made[0] >= FRESH_S:
                await self._before()
                page = Page(await render(self._registry), CONTENT_TYPE)
                self._made = trio.current_time(), page
            return self._made[1]

    async def _health(self) -> Page:
        """Answer that the loop runs: who does not answer is to be started again."""
        return plain(200, "ok")

    async def _ready(self) -> Page:
        return self._readiness().page
