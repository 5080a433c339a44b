"""A system under test as clients and faults may know it: its processes, stores and links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol, get_args

import msgspec

from jepsen.guards import Guard
from jepsen.history.ops import OpLog
from jepsen.processes import Process

CLIENTS: Final = "clients"
"""The end of a link that stands for whoever is not a member."""

Link = tuple[str, str]
"""The ends of a directed link, (from, to)."""

Flow = Literal["pass", "drop", "stall", "reset"]


class Shape(msgspec.Struct, frozen=True, omit_defaults=True):
    """The treatment of one direction of a link: dropped, delayed, slowed, or mangled frame by frame.

    Shares are from 0 to 1 and count whole frames of the protocol that is spoken there.

    Attributes:
        flow: "pass"; "drop": swallowed, as by a cut cable; "stall": not taken, so that the sender's
            kernel fills; "reset": connections are broken and refused.
        delay_ms, jitter_ms: each piece comes later by `delay_ms` plus up to `jitter_ms`; order is kept.
        retransmit: share of pieces that come 200 ms late with everything after them: what loss of a
            packet is to users of TCP.
        lose, duplicate, reorder: share of frames that never come, come twice, come after the next.
        corrupt: share of frames in which a bit after the length is flipped.
        bytes_per_s: 0: as fast as it goes.
    """

    flow: Flow = "pass"
    delay_ms: int = 0
    jitter_ms: int = 0
    retransmit: float = 0.0
    lose: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    bytes_per_s: int = 0

    @property
    def is_frame_wise(self) -> bool:
        """True when single frames are treated."""
        return bool(self.lose or self.duplicate or self.reorder or self.corrupt)


WHOLE: Final = Shape()
CUT: Final = Shape(flow="drop")

Network = Literal["none", "proxies", "namespaces"]
NODES_MAX: Final = 32
"""Each needs two ports of those that a run may take, and behind proxies a loopback net."""

NETWORKS: tuple[Network, ...] = get_args(Network)


class LinkControl(Protocol):
    """The directed links between nodes, each a proxy (`nemeses/proxy.py`) or a veth pair.

    Links are named by their ends, (from, to); `CLIENTS` is an end too.
    """

    def shape(self, source: str, target: str, shape: Shape, owner: str = "") -> None:
        """Set the shape of the link from `source` to `target`; `CUT` and `WHOLE` are shapes.

        What is on its way when a link is cut is lost. What several owners want of a link is joined.

        Raises:
            UnsupportedShapeError: links of this kind cannot.
        """

    def replay(self, source: str, target: str, count: int) -> int:
        """Send up to `count` frames that went this way before once more; returns how many there were.

        Raises:
            UnsupportedShapeError: links of this kind cannot.
        """

    def heal(self, owner: str | None = None) -> None:
        """Undo an owner's shapes; None: let everything through again, unchanged."""


class UnsupportedShapeError(Exception):
    """Links of this kind cannot take the requested shape."""


class System(Protocol):
    """A group of real processes.

    Attributes:
        folder: of stores and logs.
        nodes: the members, in the order of their names.
        links: None when the run was started without proxies and namespaces.
    """

    folder: Path
    nodes: Sequence[Process]
    links: LinkControl | None

    def node(self, name: str) -> Process:
        """Return the member called `name`."""

    def store(self, name: str) -> Path:
        """Return the folder that holds the store of a member."""

    @property
    def leader(self) -> str | None:
        """The node that leads, as the observer last saw it; of several groups, the one that has led longest."""


@dataclass(frozen=True, slots=True)
class SystemOptions:
    """The options of a system on the command line.

    Attributes:
        nodes: how many members.
        network: what stands between them: nothing, a proxy on each directed link, or network namespaces.
        groups: how many broker groups they share; with several, each node is a machine with a member of each.
        guards: what keeps strangers out.
    """

    nodes: int = 3
    network: Network = "none"
    groups: int = 1
    guards: tuple[Guard, ...] = ()


class Subject(System, Protocol):
    """A system as the runner needs it: the faults and clients see `System` alone.

    Entering it takes ports and folders, leaving it ends every process that it started.
    """

    @property
    def processes(self) -> Sequence[Process]:
        """All of its processes, in the order in which they start: name servers and such first."""

    def start(self) -> None:
        """Start all processes."""

    async def wait_ready(self, timeout_s: float) -> None:
        """Wait until clients can work.

        Raises:
            NotReadyError, ProcessDiedError: it did not become ready in time, with the end of a log.
        """

    async def watch(self, log: OpLog) -> None:
        """Observe the group until cancelled: update `leader`, and note each new leader.

        The operation is OBSERVER, "info", f "leader", value {"term": number}, node: who leads. A leader that was
        not seen for a moment may be noted again; "leaderless" says that nobody is seen to lead. Where there are
        several groups, the value names the "group", too.
        """

    async def wait_whole(self, timeout_s: float) -> bool:
        """Wait until one node leads and all others follow closely; False when it took too long."""

    async def replica_digests(self, timeout_s: float) -> Mapping[str, Mapping[str, object]]:
        """Return each replica's digests, all at one index if they reach it in time.

        Returns:
            By name: "index", "digests" (component -> digest), "alarm" where a node has found
            itself that it differs, and "group" where there are several. Empty when the system has no digests.
        """


class SubjectMaker(Protocol):
    """A maker of systems; what it makes starts nothing until it is entered and started."""

    def __call__(self, folder: Path, options: SystemOptions) -> AbstractContextManager[Subject]:
        """Return a system that keeps stores and logs in `folder`."""
