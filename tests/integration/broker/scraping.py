"""Asking a server's HTTP port, and reading the figures that it gives."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import trio
from prometheus_client.parser import text_string_to_metric_families

from broker.metrics.endpoint import FRESH_S
from dledger_mq.net.address import Address

PATIENCE_S = 120.0


async def fetch(address: Address | None, path: str) -> tuple[int, bytes]:
    """Status and body of a page."""
    assert address is not None, "no figures are given"
    with trio.fail_after(PATIENCE_S):
        async with await trio.open_tcp_stream(address.host, address.port) as stream:
            await stream.send_all(
                f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
            )
            answer = b"".join([data async for data in stream])
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


async def readiness(address: Address | None) -> tuple[int, Mapping[str, Any]]:
    """Status and JSON of /readyz."""
    status, body = await fetch(address, "/readyz")
    return status, json.loads(body)


class Figures:
    """What one /metrics said."""

    def __init__(self, text: bytes) -> None:
        families = tuple(text_string_to_metric_families(text.decode()))
        self.names = {family.name for family in families}
        self.samples = [sample for family in families for sample in family.samples]

    def of(self, name: str, **labels: str) -> list[float]:
        """The figures of a name whose labels are so."""
        return [
            sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]

    def one(self, name: str, **labels: str) -> float:
        """The only such figure."""
        (found,) = self.of(name, **labels)
        return found


async def scrape(address: Address | None) -> Figures:
    """The figures as they are now, or were half a second ago."""
    status, body = await fetch(address, "/metrics")
    assert status == 200
    return Figures(body)


async def scrape_anew(address: Address | None) -> Figures:
    """The figures as they are now: those that were made for somebody else are too old by then."""
    await trio.sleep(FRESH_S * 1.1)
    return await scrape(address)
