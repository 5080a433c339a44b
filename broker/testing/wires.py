"""Simulated connections: bytes arrive whole and in order, late or not at all; either end may go.

An end looks like `dledger_mq.net.connection.Connection` to those who send on it.

Nothing here knows frames.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from random import Random

from broker.testing.settings import BrokerSimSettings
from dledger.raft.ids import NodeId
from dledger.testing.cluster import SimCluster
from dledger_mq.remoting.frame import Frame, FrameDecoder

FRAME_BYTES_MAX = 16 * 1024 * 1024
DELAY_MS_MAX = 5


class Wires:
    """Makes connections and carries what is sent.

    Attributes:
        counts: how often each thing happened.
    """

    def __init__(self, cluster: SimCluster, settings: BrokerSimSettings) -> None:
        self.cluster = cluster
        self.counts: Counter[str] = Counter()
        self._settings = settings
        self._rng = Random(f"wires/{settings.seed}")

    def connect(
        self, client: str, server: str, *, client_node: NodeId | None, server_node: NodeId
    ) -> tuple[SimConnection, SimConnection]:
        """Return both ends of a new connection: the client's, the server's. The names are `host:port`."""
        near = SimConnection(self, server, client_node)
        far = SimConnection(self, client, server_node)
        near.other, far.other = far, near
        return near, far

    def delay_ms(self) -> int:
        """Draw how long something takes from one end to the other."""
        return 1 if self.cluster.calm else 1 + int(self._rng.random() * DELAY_MS_MAX)

    def breaks(self) -> bool:
        """Draw whether a client's connection breaks now."""
        if self.cluster.calm or self._rng.random() * 1000 >= self._settings.break_permille:
            return False
        self.counts["connection-broken"] += 1
        return True


class SimConnection:
    """One end of a simulated connection.

    Attributes:
        peer: `host:port` of the other end.
        node_id: the member that it belongs to; None for a client's.
        other: the other end.
        received: takes the frames that arrive.
        ended: called once when the other end is gone.
        closed: called once when this end closes itself; its owner may not have asked for that.
        is_closed: whether this end is.
        unsent_bytes: none; what is sent is on its way at once.
    """

    unsent_bytes = 0

    def __init__(self, wires: Wires, peer: str, node_id: NodeId | None) -> None:
        self.peer = peer
        self.node_id = node_id
        self.other: SimConnection
        self.received: Callable[[list[Frame]], None] = lambda _frames: None
        self.ended: Callable[[], None] = lambda: None
        self.closed: Callable[[], None] = lambda: None
        self.is_closed = False
        self._wires = wires
        self._decoder = FrameDecoder(FRAME_BYTES_MAX)
        self._free_ms = 0
        self._inbox: deque[bytes | None] = deque()

    @property
    def has_ended(self) -> bool:
        """True if the other end is known to be gone, though its member may pause and not have read it yet."""
        return self.is_closed or None in self._inbox

    def send_nowait(self, data: bytes) -> None:
        """Send bytes; they are lost if the other end goes before they arrive."""
        self._carry(data)

    def send_many(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Send frames."""
        self._carry(b"".join(pieces))

    def send_pieces(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Send frames, each in one piece or several."""
        self._carry(b"".join(pieces))

    def close(self, reason: str) -> None:
        """Close the connection; the other end notices after a while."""
        if not self.is_closed:
            self.is_closed = True
            self._carry(None)
            self.closed()

    def vanish(self) -> None:
        """End without a word: the machine of this end has no power."""
        self.is_closed = True

    def _carry(self, data: bytes | None) -> None:
        if self.is_closed and data is not None:
            return
        cluster = self._wires.cluster
        self._free_ms = max(self._free_ms, cluster.now_ms + self._wires.delay_ms())
        assert self._free_ms >= cluster.now_ms, (
            f"bytes arrive at {self._free_ms}, before {cluster.now_ms}"
        )
        cluster.at(self._free_ms, self.other.arrive, data)

    def arrive(self, data: bytes | None) -> None:
        """Take bytes, or (None) the end of the other end."""
        if self.is_closed:
            return
        if self._is_cut() or (data is not None and self._is_client_pair() and self._wires.breaks()):
            self._break()
            return
        assert None not in self._inbox, f"{data!r} came after the end of {self.peer}"
        self._inbox.append(data)
        self._take()

    def _take(self) -> None:
        """Hand over what is here, unless this end's member pauses."""
        cluster = self._wires.cluster
        while self._inbox and not self.is_closed:
            until_ms = cluster.nodes[self.node_id].paused_until_ms if self.node_id else 0
            if until_ms > cluster.now_ms:
                cluster.at(until_ms, self._take)
                return
            data = self._inbox.popleft()
            if data is None:
                self.is_closed = True
                self.ended()
                return
            self._decoder.feed(data)
            self.received(list(self._decoder.frames()))

    def _is_client_pair(self) -> bool:
        return self.node_id is None or self.other.node_id is None

    def _is_cut(self) -> bool:
        """Return whether the members at both ends do not hear each other."""
        here, there = self.node_id, self.other.node_id
        if here is None or there is None:
            return False
        network = self._wires.cluster.network
        return not (network.is_open(here, there) and network.is_open(there, here))

    def _break(self) -> None:
        """Close both ends, of which each is notified."""
        for end in (self, self.other):
            if not end.is_closed:
                end.is_closed = True
                end.ended()
