"""One life of a simulated broker: the real services, joined as `Broker` joins them, on simulated wires.

Nothing here knows faults, or what is right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Protocol, cast

import trio

from broker.server.config import BrokerConfig
from broker.server.controller import BrokerController
from broker.server.environment import Environment
from broker.server.links.link import LeaderConnection
from broker.server.links.private_codes import LINK_NONCE, SERVICE_ADDRESS
from broker.server.requests.linear import LinearReads
from broker.server.requests.origin import ClientOrigin, Outputs
from broker.server.watches.clock import SteadyWallClock
from broker.store.state import BrokerState
from broker.testing.sim_log import IdleNursery, SimDriver, SimLog, Trampoline, WatchedMachine
from broker.testing.wires import SimConnection
from dledger.config import LogConfig
from dledger.engine import Engine
from dledger.raft.entry import Entry
from dledger.raft.ids import NodeId
from dledger.runtime.announcer import RoleView
from dledger.testing.sim_group import SimGroup
from dledger.testing.sim_node import SimNode
from dledger_mq.net.address import Address
from dledger_mq.net.connection import Connection
from dledger_mq.remoting.frame import Frame
from dledger_mq.remoting.header import decode_command

LOOK_MS = 20
"""Pause between two looks at what is due for delivery (`deliveries.LOOK_S`)."""

TICK_LOOKS = 3
"""Looks between two ticks of all services."""

RELINK_MS = 100

WALL_ZERO_MS = 1_700_000_000_000
"""The true wall clock at the start of a run."""


def address_of(node_id: NodeId) -> Address:
    """Return where a member's clients connect."""
    return Address("127.0.0.1", 20_000 + int(node_id[1:]))


class BrokerGroup(SimGroup, Protocol):
    """The group around a broker, as far as the broker needs it; see `BrokerCluster`."""

    controller_type: type[BrokerController]
    wall_offset_ms_max: int
    pop_return_ms: int

    @property
    def brokers(self) -> Mapping[NodeId, SimBroker]:
        """The brokers by member; those of members that are down have ended."""

    def config_of(self, node_id: NodeId) -> LogConfig:
        """Return the configuration of a member's log."""

    def run_pass(self, node: SimNode, engine: Engine) -> None:
        """Carry out the effects of an engine whose broker has proposed an entry."""

    def connect(self, source: NodeId | str, target: NodeId) -> SimConnection | None:
        """Return a new connection to a member's broker; None when it cannot be reached."""

    def applied(self, broker: SimBroker, node: SimNode, entry: Entry) -> None:
        """Look at a broker that has folded an entry."""


