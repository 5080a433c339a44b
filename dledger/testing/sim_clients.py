"""The clients of a simulated group, which append numbered bodies, read, transfer leadership, and count outcomes.

Each client does one thing at a time and waits for it only so long; what it gave up may still be
answered, and the answer is checked all the same. No body is ever proposed twice, so each attempt can
be found in the log: acknowledged ones must be there, refused ones must not, unknown ones may.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from dledger.errors import NotLeaderError
from dledger.raft.effects import Committed, Failed, Outcome, ReadAt, TransferDone
from dledger.raft.events import Propose, ReadRequested, TransferRequested
from dledger.raft.ids import NO_TERM, Index, NodeId, Term
from dledger.testing.cluster import SimCluster
from dledger.testing.sim_node import SimNode
from dledger.testing.sim_stops import check_handed_over
from dledger.testing.state_checker import Violation


@dataclass(slots=True)
class _Call:
    """A pending request of a client.

    Attributes:
        client: who asked; None for the probe of the second phase.
        bodies: proposed; empty for a read or a transfer.
        floor_index: for a read, the last acknowledged entry when it began; None for other calls.
        life: of the member that was asked.
        term: of a member that was asked to hand over, at that time.
    """

    client: int | None
    node_id: NodeId
    life: int
    bodies: tuple[bytes, ...] = ()
    floor_index: Index | None = None
    term: Term = NO_TERM


@dataclass(slots=True)
class CallCounts:
    """The outcomes of the calls of a run."""

    acknowledged: int = 0
    refused: int = 0
    unknown: int = 0
    reads: int = 0
    transfers: int = 0


class SimClients:
    """All clients of one group.

    Invariant: `_calls` holds every call whose answer may still come.
    """

    def __init__(self, cluster: SimCluster) -> None:
        self.counts = CallCounts()
        self.is_stopped = False
        self._cluster = cluster
        self._settings = cluster.settings
        self._rng = Random(f"clients/{cluster.settings.seed}")
        self._calls: dict[int, _Call] = {}
        self._waits_for: list[int | None] = [None] * cluster.settings.client_count
        self._leaders: list[NodeId] = [cluster.voters[0]] * cluster.settings.client_count
        self._token_count = 0
        self._probe_state: bool | None = None
        cluster.on_resolved = self._resolved
        cluster.on_stopped = self._stopped

    def start(self) -> None:
        """Let every client begin."""
        for client in range(self._settings.client_count):
            self._think(client)

    def probe(self) -> None:
        """Append one more entry through the leader, and try again until it is acknowledged."""
        self._probe_state = None
        self._try_probe()

    def _try_probe(self) -> None:
        if self._probe_state:
            return
        self._cluster.at(self._cluster.now_ms + self._settings.heartbeat_ms, self._try_probe)
        node = self._cluster.leader()
        if self._probe_state is None and node is not None:
            self._probe_state = False
            self._propose(None, node, self._bodies("probe", 1))

    @property
    def is_probe_acknowledged(self) -> bool:
        """True once the probe's entry was acknowledged."""
        return bool(self._probe_state)

    def unanswered(self) -> list[str]:
        """Return the calls that calm members which are still up have not answered."""
        nodes = self._cluster.nodes
        return [
            f"call {token} at {call.node_id}"
            for token, call in self._calls.items()
            if nodes[call.node_id].life == call.life and call.node_id in self._cluster.calm
        ]

    # What a client does.

    def _think(self, client: int, *, least_ms: int = 0) -> None:
        """Schedule a client's next request after a short random pause."""
        pause_ms = least_ms + int(self._rng.random() * self._settings.think_ms_max)
        self._cluster.at(self._cluster.now_ms + pause_ms, self._begin, client)

    def _any(self) -> NodeId:
        """Any member."""
        voters = self._cluster.node_ids
        return voters[int(self._rng.random() * len(voters))]

    def _begin(self, client: int) -> None:
        """Send a request to the member that seems to lead, sometimes to any other."""
        if self.is_stopped:
            return
        rng = self._rng
        settings = self._settings
        guess = rng.random()
        if guess < 0.1:
            self._leaders[client] = self._any()
        elif guess < 0.4:
            # It has heard of one; so a new leader soon has work, whatever became of the old one.
            leader = self._cluster.leader()
            self._leaders[client] = leader.node_id if leader is not None else self._any()
        node = self._cluster.nodes[self._leaders[client]]
        if node.engine is None or node.pauses(self._cluster.now_ms):
            self._leaders[client] = self._any()
            self._think(client, least_ms=settings.heartbeat_ms)
            return
        kind = rng.random() * 1000
        if kind < settings.transfer_permille:
            self._transfer(client, node)
        elif kind < settings.transfer_permille + settings.read_permille:
            self._read(client, node)
        else:
            count = 1 + int(rng.random() * settings.batch_max)
            self._propose(client, node, self._bodies(f"c{client}", count))

    def _bodies(self, name: str, count: int) -> tuple[bytes, ...]:
        """Make bodies that nobody proposed before, of various lengths."""
        room = self._settings.body_bytes_max
        return tuple(
            f"{name}-{self._token_count + 1}-{number}-".encode().ljust(
                int(self._rng.random() * room), b"."
            )
            for number in range(count)
        )

    def _propose(self, client: int | None, node: SimNode, bodies: tuple[bytes, ...]) -> None:
        token = self._register(_Call(client, node.node_id, node.life, bodies))
        self._cluster.trace_line(node, f"call {token}: append {len(bodies)} from {_name(client)}")
        self._cluster.step(node, Propose(bodies, token))

    def _read(self, client: int, node: SimNode) -> None:
        leaders = self._cluster.leaders()
        if leaders and self._rng.random() < 0.5:
            # A leader of the past that does not know it yet is the one that may answer wrongly.
            node = leaders[int(self._rng.random() * len(leaders))]
        floor_index = self._cluster.checker.acknowledged_index
        call = _Call(client, node.node_id, node.life, floor_index=floor_index)
        token = self._register(call)
        self._cluster.trace_line(node, f"call {token}: read at {floor_index} or later")
        self._cluster.step(node, ReadRequested(token))

    def _transfer(self, client: int, node: SimNode) -> None:
        target = self._rng.choice((None, *self._cluster.node_ids))
        assert node.engine is not None, "it was just looked at"
        token = self._register(_Call(client, node.node_id, node.life, term=node.engine.node.term))
        self._cluster.trace_line(node, f"call {token}: transfer to {target or 'the best'}")
        self._cluster.step(node, TransferRequested(target, token))

    def _register(self, call: _Call) -> int:
        """Give a call its token, and limit how long its client waits."""
        self._token_count += 1
        token = self._token_count
        self._calls[token] = call
        if call.client is not None:
            self._waits_for[call.client] = token
            due_ms = self._cluster.now_ms + self._settings.client_timeout_ms
            self._cluster.at(due_ms, self._go_on, call.client, token)
        return token

    def _go_on(self, client: int | None, token: int, *, least_ms: int = 0) -> None:
        """End a client's call, which was answered, timed out, or lost its member."""
        if client is not None and self._waits_for[client] == token:
            self._waits_for[client] = None
            self._think(client, least_ms=least_ms)

    # What it hears.

    def _resolved(self, node: SimNode, token: int, outcome: Outcome) -> None:
        """Check a call's outcome, and schedule its client's next request."""
        call = self._calls.pop(token, None)
        if call is None or call.node_id != node.node_id:
            raise Violation(f"{node.node_id} answers call {token} that it was not asked, or twice")
        checker = self._cluster.checker
        least_ms = 0
        match outcome:
            case Committed():
                checker.acknowledged(call.bodies, outcome)
                self.counts.acknowledged += 1
                if call.client is None:
                    self._probe_state = True
            case ReadAt(index=index):
                if call.floor_index is None:
                    raise Violation(f"call {token} was no read, but is answered as one")
                checker.read(floor_index=call.floor_index, index=index)
                self.counts.reads += 1
            case TransferDone():
                check_handed_over(node, call.term, outcome)
                self.counts.transfers += 1
            case Failed(error=error):
                self._failed(call, outcome)
                least_ms = self._settings.heartbeat_ms
                if isinstance(error, NotLeaderError) and call.client is not None:
                    leader_id = NodeId(error.leader_id) if error.leader_id else self._any()
                    self._leaders[call.client] = leader_id
        self._go_on(call.client, token, least_ms=least_ms)

    def _failed(self, call: _Call, outcome: Failed) -> None:
        """Note that a call failed; a definite error is a promise that is checked from now on."""
        if call.client is None:
            self._probe_state = None
        if outcome.error.definite:
            self.counts.refused += 1
            self._cluster.checker.refused(call.bodies)
        else:
            self._note_unknown(call)

    def _note_unknown(self, call: _Call) -> None:
        """Note that a call's outcome is unknown: of an append that is a finding where nothing went wrong."""
        self.counts.unknown += 1
        if self._cluster.leaders_allowed is not None and call.bodies:
            raise Violation(
                f"an append at {call.node_id} is left without an answer, though nothing is wrong with the leader"
            )

    def _stopped(self, node: SimNode) -> None:
        """Count the pending calls of a crashed member as unknown."""
        for token, call in list(self._calls.items()):
            if call.node_id == node.node_id and call.life != node.life:
                del self._calls[token]
                self._note_unknown(call)
                if call.client is None:
                    self._probe_state = None
                self._go_on(call.client, token)


def _name(client: int | None) -> str:
    """Return a client's name in the trace."""
    return "probe" if client is None else f"c{client}"
