"""What clients and faults may know of a system under test: its processes, stores and links."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, Protocol

import msgspec

from jepsen.processes import Process

CLIENTS: Final = "clients"
"""The end of a link that stands for whoever is not a member."""

Flow = Literal["pass", "drop", "stall", "reset"]


class Shape(msgspec.Struct, frozen=True, omit_defaults=True):
    """What happens to what goes from one end of a link to the other.

    Shares are from 0 to 1 and count whole frames of the protocol that is spoken there.

    Attributes:
        flow: "pass"; "drop": swallowed, as by a cut cable; "stall": not taken, so that the sender's
            kernel fills; "reset": connections are broken and refused.
        delay_ms, jitter_ms: each piece comes later by `delay_ms` plus up to `jitter_ms`; order is kept.
        retransmit: share of pieces that come 200 ms late with everything behind them: what loss of a
            packet is to users of TCP.
        lose, duplicate, reorder: share of frames that never come, come twice, come behind the next.
        corrupt: share of frames in which a bit behind the length is flipped.
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
        """Whether single frames are treated."""
        return bool(self.lose or self.duplicate or self.reorder or self.corrupt)


WHOLE: Final = Shape()
CUT: Final = Shape(flow="drop")


class Links(Protocol):
    """The directed links between nodes, each a proxy (`nemeses/proxy.py`) or a veth pair.

    Links are named by their ends, (from, to); `CLIENTS` is an end too.
    """

    def shape(self, source: str, target: str, shape: Shape) -> None:
        """Treat what goes from `source` to `target` so from now on; `CUT` and `WHOLE` are shapes.

        What is on its way when a link is cut is lost.

        Raises:
            UnsupportedShapeError: links of this kind cannot.
        """

    def replay(self, source: str, target: str, count: int) -> int:
        """Send up to `count` frames that went this way before once more; returns how many there were.

        Raises:
            UnsupportedShapeError: links of this kind cannot.
        """

    def heal(self) -> None:
        """Let everything through again, unchanged."""


class UnsupportedShapeError(Exception):
    """Links of this kind cannot be treated so."""


class System(Protocol):
    """A group of real processes.

    Attributes:
        folder: of stores and logs.
        nodes: the members, in the order of their names.
        links: None when the run was started without proxies and namespaces.
    """

    folder: Path
    nodes: Sequence[Process]
    links: Links | None

    def node(self, name: str) -> Process:
        """Return the member called `name`."""

    def store(self, name: str) -> Path:
        """Return the folder that holds the store of a member."""

    @property
    def leader(self) -> str | None:
        """Who leads, as the observer last saw it."""
