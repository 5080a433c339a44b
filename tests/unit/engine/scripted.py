"""A scripted core over a simulated disk, and what the tests of the engine say to it."""

from __future__ import annotations

from random import Random
from typing import Any

from dledger.config import LogConfig, RaftConfig, parse_peers
from dledger.engine import Engine
from dledger.raft.configuration import Configuration
from dledger.raft.effects import (
    Effect,
    Role,
)
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.events import (
    Event,
    Tick,
)
from dledger.raft.finished_row import FinishedEntries
from dledger.raft.hard_state import HardState
from dledger.raft.ids import NO_INDEX, Index, NodeId, Position, Term
from dledger.raft.log_layout import LogLayout
from dledger.raft.membership import encode_membership
from dledger.raft.messages import (
    TimeoutNow,
)
from dledger.testing.sim_disk import SimDisk

N0, N1 = NodeId("n0"), NodeId("n1")
START = encode_membership(Configuration((N0,)))
"""With which a group of one begins a term."""


class ScriptedNode:
    """Stands in for the core: gives the effects that the test put there, and notes the events."""

    def __init__(
        self,
        config: RaftConfig,
        hard_state: HardState,
        log: LogLayout,
        *,
        draw: Any,
        now_ms: int,
        first_in_memory: Any,
    ) -> None:
        self.hard_state = hard_state
        self.log = log.copy()
        self.configuration = Configuration(config.voters)
        self.configuration_index = NO_INDEX
        self.role = Role.FOLLOWER
        self.effects: list[Effect] = []
        self.events: list[Event] = []

    def configuration_at(self, index: Index) -> Configuration:
        return self.configuration

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        self.events.append(event)
        effects, self.effects = self.effects, []
        return effects

    def finish(self, part: FinishedEntries) -> None:
        """Keep the places: `log` does not have what the tests append."""

    def next_deadline_ms(self) -> int:
        return 42

    def let_lead(self, *, may_lead: bool) -> None:
        assert may_lead


class ScriptedEngine(Engine):
    node_type = ScriptedNode  # type: ignore[assignment]  # it has what the engine uses


def config(peers: str = "n0-127.0.0.1:1;n1-127.0.0.1:2", **changes: Any) -> LogConfig:
    members = parse_peers(peers)
    raft = RaftConfig(members[0].node_id, tuple(peer.node_id for peer in members))
    return LogConfig("g", members, "", raft, segment_size_bytes=4096, **changes)


def scripted(disk: SimDisk | None = None, **changes: Any) -> ScriptedEngine:
    disk = disk if disk is not None else SimDisk(Random(1))
    return ScriptedEngine(config(**changes), disk, draw=lambda low, high: low, now_ms=0)


def entry(index: int, term: int = 1, body: bytes = b"", position: int | None = None) -> Entry:
    """An entry after others that are as long as itself."""
    place = (index - 1) * (48 + len(body)) if position is None else position
    return Entry(Index(index), Term(term), Position(place), EntryKind.NORMAL, body)


def word(number: int) -> TimeoutNow:
    """A message that can be told from others."""
    return TimeoutNow(Term(number), N0)


def give(engine: ScriptedEngine, *effects: Effect) -> None:
    engine.node.effects = list(effects)  # type: ignore[attr-defined]
    engine.step(Tick(), 0)


def leave(engine: Engine) -> list[int]:
    """Numbers of the words that leave."""
    return [message.term for _, message in engine.take_outbox()]  # type: ignore[union-attr]  # Raft's own


def persist(engine: Engine) -> None:
    job = engine.begin_persist()
    assert job is not None
    job.run()
    engine.end_persist(job, 0)


def events(engine: Engine, kind: type[Event]) -> list[Event]:
    return [event for event in engine.node.events if isinstance(event, kind)]  # type: ignore[attr-defined]


def alone() -> LogConfig:
    return config("n0-127.0.0.1:1")


def lead(engine: Engine) -> None:
    """Let the only member of a group come to lead and commit the first entry of its term."""
    engine.step(Tick(), engine.next_deadline_ms())
    while engine.has_unsaved:
        persist(engine)
    assert engine.node.role is Role.LEADER
    assert engine.node.noop_index is not None
    assert engine.node.commit_index >= engine.node.noop_index
