"""docs/embedding.md: its counter is the example, and what else it shows runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import trio

from dledger import DLedgerError, EntryId, LogConfig, LogServer
from jepsen.ports import free_ports
from tests.integration.dledger.conftest import PATIENCE_S
from tests.integration.dledger.test_counter_example import EXAMPLE, load

pytestmark = pytest.mark.integration

PAGE = Path(__file__).parents[3] / "docs/embedding.md"
EXAMPLE_BLOCK, REDIRECT_BLOCK = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_counter_is_the_example() -> None:
    assert EXAMPLE.read_text() == EXAMPLE_BLOCK


async def is_told(append_or_redirect: Any, server: LogServer, servers: list[LogServer]) -> bool:
    """Whether a leader appends, and another one names the leader's address: in a term without a leader neither does."""
    leaders = [each.node_id for each in servers if each.is_serving]
    if len(leaders) != 1 or server.leader_id not in leaders:
        return False
    try:
        found = await append_or_redirect(server, b"2")
    except DLedgerError:
        return False  # an election came in between
    if leaders != [each.node_id for each in servers if each.is_serving]:
        return False
    if server.is_serving:
        assert isinstance(found, EntryId)
    else:
        assert found == server.status.address_of(leaders[0])
    return True


async def test_who_does_not_lead_says_where_to_go(tmp_path: Path) -> None:
    shown: dict[str, Any] = {}
    exec(REDIRECT_BLOCK, shown)  # our own page
    append_or_redirect = shown["append_or_redirect"]
    peers = ";".join(f"n{n}-127.0.0.1:{port}" for n, port in enumerate(free_ports(3)))
    servers: list[LogServer] = []
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            for name in ("n0", "n1", "n2"):
                config = LogConfig.for_member(name, peers, str(tmp_path / name))
                servers.append(LogServer(config, load().Counter()))
                await nursery.start(servers[-1].run)
            await servers[0].forwarder.append(b"1", timeout_s=PATIENCE_S)
            while not all([await is_told(append_or_redirect, each, servers) for each in servers]):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
