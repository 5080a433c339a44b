"""No answer of a real member leaves before the sync that covers it: its calls are recorded, and judged in order."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from dledger import Client
from jepsen.durability import Acknowledged, Fact, facts_of, promised_too_early, read_calls, traced
from jepsen.nemeses.preload import lacking_preload
from jepsen.systems.api import SystemOptions
from jepsen.systems.log import GROUP, PlainLogSystem, log_system
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(bool(lacking_preload()), reason=f"lacking: {lacking_preload()}"),
]

MEMBERS = 3
CLIENTS = 6
APPENDS = 25
DEADLINE_S = 240.0
BROKEN = Path(__file__).parent / "broken"


def facts_under_load(folder: Path, server: Sequence[str] = ()) -> list[Fact]:
    """What three members did while clients appended."""
    trace = folder / "trace"
    options = SystemOptions(MEMBERS, "none")
    with log_system(folder / "nodes", options, server=server) as system:
        for node in system.nodes:
            traced(node, system.store(node.name), trace)
        system.start()
        trio.run(_append, system, trace)
    return facts_in(trace)


def facts_in(trace: Path) -> list[Fact]:
    return list(facts_of(read_calls(trace.read_bytes())))


def count_of(kind: type[Fact], facts: list[Fact]) -> int:
    return sum(isinstance(fact, kind) for fact in facts)


async def _append(system: PlainLogSystem, trace: Path) -> None:
    with trio.fail_after(DEADLINE_S):
        await system.wait_ready(DEADLINE_S)
        async with trio.open_nursery() as nursery:
            for _ in range(CLIENTS):
                nursery.start_soon(_append_some, system.peers)
        # A send is recorded just after it was made: a member killed in between leaves no trace of its last answer.
        await wait_until(lambda: count_of(Acknowledged, facts_in(trace)) >= CLIENTS * APPENDS)


async def _append_some(peers: str) -> None:
    async with Client(peers, group=GROUP, timeout_s=DEADLINE_S) as client:
        for number in range(APPENDS):
            # Sent again when an election came in between: how often is a matter of the machine.
            await client.append(b"%d" % number, retry_unknown=True)


def test_no_answer_leaves_before_the_sync_that_covers_it(tmp_path: Path) -> None:
    facts = facts_under_load(tmp_path)
    assert promised_too_early(facts, members=MEMBERS) == []
    counts = Counter(type(fact).__name__ for fact in facts)
    assert counts["Acknowledged"] >= CLIENTS * APPENDS, counts
    assert counts["Confirmed"] > APPENDS, counts
    assert counts["Voted"] >= 1, counts


def test_members_that_confirm_too_early_are_found(tmp_path: Path) -> None:
    script = tmp_path / "dledger"
    script.write_text(
        f"#!{sys.executable}\n"
        f"import sys\n"
        f"sys.path.insert(0, {str(BROKEN)!r})\n"
        f"import told_before_durable\n"
        f"from dledger.cli import main\n"
        f"sys.exit(main())\n"
    )
    script.chmod(0o755)
    found = promised_too_early(facts_under_load(tmp_path, (str(script), "server")), members=MEMBERS)
    assert any("confirmed entry" in text for text in found), found
