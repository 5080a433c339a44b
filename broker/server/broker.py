"""The broker of one node: everything joined, and its life from start to an orderly stop."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from pathlib import Path

import trio

from broker.message.hosts import pack_host
from broker.message.ids import OffsetIdMaker, UniqKeyMaker
from broker.message.record import StoredMessage
from broker.net.address import Address
from broker.net.connection import Connection
from broker.net.listener import Listener, ListenerLimits, bind, bound_address
from broker.remoting.errors import FrameError
from broker.remoting.frame import Frame
from broker.remoting.replies import SendReplies
from broker.remoting.requests import PullFields
from broker.server.admin import Admin
from broker.server.clock import SteadyWallClock
from broker.server.commits import Commits
from broker.server.committers import Committers
from broker.server.config import BrokerConfig
from broker.server.delays import Delays
from broker.server.deliveries import keep_delivering
from broker.server.digest_watch import DigestWatch
from broker.server.dispatch import Dispatch
from broker.server.gate import Gate
from broker.server.linear import LinearReads
from broker.server.link import LeaderLink
from broker.server.locks import Locks
from broker.server.members import Members
from broker.server.offsets import Offsets
from broker.server.origin import ClientOrigin, Origin, Outputs
from broker.server.private_codes import LINK_NONCE, SERVICE_ADDRESS, PrivateCode
from broker.server.pulls import Pulls, offset_commit_forward
from broker.server.registrar import Registrar
from broker.server.runtime_info import RuntimeInfo
from broker.server.sends import Sends
from broker.server.timers import Timers
from broker.server.transaction_checks import TransactionChecks
from broker.server.transaction_resumes import TransactionResumes
from broker.server.transactions import TransactionEnds
from broker.service.catalog import Catalog, Creation
from broker.service.clients import ConsumerClient
from broker.service.pull import PullRules
from broker.service.repeats import Repeats
from broker.service.send import SendRules, SendSettings
from broker.service.send_back import SendBackRules
from broker.service.timers import RecallRules, TimerRules
from broker.service.transactions import EndRules
from broker.store.control import SetDelayLevels
from broker.store.names import AUTO_CREATE_TOPIC
from broker.store.reading import MessageGoneError, read_message
from broker.store.staging import Staging
from broker.store.state import BrokerState
from broker.store.timer_files import TimerFiles
from broker.store.topics import PERM_ALL, TopicConfig, configured_system_topics
from broker.store.unit_files import SegmentFiles, UnitFiles
from dledger import (
    CorruptionError,
    DiskFailedError,
    LogConfig,
    LogServer,
    NodeId,
    NotLeaderError,
    RaftConfig,
    RoleView,
)
from dledger.storage.lock import StoreLock

_log = logging.getLogger(__name__)

TICK_S = 0.05
EXPIRE_MS = 5_000
DRAIN_S = 3.0
"""What a stop waits for at most: hand-over, answers on their way, leaving the name servers."""

_CHANCE = secrets.SystemRandom()


def monotonic_ms() -> int:
    """A clock that never goes back, for everything that waits."""
    return time.monotonic_ns() // 1_000_000


class Broker:
    """One node. `run` is its life.

    Attributes:
        log: the member of the Raft group.
        state: what follows from its committed entries.
        addresses: where clients connect, once bound.
    """

    def __init__(self, config: BrokerConfig) -> None:
        """Take the store and the client port; the other members are told of the port.

        Raises:
            StoreLockedError: another process uses the store.
            OSError: the port is taken, or the host is unknown.
            ConfigError: the configuration contradicts itself.
        """
        self.config = config
        derived = Path(config.store_path) / "derived"
        # What is derived is written anew at each start, so it must be ours before the log is opened.
        self._lock = StoreLock(derived)
        try:
            self._sockets = _bind(config)
        except OSError:
            self._lock.release()
            raise
        self.addresses = [bound_address(sock) for sock in self._sockets]
        self.service_address = Address(config.advertised_host, self.addresses[0].port)
        self._link_nonce = secrets.token_hex(16)
        self._units, self._segments = UnitFiles(derived), SegmentFiles(derived)
        self._far_timers = TimerFiles(derived)
        self.state = BrokerState(self._units, self._segments, far_timers=self._far_timers)
        self._clock = SteadyWallClock()
        self.log = LogServer(self._log_config(), self.state, accepts_appends=False)
        self._outputs = Outputs()
        self._origins: dict[Connection, ClientOrigin] = {}
        self._listener = Listener(
            self._received,
            closed=self._connection_closed,
            limits=ListenerLimits(
                connections_max=config.limits.connections_max,
                frame_bytes_max=config.limits.frame_bytes_max,
                unsent_bytes_max=config.limits.output_bytes_max,
            ),
        )
        self._was_serving = False
        self._stop_wanted = trio.Event()
        self._quiet = trio.Event()

    def _log_config(self) -> LogConfig:
        config = self.config
        return LogConfig(
            group=config.group,
            peers=config.peers,
            store_path=config.store_path,
            secret=config.secret,
            segment_size_bytes=config.segment_size_bytes,
            snapshot_log_bytes=config.snapshot_log_bytes,
            fsync=config.fsync,
            service_attributes={
                SERVICE_ADDRESS: str(self.service_address),
                LINK_NONCE: self._link_nonce,
            },
            raft=RaftConfig(
                node_id=NodeId(config.node_id),
                voters=tuple(peer.node_id for peer in config.peers),
                preferred_leaders=tuple(NodeId(node) for node in config.preferred_leaders),
            ),
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until `stop` was called and carried out, or until the log fails.

        `task_status.started()` comes once the log is recovered and clients are accepted.

        Raises:
            DLedgerError: the log cannot be opened, or has failed.
        """
        try:
            async with trio.open_nursery() as nursery:
                self._build(nursery)
                await nursery.start(self.log.run)
                nursery.start_soon(self._commits.run)
                nursery.start_soon(self._link.run)
                nursery.start_soon(self._members.exchange.run)
                nursery.start_soon(self._registrar.run)
                nursery.start_soon(self._tick)
                nursery.start_soon(keep_delivering, self._timers, self._outputs)
                nursery.start_soon(keep_delivering, self._delays, self._outputs)
                await nursery.start(self._listener.run, self._sockets)
                task_status.started()
                await self._stop_wanted.wait()
                await self._drain()
                nursery.cancel_scope.cancel()
        finally:
            for sock in self._sockets:
                sock.close()
            self._units.close()
            self._segments.close()
            self._far_timers.close()
            self._lock.release()

    def stop(self) -> None:
        """Ask for an orderly stop."""
        self._stop_wanted.set()

    @property
    def is_serving(self) -> bool:
        """Whether this node leads and takes sends."""
        return self.log.is_serving

    def members(self, group: str) -> dict[str, ConsumerClient]:
        """The live members of a consumer group on all nodes, as far as this node knows."""
        return self._members.members(group)

    # Joining the parts.

    def _build(self, nursery: trio.Nursery) -> None:
        config, log, state = self.config, self.log, self.state
        store_host = pack_host(self.service_address.host, self.service_address.port)
        self._catalog = Catalog(state.topics.get, state.groups.get)
        self._commits = Commits(
            log,
            Staging(state, store_host),
            self._catalog,
            self._outputs,
            count_max=config.limits.staged_messages_max,
            bytes_max=config.limits.staged_bytes_max,
            now_ms=self._clock,
        )
        self._make_ways()
        self._members = Members(
            log,
            self._commits,
            self._catalog,
            self._link,
            self._outputs,
            nursery,
            auto_create_groups=config.auto_create_groups,
            tasks_max=config.limits.requests_max,
            now_ms=monotonic_ms,
        )
        linear = LinearReads(log, self._gate, self._outputs, nursery)
        self._committers = Committers(state.locks, self._members.members)
        self._offsets = Offsets(
            log, state, self._commits, self._gate, linear, self._committers, monotonic_ms
        )
        self._repeats = Repeats(state, self._load) if config.recognise_repeats else None
        self._ends = self._make_ends(store_host)
        self._pulls = self._make_pulls()
        self._delays = Delays(log, state, self._commits, self._log_ms)
        self._timers = Timers(
            log,
            state,
            self._commits,
            self._gate,
            RecallRules(config.recall, config.broker_name, state.topics.__contains__),
            self._log_ms,
        )
        self._checks = self._make_checks()
        self._digests = DigestWatch(log, state, self._commits)
        self._registrar = self._make_registrar()
        self._runtime = RuntimeInfo(config, log, state, self._clock())
        self._sends = self._make_sends(store_host)
        self._dispatch = self._make_dispatch()
        log.watch_role(self._role_changed)
        log.watch_applied(self._applied)

    def _make_ways(self) -> None:
        """The link to the leader, and the gate before it."""
        limits = self.config.limits
        self._link = LeaderLink(
            self.log,
            secret=self.config.secret,
            asked_max=limits.forwards_max,
            now_ms=monotonic_ms,
            flush=self._outputs.flush,
            connected=self._link_connected,
            union_changed=lambda: self._members.exchange.ask_again(),
            ask_producer=lambda group, frame: self._members.ask_producer_here(group, frame),
        )
        self._gate = Gate(
            self.log,
            self._link,
            waiting_max=limits.requests_max,
            now_ms=monotonic_ms,
            serve=lambda errand, request: self._dispatch.serve(errand, request),
        )

    def _make_dispatch(self) -> Dispatch:
        config = self.config
        admin = Admin(
            self.log,
            self.state,
            self._commits,
            self._gate,
            self._members,
            broker_name=config.broker_name,
            config_text=self._runtime.config_text,
            runtime=self._runtime.table,
        )
        return Dispatch(
            self._gate,
            self._sends,
            self._pulls,
            self._offsets,
            self._members,
            Locks(self._commits, self._gate, self.state.locks, self._committers),
            self._ends,
            self._make_resumes(),
            self._timers,
            admin,
            group=config.group,
            node_ids=frozenset(str(peer.node_id) for peer in config.peers),
            secret=config.secret,
            link_nonce=self._link_nonce,
            frame_bytes_max=config.limits.frame_bytes_max,
            now_ms=monotonic_ms,
        )

    def _make_sends(self, store_host: bytes) -> Sends:
        config = self.config
        keys = UniqKeyMaker(store_host[:4], os.getpid(), _CHANCE.getrandbits(32))
        level_max = len(config.delay_levels_ms)
        rules = SendRules(
            self._catalog,
            SendSettings(
                message_bytes_max=config.message_bytes_max,
                auto_create_topics=config.auto_create_topics,
                auto_create_groups=config.auto_create_groups,
                permission=config.permission,
                delay_level_max=level_max,
                reject_transactions=config.reject_transactions,
                stamp=SendSettings.make_stamp(
                    region=config.region, trace_on=config.trace_on, cluster=config.cluster
                ),
            ),
            pick=_CHANCE.randrange,
            new_key=lambda: keys.next_key(self._clock()),
            timers=self._timer_rules(),
            has_live_lock=lambda group: self.state.locks.has_live_lock(group, self._log_ms()),
        )
        back_rules = SendBackRules(
            self._catalog,
            permission=config.permission,
            auto_create_groups=config.auto_create_groups,
            delay_level_max=level_max,
            load=self._load,
            pick=_CHANCE.randrange,
        )
        return Sends(
            self._commits,
            self._gate,
            rules,
            back_rules,
            SendReplies(config.region, trace_on=config.trace_on),
            OffsetIdMaker(store_host),
            self._ends,
            self._repeats,
            config.broker_name,
            sinks=self.state.sinks,
        )

    def _make_ends(self, store_host: bytes) -> TransactionEnds:
        config = self.config
        return TransactionEnds(
            self._commits,
            self._gate,
            self.state.transactions,
            EndRules(
                self.state.transactions,
                timeout_ms=config.transaction_timeout_ms,
                delay_level_max=len(config.delay_levels_ms),
                timers=self._timer_rules(),
                load=self._load,
            ),
            SendReplies(config.region, trace_on=config.trace_on),
            OffsetIdMaker(store_host),
            self._repeats,
            open_max=config.limits.open_transactions_max,
            now_ms=self._clock,
        )

    def _make_resumes(self) -> TransactionResumes:
        return TransactionResumes(
            self._commits,
            self._gate,
            self.state.transactions,
            self._ends,
            self._load,
            self._log_ms,
        )

    def _make_checks(self) -> TransactionChecks:
        config = self.config
        return TransactionChecks(
            self.log,
            self.state,
            self._commits,
            self._ends,
            self._catalog,
            self._members.ask_producer,
            broker_name=config.broker_name,
            timeout_ms=config.transaction_timeout_ms,
            interval_ms=config.transaction_check_interval_ms,
            check_max=config.transaction_check_max,
            wall_ms=self._clock,
            monotonic_ms=monotonic_ms,
        )

    def _timer_rules(self) -> TimerRules | None:
        config = self.config
        return TimerRules(config.timer_delay_max_ms, self._log_ms) if config.timers else None

    def _log_ms(self) -> int:
        """This node's time, but never before what the log says already: due times are judged by it."""
        return max(self._clock(), self.state.last_store_ms)

    def _load(self, physical_offset: int) -> StoredMessage | None:
        try:
            return read_message(self.log, physical_offset)
        except MessageGoneError:
            return None

    def _make_pulls(self) -> Pulls:
        config = self.config
        rules = PullRules(
            self._catalog,
            permission=config.permission,
            auto_create_groups=config.auto_create_groups,
            members=self._members.members,
            forbidden_bits=self.state.groups.forbidden_bits,
        )
        return Pulls(
            self.log,
            self.state,
            rules,
            held_max=config.limits.held_pulls_max,
            long_polling=config.long_polling,
            now_ms=monotonic_ms,
            commit_offset=self._commit_pulled_offset,
            create=self._create_for_pull,
        )

    def _make_registrar(self) -> Registrar:
        config = self.config
        return Registrar(
            self.log,
            self.state.topics,
            config.namesrvs,
            cluster=config.cluster,
            broker_name=config.broker_name,
            broker_addr=str(self.service_address),
            follower_id=config.broker_id_as_follower,
            perm_mask=config.permission,
            interval_s=config.register_interval_ms / 1000,
        )

    # What happens.

    def _received(self, connection: Connection, frames: list[Frame]) -> None:
        origin = self._origins.get(connection)
        if origin is None:
            origin = self._origins[connection] = ClientOrigin(connection, self._outputs)
        handle = self._dispatch.handle
        try:
            for frame in frames:
                handle(origin, frame)
        except (FrameError, CorruptionError, DiskFailedError, OSError):
            raise  # the client's fault ends its connection, the disk's ends the node
        except Exception:  # noqa: BLE001  # the root of a connection's work
            # A mistake of ours must not take the others along.
            _log.exception("internal error in a request of %s", origin.address)
            connection.close("internal error")
        self._outputs.flush()

    def _connection_closed(self, connection: Connection) -> None:
        origin = self._origins.pop(connection, None)
        if origin is not None:
            self._dispatch.connection_closed(origin.number)
            self._sends.connection_closed(origin.number)
            self._pulls.connection_closed(origin.number)
            self._members.connection_closed(origin.number)
            self._outputs.flush()

    def _applied(self) -> None:
        self._pulls.applied()
        self._registrar.applied()
        self._outputs.flush()

    def _link_connected(self) -> None:
        self._members.exchange.ask_again()
        self._gate.retry()
        self._outputs.flush()

    def _role_changed(self, view: RoleView) -> None:
        if self._was_serving and not view.is_serving:
            self._commits.lost(NotLeaderError(view.leader_id, view.term))
            self._offsets.lost()
            self._sends.lost()
        elif view.is_serving and not self._was_serving:
            self._commits.staging.discard()
            self._ends.start_reign()
            self._checks.start_reign()
            self._set_up()
        self._was_serving = view.is_serving
        self._link.leader_changed()
        self._members.exchange.role_changed()
        self._gate.retry()
        self._pulls.look_at_all()
        self._registrar.announce()
        self._outputs.flush()

    def _set_up(self) -> None:
        """A new leader: topics and delays that the configuration names and the log does not have yet."""
        config, state = self.config, self.state
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
        self._commits.create(Creation(topics=tuple(topics)))
        if tuple(state.schedule.delays_ms) != config.delay_levels_ms:
            self._commits.stage_control(SetDelayLevels(list(config.delay_levels_ms)))

    def _commit_pulled_offset(self, origin: Origin, fields: PullFields) -> None:
        """A pull carried an offset (E14): it joins the next commit, here or at the leader."""
        if self.log.is_serving:
            self._offsets.note(
                fields.consumer_group,
                fields.topic,
                fields.queue_id,
                fields.commit_offset,
                address=origin.address,
            )
        else:
            ext, body = offset_commit_forward(origin.address, fields)
            self._link.tell(PrivateCode.FORWARD, ext=ext, body=body)

    def _create_for_pull(self, creation: Creation) -> None:
        if self.log.is_serving:
            self._commits.create(creation)

    async def _tick(self) -> None:
        next_expiry_ms = 0
        while True:
            await trio.sleep(TICK_S)
            now_ms = monotonic_ms()
            self._gate.retry()
            self._gate.expire(now_ms)
            self._pulls.expire(now_ms)
            self._link.expire(now_ms)
            self._offsets.tick(now_ms)
            self._digests.tick(now_ms)
            self._checks.tick()
            if now_ms >= next_expiry_ms:
                next_expiry_ms = now_ms + EXPIRE_MS
                self._members.expire(now_ms)
                self._runtime.sample(now_ms)
            self._outputs.flush()
            if self._is_quiet():
                self._quiet.set()

    # The end.

    async def _drain(self) -> None:
        """Hand leadership over, let what is on its way be answered, leave the name servers."""
        _log.info("stopping: handing over and answering what is on its way")
        with trio.move_on_after(DRAIN_S):
            await self._registrar.leave(timeout_s=1.0)
            await self.log.drain()
            self._quiet = trio.Event()
            await self._quiet.wait()
        self._outputs.flush()

    def _is_quiet(self) -> bool:
        return self._commits.is_idle and not self._gate.waiting_count and not self._link.asked_count


def _bind(config: BrokerConfig) -> list[socket.socket]:
    """The client port, and the one two below it where that is wanted."""
    sockets = [bind(config.listen)]
    if config.vip_port:
        host, port = bound_address(sockets[0])
        try:
            sockets.append(bind(Address(host, port - 2)))
        except OSError:
            sockets[0].close()
            raise
    return sockets
