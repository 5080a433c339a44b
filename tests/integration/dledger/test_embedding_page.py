"""docs/embedding.md: its counter is the example, and what else it shows runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import trio

from dledger import EntryId, LogConfig, LogServer
from jepsen.ports import free_ports
from tests.integration.dledger.test_counter_example import EXAMPLE, load

pytestmark = pytest.mark.integration

PAGE = Path(__file__).parents[3] / "docs/embedding.md"
EXAMPLE_BLOCK, REDIRECT_BLOCK = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_counter_is_the_example() -> None:
    assert EXAMPLE.read_text() == EXAMPLE_BLOCK


async def test_who_does_not_lead_says_where_to_go(tmp_path: Path) -> None:
    shown: dict[str, Any] = {}
    exec(REDIRECT_BLOCK, shown)  # our own page
    append_or_redirect = shown["append_or_redirect"]
    peers = ";".join(f"n{n}-127.0.0.1:{port}" for n, port in enumerate(free_ports(3)))
    servers: list[LogServer] = []
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for name in ("n0", "n1", "n2"):
                config = LogConfig.for_member(name, peers, str(tmp_path / name))
                servers.append(LogServer(config, load().Counter()))
                await nursery.start(servers[-1].run)
            await servers[0].forwarder.append(b"1", timeout_s=30)
            leader = next(server for server in servers if server.is_serving)
            follower = next(server for server in servers if server is not leader)
            while follower.leader_id is None:
                await trio.lowlevel.checkpoint()
            assert isinstance(await append_or_redirect(leader, b"2"), EntryId)
            there = await append_or_redirect(follower, b"3")
            assert there == follower.status.address_of(leader.node_id)
            nursery.cancel_scope.cancel()
