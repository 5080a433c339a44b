"""The interface of a simulated group towards its own parts.

Meetings, repairs, saves and standstills stand below `SimCluster`, which owns them, and know no more of it than this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from random import Random
from typing import Protocol, TypeVarTuple

from dledger.engine import Engine
from dledger.raft.events import Event
from dledger.raft.ids import NodeId
from dledger.raft.messages import PeerMessage
from dledger.testing.sim_network import SimNetwork
from dledger.testing.sim_node import SimNode
from dledger.testing.sim_settings import SimSettings
from dledger.testing.sim_trace import Trace
from dledger.testing.state_checker import StateChecker

Args = TypeVarTuple("Args")


class SimGroup(Protocol):
    """The members, their world and their time, as `SimCluster` describes them."""

    now_ms: int
    step_count: int
    settings: SimSettings
    trace: Trace | None
    reached: Counter[str]
    rng: Random
    network: SimNetwork
    node_ids: tuple[NodeId, ...]
    checker: StateChecker
    calm: frozenset[NodeId]

    def at(self, time_ms: int, action: Callable[[*Args], object], *args: *Args) -> None:
        """Call `action` at a moment of virtual time."""

    def trace_line(self, node: SimNode | None, text: str) -> None:
        """Add a line to the trace, if there is one."""

    def start(self, node: SimNode) -> None:
        """Open a member's store and let it take part."""

    def start_later(self, node: SimNode) -> None:
        """Start a stopped member after a while."""

    def stop(self, node: SimNode, *, power_loss: bool) -> None:
        """Let a member die."""

    def step(self, node: SimNode, event: Event) -> bool:
        """Step a member with an event; return False when it is down or paused."""

    def drain(self, node: SimNode, engine: Engine) -> None:
        """Check a member after a step, then send its messages and resolve its tokens."""

    def arm(self, node: SimNode, engine: Engine) -> None:
        """Schedule the next tick."""

    def post(self, node: SimNode, to: NodeId, message: PeerMessage) -> None:
        """Let the network decide when a message arrives."""

    def disk_of(self, node: SimNode) -> AbstractContextManager[None]:
        """Stop a member if its disk fails within the block, and start it again later."""
