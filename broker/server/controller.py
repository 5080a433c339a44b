"""The events of a broker, passed on to its services: requests, entries applied, changes of role, time.

No sockets, files and clocks: `Broker` gives it a life on trio; the simulator (broker/testing) drives the same services
under a virtual clock. What differs between the two is the `Environment`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from broker.server.config import BrokerConfig
from broker.server.environment import Environment
from broker.server.requests.commits import OnCommit
from broker.server.requests.dispatch import never
from broker.server.requests.origin import Origin, Outputs
from broker.server.requests.request import AnyHandler
from broker.server.services import Services
from broker.service.catalog import Creation
from broker.store.control import SetDelayLevels
from broker.store.staging import StagedEntry
from broker.store.state import BrokerState
from broker.store.topics import PERM_ALL, TopicConfig, configured_system_topics
from dledger import DLedgerError, LogServer, NotLeaderError, RoleView, Term
from dledger_mq.message.names import AUTO_CREATE_TOPIC
from dledger_mq.remoting.frame import Frame

EXPIRE_MS = 5_000


class BrokerController:
    """One broker.

    Attributes:
        services: what it is made of.
        commits, timers, delays, members, link, runtime: those of them that its owner runs or asks.
    """

    def __init__(
        self,
        config: BrokerConfig,
        log: LogServer,
        state: BrokerState,
        *,
        outputs: Outputs,
        environment: Environment,
    ) -> None:
        self._config = config
        self._state = state
        self._outputs = outputs
        self._was_serving = self._is_set_up = False
        self._led_term = Term(0)
        self._next_expiry_ms = 0
        self.services = services = Services(
            config, log, state, outputs=outputs, environment=environment
        )
        self.commits = services.commits
        self.link = services.link
        self.members = services.members
        self.delays = services.delays
        self.timers = services.timers
        self.runtime = services.runtime
        self._router = services.router
        self._offsets = services.offsets
        self._dispatch = services.dispatch
        self.link.watch(settled=outputs.flush)

    @property
    def handlers(self) -> tuple[AnyHandler, ...]:
        """The handlers of all codes, in the order of these."""
        return self._dispatch.handlers

    # What happens.

    def handle(
        self, origin: Origin, frames: Sequence[Frame], is_over: Callable[[], bool] = never
    ) -> int:
        """Carry out requests of a client, or of another node: all, or as many as there is time for; return how many.

        Raises:
            FrameError: a header cannot be read; the connection has to be closed.
        """
        return self._dispatch.handle(origin, frames, is_over)

    def handle_together(self, origins: Sequence[Origin], frames: list[Frame]) -> Sequence[int]:
        """Carry out those requests of as many clients that are plain; return their places."""
        return self._dispatch.handle_together(origins, frames)

    def connection_closed(self, number: int) -> None:
        """Drop all that belongs to a client's connection that ended."""
        if self.services.link_server.connection_closed(number):
            self.services.replies.node_lost()
        self.services.requesters.connection_closed(number)
        self.services.sends.connection_closed(number)
        self.services.pulls.connection_closed(number)
        self.members.connection_closed(number)
        self.services.calls.connection_closed(number)

    def applied(self) -> None:
        """Look again at what waits for messages, since entries were applied."""
        self.services.live.look()
        if self._config is not self.services.live.config:
            self._config = self.services.live.config
            self._is_set_up = False
        self.services.points.applied()
        self.services.pulls.applied()
        self.services.pops.applied()
        if self.runtime.is_replaying:
            is_over = self.runtime.note_replayed()
            self.services.stats.restart()
            if is_over:
                self.services.stats.begin()

    def role_changed(self, view: RoleView) -> None:
        """Begin or cease to lead, as the node's role, term or leader says now."""
        if self._was_serving and not view.is_serving:
            self.commits.lost(NotLeaderError(view.leader_id, view.term))
            self._offsets.lost()
            self.services.sends.lost()
            self.services.pops.lost()
            # Whoever was refused just now must not have staged anything: nobody would refuse that.
            staged_count = self.commits.staging.staged_count
            assert not staged_count, f"{staged_count} records are staged after term {view.term}"
        elif view.is_serving and not self._was_serving:
            assert view.term > self._led_term, f"term {view.term} is led after {self._led_term}"
            self._led_term = view.term
            self.commits.staging.discard()
            self.services.ends.leadership_began()
            self.services.checks.leadership_began()
            self.services.replies.leadership_began()
            self._set_up()
        self._was_serving = view.is_serving
        self.services.member_info.role_changed(view)
        self.link.leader_changed()
        self.members.exchange.role_changed()
        self.services.points.role_changed()
        self._router.unpark()
        self.services.pulls.role_changed()

    def send_readers_away(self) -> bool:
        """Let no backlogs be read here from now on, since this node is to stop; return True if some may have been."""
        self.members.exchange.is_leaving = True
        self.members.exchange.ask_again()
        return self.services.pulls.leave()

    def tick(self, now_ms: int) -> None:
        """Look at everything that depends on time, every 50 ms or so; `now_ms` is monotonic."""
        if self._was_serving and not self._is_set_up:
            self._set_up()
        self._router.unpark()
        self._router.expire(now_ms)
        self._dispatch.expire(now_ms)
        self.services.points.expire(now_ms)
        self.services.pulls.expire(now_ms)
        self.services.pops.expire(now_ms)
        self.services.pop_returns.tick(now_ms)
        self.link.expire(now_ms)
        self.members.tick(now_ms)
        self.services.calls.expire(now_ms)
        self.services.replies.tick(now_ms)
        self.services.resets.tick()
        self._offsets.tick(now_ms)
        self.services.digests.tick(now_ms)
        self.services.retention.tick(now_ms)
        self.services.trims.tick()
        if not self.runtime.is_replaying:
            self.services.stats.tick()
        self._state.key_index.sweep()
        self.services.checks.tick()
        if now_ms >= self._next_expiry_ms:
            self._next_expiry_ms = now_ms + EXPIRE_MS
            self.members.expire(now_ms)
            self.runtime.sample(now_ms)
        self._outputs.flush()

    @property
    def is_quiet(self) -> bool:
        """True while nobody waits for an answer."""
        return self.commits.is_idle and not self._router.waiting_count and not self.link.asked_count

    def _set_up(self) -> None:
        """Create topics and delays of the configuration that the log does not have yet; this node leads.

        An entry may be refused though this node goes on leading: then this is done again.
        """
        config, state = self._config, self._state
        topics = [
            TopicConfig(
                topic.name, config.default_topic_queues, config.default_topic_queues, PERM_ALL
            )
            if topic.name == AUTO_CREATE_TOPIC
            else topic
            for topic in configured_system_topics(
                config.cluster,
                config.broker_name,
                auto_create=config.auto_create_topics,
                trace_topic=config.trace_topic,
            )
            if topic.name not in state.topics
        ]
        self._is_set_up = True
        place = self.commits.create(Creation(topics=tuple(topics)))
        if tuple(state.schedule.delays_ms) != config.delay_levels_ms:
            place = self.commits.stage_control(SetDelayLevels(list(config.delay_levels_ms)))
        if place >= 0:
            self.commits.wait(place, OnCommit(_ignore, self._not_set_up))

    def _not_set_up(self, _error: DLedgerError) -> None:
        self._is_set_up = False


def _ignore(_staged: StagedEntry, _place: int) -> None:
    """Do nothing: what the configuration names is there."""
