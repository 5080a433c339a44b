"""A broker's services, joined: everything that decides and answers, without sockets, files and clocks.

`Broker` gives it a life on trio; the simulator (broker/testing) drives the same services under a virtual clock. What
differs between the two is the `Environment`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import trio

from broker.server.admin import Admin
from broker.server.commits import Commits
from broker.server.committers import Committers
from broker.server.config import BrokerConfig
from broker.server.delays import Delays
from broker.server.digest_watch import DigestWatch
from broker.server.dispatch import Dispatch
from broker.server.linear import LinearReads
from broker.server.link import LeaderLink
from broker.server.link_server import LinkServer
from broker.server.locks import Locks
from broker.server.members import Members
from broker.server.offsets import Offsets
from broker.server.origin import Origin, Outputs
from broker.server.pulls import Pulls
from broker.server.request import Handler
from broker.server.router import Router
from broker.server.row_sends import RowSends
from broker.server.runtime_info import RuntimeInfo
from broker.server.send_answers import SendAnswers
from broker.server.send_backs import SendBacks
from broker.server.sends import Sends
from broker.server.timers import Timers
from broker.server.transaction_checks import TransactionChecks
from broker.server.transaction_resumes import TransactionResumes
from broker.server.transactions import TransactionEnds
from broker.service.catalog import Catalog, Creation
from broker.service.pull import PullRules
from broker.service.repeats import Repeats
from broker.service.send import SendRules, SendSettings
from broker.service.send_back import SendBackRules
from broker.service.timers import RecallRules, TimerRules
from broker.service.transactions import EndRules
from broker.store.control import SetDelayLevels
from broker.store.reading import MessageGoneError, read_message
from broker.store.staging import Staging
from broker.store.state import BrokerState
from broker.store.topics import PERM_ALL, TopicConfig, configured_system_topics
from dledger import LogServer, NotLeaderError, RoleView
from dledger_mq.message.hosts import pack_host
from dledger_mq.message.ids import OffsetIdMaker, UniqKeyMaker
from dledger_mq.message.names import AUTO_CREATE_TOPIC
from dledger_mq.message.record import StoredMessage
from dledger_mq.net.address import Address
from dledger_mq.remoting.frame import Frame
from dledger_mq.remoting.replies import SendReplies

EXPIRE_MS = 5_000


@dataclass(frozen=True, slots=True)
class Environment:
    """What a broker needs of the process that it runs in.

    Attributes:
        service_address: where clients connect.
        link_nonce: proves to this node that another one has read its attributes.
        wall_ms: milliseconds since 1970, without jumps.
        monotonic_ms: a clock that never goes back, for everything that waits.
        pick: a number below its argument.
        key_numbers: two numbers that make the unique keys of this process its own.
        nursery: for what has to wait.
        clock_ahead_ms: by how much the wall clock is ahead of what most members show.
        loss_notice: what the group was found to have lost; empty: nothing.
        made: whether this node registers somewhere with a token.
        make_linear: the part that waits for rounds.
    """

    service_address: Address
    link_nonce: str
    wall_ms: Callable[[], int]
    monotonic_ms: Callable[[], int]
    pick: Callable[[int], int]
    key_numbers: tuple[int, int]
    nursery: trio.Nursery
    clock_ahead_ms: Callable[[], int] = lambda: 0
    loss_notice: Callable[[], str] = lambda: ""
    made: Callable[[str], bool] = lambda _token: False
    make_linear: Callable[..., LinearReads] = LinearReads


class BrokerController:
    """One broker.

    Attributes:
        commits, timers, delays, members, link, runtime: what its owner runs or asks.
    """

    def __init__(
        self,
        config: BrokerConfig,
        log: LogServer,
        state: BrokerState,
        outputs: Outputs,
        environment: Environment,
    ) -> None:
        self._config = config
        self._log = log
        self._state = state
        self._outputs = outputs
        self._environment = environment
        self._was_serving = False
        self._next_expiry_ms = 0
        store_host = pack_host(environment.service_address.host, environment.service_address.port)
        self._catalog = Catalog(state.topics.get, state.groups.get)
        self.commits = Commits(
            log,
            Staging(state, store_host),
            self._catalog,
            outputs,
            count_max=config.limits.staged_messages_max,
            bytes_max=config.limits.staged_bytes_max,
            entry_bytes_max=log.config.raft.entry_body_bytes_max,
            now_ms=environment.wall_ms,
        )
        self.link = LeaderLink(
            log,
            secret=config.secret,
            asked_max=config.limits.forwards_max,
            asked_bytes_max=config.limits.staged_bytes_max,
            now_ms=environment.monotonic_ms,
        )
        self._router = Router(
            log,
            self.link,
            environment.make_linear(log, outputs, environment.nursery),
            self.commits,
            waiting_max=config.limits.requests_max,
            now_ms=environment.monotonic_ms,
        )
        self.members = Members(
            log,
            self.commits,
            self._catalog,
            self.link,
            outputs,
            environment.nursery,
            auto_create_groups=config.auto_create_groups,
            tasks_max=config.limits.requests_max,
            now_ms=environment.monotonic_ms,
        )
        self._committers = Committers(state.locks, self.members.members)
        self._offsets = Offsets(
            log, state, self.commits, self._router, self._committers, environment.monotonic_ms
        )
        self._repeats = Repeats(state, self._load) if config.recognise_repeats else None
        self._answers = SendAnswers(
            SendReplies(config.region, trace_on=config.trace_on),
            OffsetIdMaker(store_host),
            config.broker_name,
        )
        self._ends = self._make_ends()
        self._pulls = self._make_pulls()
        self.delays = Delays(log, state, self.commits, self._log_ms)
        self.timers = Timers(
            log,
            state,
            self.commits,
            self._router,
            RecallRules(config.recall, config.broker_name, state.topics.__contains__),
            self._log_ms,
        )
        self._checks = self._make_checks()
        self._digests = DigestWatch(log, state, self.commits)
        self.runtime = RuntimeInfo(
            config,
            log,
            state,
            environment.wall_ms(),
            environment.clock_ahead_ms,
            environment.loss_notice,
        )
        self._sends = self._make_sends(store_host)
        self._dispatch = self._make_dispatch()
        self.link.watch(settled=outputs.flush)

    @property
    def handlers(self) -> tuple[Handler[Any], ...]:
        """The handlers of all codes, in the order of these."""
        return self._dispatch.handlers

    # What happens.

    def handle(self, origin: Origin, frames: Sequence[Frame]) -> None:
        """Carry out the requests of a client, or of another node.

        Raises:
            FrameError: a header cannot be read; the connection has to be closed.
        """
        self._dispatch.handle(origin, frames)

    def connection_closed(self, number: int) -> None:
        """Drop all that belongs to a client's connection that ended."""
        self._link_server.connection_closed(number)
        self._sends.connection_closed(number)
        self._pulls.connection_closed(number)
        self.members.connection_closed(number)

    def applied(self) -> None:
        """Look again at what waits for messages, since entries were applied."""
        self._pulls.applied()

    def role_changed(self, view: RoleView) -> None:
        """Begin or cease to lead, as the node's role, term or leader says now."""
        if self._was_serving and not view.is_serving:
            self.commits.lost(NotLeaderError(view.leader_id, view.term))
            self._offsets.lost()
            self._sends.lost()
        elif view.is_serving and not self._was_serving:
            self.commits.staging.discard()
            self._ends.leadership_began()
            self._checks.leadership_began()
            self._set_up()
        self._was_serving = view.is_serving
        self.link.leader_changed()
        self.members.exchange.role_changed()
        self._router.unpark()
        self._pulls.look_at_all()

    def tick(self, now_ms: int) -> None:
        """Look at everything that depends on time, every 50 ms or so; `now_ms` is monotonic."""
        self._router.unpark()
        self._router.expire(now_ms)
        self._dispatch.expire(now_ms)
        self._pulls.expire(now_ms)
        self.link.expire(now_ms)
        self._offsets.tick(now_ms)
        self._digests.tick(now_ms)
        self._checks.tick()
        if now_ms >= self._next_expiry_ms:
            self._next_expiry_ms = now_ms + EXPIRE_MS
            self.members.expire(now_ms)
            self.runtime.sample(now_ms)
        self._outputs.flush()

    @property
    def is_quiet(self) -> bool:
        """True while nobody waits for an answer."""
        return self.commits.is_idle and not self._router.waiting_count and not self.link.asked_count

    # Making the services.

    def _make_dispatch(self) -> Dispatch:
        config = self._config
        admin = Admin(
            self._log,
            self._state,
            self.commits,
            self._router,
            self.members,
            broker_name=config.broker_name,
            config_text=self.runtime.config_text,
            runtime=self.runtime.table,
            made=self._environment.made,
        )
        locks = Locks(self.commits, self._router, self._state.locks, self._committers)
        dispatch = Dispatch(self._router, self._environment.monotonic_ms)
        self._link_server = LinkServer(
            group=config.group,
            node_ids=frozenset(str(peer.node_id) for peer in config.peers),
            secret=config.secret,
            nonce=self._environment.link_nonce,
            frame_bytes_max=config.limits.frame_bytes_max,
            handle=dispatch.handle,
            delivered=self._sends.delivered,
            sync_clients=self.members.exchange.sync_from,
        )
        for service in (
            self._sends,
            self._make_send_backs(),
            self._pulls,
            self._offsets,
            self.members,
            locks,
            self._ends,
            self._make_resumes(),
            self.timers,
            admin,
            self._link_server,
        ):
            dispatch.register(service.handlers())
        return dispatch

    def _make_sends(self, store_host: bytes) -> Sends:
        config = self._config
        keys = UniqKeyMaker(store_host[:4], *self._environment.key_numbers)
        rules = SendRules(
            self._catalog,
            SendSettings(
                message_bytes_max=config.message_bytes_max,
                auto_create_topics=config.auto_create_topics,
                auto_create_groups=config.auto_create_groups,
                permission=config.permission,
                delay_level_max=len(config.delay_levels_ms),
                reject_transactions=config.reject_transactions,
                stamp=SendSettings.make_stamp(
                    region=config.region, trace_on=config.trace_on, cluster=config.cluster
                ),
            ),
            pick=self._environment.pick,
            new_key=lambda: keys.next_key(self._environment.wall_ms()),
            timers=self._timer_rules(),
            has_live_lock=lambda group: self._state.locks.has_live_lock(group, self._log_ms()),
        )
        rows = RowSends(self.commits, self._router, self._state.sinks, self._answers.ids)
        return Sends(
            self.commits,
            self._router,
            rules,
            self._answers,
            ends=self._ends,
            rows=rows,
            repeats=self._repeats,
        )

    def _make_send_backs(self) -> SendBacks:
        config = self._config
        rules = SendBackRules(
            self._catalog,
            permission=config.permission,
            auto_create_groups=config.auto_create_groups,
            delay_level_max=len(config.delay_levels_ms),
            load=self._load,
            pick=self._environment.pick,
        )
        return SendBacks(self.commits, self._router, rules)

    def _make_ends(self) -> TransactionEnds:
        config = self._config
        return TransactionEnds(
            self._log,
            self.commits,
            self._router,
            self._state.transactions,
            EndRules(
                self._state.transactions,
                timeout_ms=config.transaction_timeout_ms,
                delay_level_max=len(config.delay_levels_ms),
                timers=self._timer_rules(),
                load=self._load,
            ),
            self._answers,
            repeats=self._repeats,
            open_max=config.limits.open_transactions_max,
            now_ms=self._environment.wall_ms,
        )

    def _make_resumes(self) -> TransactionResumes:
        return TransactionResumes(
            self.commits,
            self._router,
            self._state.transactions,
            self._ends,
            self._load,
            self._log_ms,
        )

    def _make_checks(self) -> TransactionChecks:
        config = self._config
        return TransactionChecks(
            self._log,
            self._state,
            self.commits,
            self._ends,
            self._catalog,
            self.members.ask_producer,
            broker_name=config.broker_name,
            timeout_ms=config.transaction_timeout_ms,
            interval_ms=config.transaction_check_interval_ms,
            check_max=config.transaction_check_max,
            wall_ms=self._environment.wall_ms,
            monotonic_ms=self._environment.monotonic_ms,
        )

    def _timer_rules(self) -> TimerRules | None:
        config = self._config
        return TimerRules(config.timer_delay_max_ms, self._log_ms) if config.timers else None

    def _log_ms(self) -> int:
        """Return this node's time, but never one before the log's: due times are judged by it."""
        return max(self._environment.wall_ms(), self._state.last_store_ms)

    def _load(self, physical_offset: int) -> StoredMessage | None:
        try:
            return read_message(self._log.reader, physical_offset)
        except MessageGoneError:
            return None

    def _make_pulls(self) -> Pulls:
        config = self._config
        rules = PullRules(
            self._catalog,
            permission=config.permission,
            auto_create_groups=config.auto_create_groups,
            members=self.members.members,
            forbidden_bits=self._state.groups.forbidden_bits,
        )
        return Pulls(
            self._log,
            self._state,
            self.commits,
            rules,
            held_max=config.limits.held_pulls_max,
            long_polling=config.long_polling,
            now_ms=self._environment.monotonic_ms,
            commit_offset=self._offsets.pulled,
        )

    def _set_up(self) -> None:
        """Create topics and delays of the configuration that the log does not have yet; this node begins to lead."""
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
                trace=False,
            )
            if topic.name not in state.topics
        ]
        self.commits.create(Creation(topics=tuple(topics)))
        if tuple(state.schedule.delays_ms) != config.delay_levels_ms:
            self.commits.stage_control(SetDelayLevels(list(config.delay_levels_ms)))
