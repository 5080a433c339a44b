"""Members whose disks or loops stand still: who leads does not change for that."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
import trio

from dledger.runtime import driver as driver_module
from dledger.runtime.clock import now_ms
from dledger.storage.posix import PosixDisk, PosixFile
from tests.unit.runtime.conftest import Group, Member, wait_until

pytestmark = pytest.mark.slow

OpenGroup = Callable[..., AbstractAsyncContextManager[Group]]
S = 60.0
ROUNDS = 150
"""A leader sends 80 a second here; check quorum and elections come after 48 in which nobody is heard."""

STOOD_STILL_MS = 5000


class GatedFile(PosixFile):
    """Syncs that wait until somebody opens the gate."""

    gate = threading.Event()

    def sync(self) -> None:
        self.gate.wait()
        super().sync()


class GatedDisk(PosixDisk):
    def open(self, path: str, *, create: bool = False) -> PosixFile:
        file = super().open(path, create=create)
        return GatedFile(file._path, file._descriptor)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    gate = threading.Event()
    gate.set()
    monkeypatch.setattr(GatedFile, "gate", gate)
    return gate


async def settled(group: Group) -> Member:
    """The leader, once everybody follows it."""
    leader = await group.leader()
    await group.wait_applied(leader.server.reader.applied_index)
    return leader


async def test_syncs_of_seconds_on_all_disks_cost_no_leadership(
    open_group: OpenGroup, gate: threading.Event
) -> None:
    async with open_group() as group:
        for peer in group.peers:
            disk = GatedDisk(group.config(peer.node_id).store_path)
            await group.start(peer.node_id, disk=disk)
        leader = await settled(group)
        term = leader.server.term
        ended: list[object] = []
        try:
            gate.clear()
            leader.server.appender.propose(b"late", ended.append)
            node = leader.server._standing.running.engine.node
            first = node.last_round
            await wait_until(
                lambda: not leader.server.is_serving or node.last_round > first + ROUNDS
            )
            assert leader.server.is_serving
            await wait_until(leader.server.has_lease)  # it is short, and a test may stand still
            assert not ended
        finally:
            gate.set()
        await wait_until(lambda: bool(ended))
        assert {member.server.term for member in group.members.values()} == {term}
        assert leader.machine.bodies == [b"late"]


async def test_a_machine_that_stood_still_for_seconds_has_the_same_leader_afterwards(
    open_group: OpenGroup, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # It may have stood still before, really: that line must not keep this one from being written.
    monkeypatch.setattr(driver_module, "STALL_LINES_PER_S", 1000.0)
    async with open_group() as group:
        await group.start_all()
        leader = await settled(group)
        term = leader.server.term
        with caplog.at_level(logging.WARNING, logger="dledger"):
            monkeypatch.setattr(driver_module, "now_ms", lambda: now_ms() + STOOD_STILL_MS)
            with trio.fail_after(S):
                await leader.server.appender.append(b"after", timeout_s=S)
            await wait_until(
                lambda: all(
                    each.server._standing.running.stall_longest_ms >= STOOD_STILL_MS - 1000
                    for each in group.members.values()
                )
            )
        assert leader.server.is_serving
        assert {member.server.term for member in group.members.values()} == {term}
        lines = [line for line in caplog.messages if line.startswith("loop-stalled")]
        told = {
            line.split()[1]
            for line in lines
            if int(line.partition(" ms=")[2].split()[0]) >= STOOD_STILL_MS - 1000
        }
        assert told == {f"node={name}" for name in group.members}