class SimBroker:
    """One life of a simulated broker, from a start of its member to the next end.

    Attributes:
        state: what follows from the log.
        log: the member as the services see it.
        driver: its passes.
        connections: the ends that lie here.
    """

    def __init__(
        self,
        cluster: BrokerGroup,
        node: SimNode,
        engine: Engine,
        *,
        state: BrokerState,
        config: BrokerConfig,
    ) -> None:
        self.state = state
        self.connections: list[SimConnection] = []
        self._cluster = cluster
        self._node = node
        self._life = node.life
        self._looks = 0
        self._is_pass_wanted = self._is_flush_wanted = False
        self._nonce = f"{node.node_id}-{node.life}"
        self._outputs = Outputs()
        self.driver = SimDriver(
            engine_config := cluster.config_of(node.node_id),
            engine,
            WatchedMachine(state, lambda entry: cluster.applied(self, node, entry)),
            now_ms=self._steady_ms,
            wake=self._want_pass,
        )
        self.log = SimLog(
            engine_config,
            self.driver,
            self._steady_ms,
            attributes=self._attributes_of,
            threads=self,
        )
        chance = Random(f"broker/{cluster.settings.seed}/{self._nonce}")
        wrong_ms = chance.randint(-cluster.wall_offset_ms_max, cluster.wall_offset_ms_max)
        environment = Environment(
            service_address=address_of(node.node_id),
            link_nonce=self._nonce,
            wall_ms=SteadyWallClock(
                node.node_id,
                1,  # each goes by its own clock here: the runs are to show that it does no harm
                wall=lambda: WALL_ZERO_MS + cluster.now_ms + wrong_ms + node.wall_jump_ms,
                steady=self._steady_ms,
            ),
            monotonic_ms=self._steady_ms,
            pick=chance.randrange,
            key_numbers=(int(node.node_id[1:]), chance.getrandbits(32)),
            nursery=cast("trio.Nursery", IdleNursery()),
            make_linear=lambda log, outputs, _: LinearReads(
                log, outputs, cast("trio.Nursery", Trampoline())
            ),
        )
        self.controller = cluster.controller_type(
            config, self.log, state, outputs=self._outputs, environment=environment
        )
        self.controller.commits.wanted = _looked_at_anyway
        returns = self.controller.services.pop_returns
        returns.return_ms = cluster.pop_return_ms
        returns.has_members = lambda _group: True  # who pops here sends no heartbeats
        self.log.watch_role(self._role_changed)
        self.log.reader.watch_applied(self._applied)
        cluster.at(cluster.now_ms + LOOK_MS, self._look)

    @property
    def is_up(self) -> bool:
        """True while this life goes on."""
        return self._node.life == self._life and self._node.engine is not None

    def attributes(self) -> dict[str, str]:
        """Return what this node announces of itself."""
        return {SERVICE_ADDRESS: str(address_of(self._node.node_id)), LINK_NONCE: self._nonce}

    def stopped(self, *, power_loss: bool) -> None:
        """End with the process: its ends of all connections close, or vanish with the power."""
        self.log.stopped()
        for end in self.connections:
            if power_loss:
                end.vanish()
            else:
                end.close("the process ended")

    def accept(self, end: SimConnection) -> None:
        """Take a connection that somebody opened."""
        origin = ClientOrigin(cast("Connection", end), self._outputs)
        self.connections.append(end)
        end.received = lambda frames: self._received(origin, frames)
        end.ended = lambda: self._guarded(lambda: self.controller.connection_closed(origin.number))

    def after_step(self) -> None:
        """Do the rest of the pass after a step of the engine, then propose what was staged."""
        self.log.follow_members()
        self.driver.settle()
        self._outputs.flush()
        self._want_flush()

    def begin(self, work: Callable[[], None], done: Callable[[], None]) -> None:
        """Do what a thread would do beside the loop, at this moment, when the present event is over; see `Threads`."""

        def run() -> None:
            work()
            done()

        self._cluster.at(self._cluster.now_ms, lambda: self._guarded(run))

    # Time.

    def _steady_ms(self) -> int:
        return self._node.local_ms(self._cluster.now_ms)

    def _look(self) -> None:
        """Do what the tasks of a broker do at intervals."""
        if not self.is_up:
            return
        pause_ms = max(LOOK_MS, self._node.paused_until_ms - self._cluster.now_ms)
        self._cluster.at(self._cluster.now_ms + pause_ms, self._look)
        if pause_ms > LOOK_MS:
            return
        self._looks += 1

        def look() -> None:
            self.controller.timers.tick()
            self.controller.delays.tick()
            if self._looks % TICK_LOOKS == 0:
                self.controller.tick(self._steady_ms())

        self._guarded(look)

    def _guarded(self, act: Callable[[], object]) -> None:
        """Run an action between two passes."""
        if self.is_up:
            with self._cluster.disk_of(self._node):
                act()
                self._outputs.flush()
                self._want_flush()

    def _want_pass(self) -> None:
        if not self._is_pass_wanted:
            self._is_pass_wanted = True
            self._cluster.at(self._cluster.now_ms, self._pass)

    def _pass(self) -> None:
        self._is_pass_wanted = False
        if self.is_up:
            self._cluster.run_pass(self._node, self.driver.engine)

    def _want_flush(self) -> None:
        """Propose what was staged by this moment, as a pass does."""
        if self.controller.commits.staging.staged_count and not self._is_flush_wanted:
            self._is_flush_wanted = True
            self._cluster.at(self._cluster.now_ms, self._flush)

    def _flush(self) -> None:
        self._is_flush_wanted = False
        if self.is_up:
            with self._cluster.disk_of(self._node):
                self.controller.commits.flush()
                self._outputs.flush()

    # What happens.

    def _received(self, origin: ClientOrigin, frames: list[Frame]) -> None:
        self._guarded(lambda: self.controller.handle(origin, frames))

    def _role_changed(self, view: RoleView) -> None:
        self.controller.role_changed(view)
        self._outputs.flush()
        self._link_up()

    def _applied(self) -> None:
        self.controller.applied()

    # The link to the leader.

    def _attributes_of(self, node_id: NodeId) -> dict[str, str]:
        broker = self._cluster.brokers.get(node_id)
        return broker.attributes() if broker is not None else {}

    def _link_up(self) -> None:
        """Connect to the leader that is known, unless that is done; again and again."""
        leader_id = self.log.leader_id
        if (
            not self.is_up
            or leader_id in {None, self._node.node_id}
            or self.controller.link.is_open
        ):
            return
        assert leader_id is not None, "it is known"
        end = self._cluster.connect(self._node.node_id, leader_id)
        if end is None:
            self._cluster.at(self._cluster.now_ms + RELINK_MS, self._link_up)
            return
        link = LeaderConnection(str(leader_id), cast("Connection", end))
        self.connections.append(end)
        end.received = lambda frames: self._guarded(lambda: self._take(link, frames))
        end.ended = lambda: self._guarded(lambda: self._link_ended(link))
        # A link that the node closes itself, as its leader changed, ends a moment later, as in the product.
        end.closed = lambda: self._cluster.at(self._cluster.now_ms, end.ended)
        end.send_nowait(self.controller.link.hello(str(leader_id)))

    def _take(self, link: LeaderConnection, frames: list[Frame]) -> None:
        """Take frames from the link, of which the first answers the hello."""
        if not self.controller.link.has(link):
            if decode_command(frames[0]).code != 0:
                link.connection.close("refused")
                return
            self.controller.link.opened(link)
            frames = frames[1:]
        self.controller.link.received(link, frames)

    def _link_ended(self, link: LeaderConnection) -> None:
        if self.controller.link.has(link):
            self.controller.link.ended(link)
        self._cluster.at(self._cluster.now_ms + RELINK_MS, self._link_up)


def _looked_at_anyway() -> None:
    """Do nothing when a flush is wanted: after each event the simulator looks what is staged."""
