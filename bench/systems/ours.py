"""Our own group: a name server and so many brokers, with the settings that a user gets unless he asks for others."""

from __future__ import annotations

from pathlib import Path

from bench.systems.brokers import MeasuredGroup, Setup, SystemKind
from jepsen.processes import Group


def describe(setup: Setup) -> str:
    """Say what an acknowledgement is worth."""
    copies = "1 copy" if setup.nodes == 1 else f"{setup.nodes} copies"
    if setup.is_flushed is False:
        return f"{copies}, no fsync before the answer (ASYNC_FLUSH)"
    return f"{copies}, fsync{' on a majority' if setup.nodes > 1 else ''} before the answer"


def make(folder: Path, setup: Setup) -> MeasuredGroup:
    """Make a group that is not started."""
    settings = "stopForwardSec=0\n"
    if setup.is_flushed is not None:
        settings += f"flushDiskType={'SYNC' if setup.is_flushed else 'ASYNC'}_FLUSH\n"
    group = Group(folder, nodes=setup.nodes, settings=settings)
    return MeasuredGroup(folder, group.name_servers[0], group.nodes)


OURS = SystemKind(name="ours", describe=describe, lacking=lambda _: None, make=make)
