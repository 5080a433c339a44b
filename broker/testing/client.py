"""A simulated client: a connection, questions, patience, and a guess who leads.

Nothing here knows what a client is for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from random import Random

from broker.testing.broker_cluster import BrokerCluster
from broker.testing.settings import BrokerSimSettings
from broker.testing.wires import SimConnection
from dledger.raft.ids import NodeId
from dledger_mq.message.numbers import QueueId
from dledger_mq.remoting.frame import Frame
from dledger_mq.remoting.header import RemotingCommand, decode_command, encode_command, make_request

Answered = Callable[[RemotingCommand | None], None]
"""Called with the answer; None when there was none in time, or no connection."""

GROUP = "G"


class Prefers(Enum):
    """The member that a question goes to, if the client does not stay where it is."""

    LEADER = "the leader, as far as routes say"
    ANY_LEADER = "one that thinks that it leads: it may be one of the past, who may answer wrongly"
    NEWEST = "the leader of the highest term, without fail"
    ANYBODY = "any member, whatever it is"
    ITS_OWN = "whom it is connected to"


_STAYS = {Prefers.ITS_OWN: 0.9, Prefers.NEWEST: -1.0}
"""The odds of staying although it has heard of a leader, where that is not every second time."""


class SimClient(ABC):
    """A simulated client of one group.

    Attributes:
        name: unique in the run.
        is_stopped: it begins nothing more.
    """

    def __init__(
        self, cluster: BrokerCluster, settings: BrokerSimSettings, name: str, counts: Counter[str]
    ) -> None:
        self.name = name
        self.is_stopped = False
        self.cluster = cluster
        self.settings = settings
        self.counts = counts
        self.rng = Random(f"client/{settings.seed}/{name}")
        self.model = cluster.model
        self.answers = cluster.answers
        self.pop_answers = cluster.pop_answers
        self._address = f"10.0.0.1:{40_000 + sum(name.encode())}"
        self._connection: SimConnection | None = None
        self._node_id: NodeId | None = None
        self._opaque = 0
        self._waiting: dict[int, Answered] = {}

    def start(self) -> None:
        """Begin after a while."""
        self.pause(self.go_on)

    @abstractmethod
    def go_on(self) -> None:
        """Begin the next piece of the client's work."""

    def asked(self, request: RemotingCommand) -> None:  # noqa: B027  # most clients are asked nothing
        """Take a request of the broker."""

    @property
    def is_served(self) -> bool:
        """True while nothing goes wrong but that members are stopped in order: each request is answered."""
        return self.cluster.leaders_allowed is not None

    def pause(self, act: Callable[[], None], *, least_ms: int = 1) -> None:
        """Call a function after a drawn pause."""
        pause_ms = least_ms + int(self.rng.random() * self.settings.pause_ms_max)
        self.cluster.at(self.cluster.now_ms + pause_ms, act)

    def chance(self, permille: int) -> bool:
        """Return True with this probability, in thousandths."""
        return self.rng.random() * 1000 < permille

    def topic(self) -> str:
        """Draw one of the topics."""
        return f"T{self.rng.randrange(self.settings.topic_count)}"

    def queue_id(self) -> QueueId:
        """Draw one of the queues."""
        return QueueId(self.rng.randrange(self.settings.queue_count))

    def ask(
        self,
        code: int,
        ext: Mapping[str, str],
        answered: Answered,
        *,
        body: bytes = b"",
        prefers: Prefers = Prefers.LEADER,
    ) -> None:
        """Ask a broker, mostly the one that leads; the connection is kept for the next question."""
        self._look_around(prefers)
        self.ask_there(code, ext, answered, body=body)

    def ask_there(
        self, code: int, ext: Mapping[str, str], answered: Answered, *, body: bytes = b""
    ) -> None:
        """Ask the member that the client is connected to, also after questions that wait."""
        self._opaque += 1
        opaque = self._opaque
        if self._connection is None:
            self.cluster.at(self.cluster.now_ms + 5, answered, None)
            return
        assert opaque not in self._waiting, f"question {opaque} is asked twice"
        self._waiting[opaque] = answered
        request = make_request(code, opaque, ext, body)
        self._connection.send_nowait(encode_command(request))
        due_ms = self.cluster.now_ms + self.settings.client_timeout_ms
        self.cluster.at(due_ms, self._give_up, opaque)

    def send_oneway(self, code: int, ext: Mapping[str, str], *, body: bytes = b"") -> None:
        """Send a oneway request over the connection that is open."""
        if self._connection is not None:
            request = make_request(code, 0, ext, body, is_oneway=True)
            self._connection.send_nowait(encode_command(request))

    def connected(self) -> None:  # noqa: B027  # most clients say nothing first
        """Note that a new connection is open."""

    @property
    def node_id(self) -> NodeId | None:
        """The member at the other end of the connection."""
        return self._node_id if self._connection is not None else None

    def _look_around(self, prefers: Prefers) -> None:
        """Look up the leader in the routes now and then; else stay with the same member."""
        leader = self.cluster.leader()
        if prefers is Prefers.ANY_LEADER and leader is not None:
            leader = self.rng.choice(self.cluster.leaders())
        wanted = self._node_id
        guess = self.rng.random()
        if self._connection is None or self._connection.is_closed or guess < 0.1:
            wanted = self.rng.choice(self._in_routes())
        if prefers is Prefers.ANYBODY:
            wanted = self.rng.choice(self.cluster.node_ids)
        elif leader is not None and guess > _STAYS.get(prefers, 0.5):
            wanted = leader.node_id
        assert wanted is not None, "some member was chosen"
        is_open = self._connection is not None and not self._connection.is_closed
        if is_open and wanted == self._node_id:
            return
        self.hang_up()
        self._node_id = wanted
        self._connection = self.cluster.connect(self._address, wanted)
        if self._connection is not None:
            self._connection.received = self._received
            self._connection.ended = self._ended
            self.connected()

    def _in_routes(self) -> Sequence[NodeId]:
        """Return whom routes name: where nothing goes wrong, no longer those that are about to stop.

        Old routes name members that were removed, and a client may have been given a node that is none yet.
        """
        cluster = self.cluster
        if not self.is_served:
            return cluster.node_ids
        return [each for each in cluster.voters if each not in cluster.leaving] or cluster.voters

    def forget(self) -> None:
        """Give up all questions; half of the connections on which somebody waited stay open, unused."""
        waiting, self._waiting = self._waiting, {}
        if waiting and self.chance(500):
            self._connection = None
        else:
            self.hang_up()

    def hang_up(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close("the client goes")
            self._connection = None

    def _received(self, frames: list[Frame]) -> None:
        for frame in frames:
            command = decode_command(frame)
            if not command.is_response:
                self.asked(command)
            elif (answered := self._waiting.pop(command.opaque, None)) is not None:
                answered(command)

    def _ended(self) -> None:
        self._connection = None
        waiting, self._waiting = self._waiting, {}
        self.counts["broken"] += bool(waiting)
        for answered in waiting.values():
            self.cluster.at(self.cluster.now_ms + 1, answered, None)

    def _give_up(self, opaque: int) -> None:
        """Lose patience; half of the clients hang up then."""
        answered = self._waiting.pop(opaque, None)
        if answered is None:
            return
        self.counts["timeouts"] += 1
        if self.rng.random() < 0.5:
            self.hang_up()
        answered(None)
