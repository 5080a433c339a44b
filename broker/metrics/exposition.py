"""The text of a registry, part by part: a scrape of many topics must not hold up the loop.

It must not know what the figures mean, nor who asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter
from typing import Final

import trio
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The text format that every release of Prometheus reads."""

STEP_S: Final = 0.002
"""After so long the loop's other tasks have a turn."""


class _OneFamily(CollectorRegistry):
    """A registry with one family, or a part of one."""

    def __init__(self, family: Metric) -> None:
        super().__init__()
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


def text_parts(registry: CollectorRegistry) -> Iterator[bytes]:
    """Return the text of all families in parts; a collector may give a family in several, one after the other."""
    name = None
    for family in registry.collect():
        text = generate_latest(_OneFamily(family))
        yield _without_comments(text) if family.name == name else text
        name = family.name


def _without_comments(text: bytes) -> bytes:
    """Return the series alone: a family's help and type stand in front of its first part only.

    Lines end with a line feed here and nowhere else: a label may hold a carriage return.
    """
    lines = text.split(b"\n")
    return b"\n".join(line for line in lines if not line.startswith(b"#"))


async def render(registry: CollectorRegistry) -> bytes:
    """Return the whole text, made in short steps."""
    parts: list[bytes] = []
    begun_s = perf_counter()
    for part in text_parts(registry):
        parts.append(part)
        if perf_counter() - begun_s >= STEP_S:
            await trio.lowlevel.checkpoint()
            begun_s = perf_counter()
    return b"".join(parts)
