"""The broker of one node: its sockets, its store, and its life from start to an orderly stop."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from broker.access.errors import AccessRulesError
from broker.access.guard import AccessGuard
from broker.access.rule_files import RuleFiles
from broker.access.rules import AccessRules
from broker.net.listener import Listener, ListenerLimits
from broker.net.served_connections import TURN_S
from broker.net.shared_writes import send_each
from broker.server.access_keeper import AccessKeeper
from broker.server.config import BrokerConfig, why_same_follower_id
from broker.server.controller import BrokerController
from broker.server.deliveries.deliveries import DeliveryAlarm
from broker.server.environment import Environment
from broker.server.figures.observed import Observed
from broker.server.handlers.disk_room import DiskRoom
from broker.server.links.private_codes import LINK_NONCE, SERVICE_ADDRESS
from broker.server.mistakes import Mistakes
from broker.server.node_keeper import NodeKeeper
from broker.server.node_settings import NodeSettings
from broker.server.registrar import Registrar
from broker.server.requests.origin import ClientOrigin, Outputs
from broker.server.stopping import OrderlyStop
from broker.server.watches.clock import SteadyWallClock
from broker.server.watches.loss_watch import LossWatch
from broker.service.clients import ConsumerClient
from broker.store.file_places import wipe_folders_beside
from broker.store.state import BrokerState
from broker.store.timer_files import TimerFiles
from broker.store.unit_files import DERIVED, SegmentFiles, UnitFiles
from broker.tls.keeper import TlsKeeper
from dledger import (
    ConfigError,
    ListenError,
    LogConfig,
    LogServer,
    NodeId,
    RoleView,
)
from dledger.runtime.secret_file import SecretFile
from dledger.storage.lock import StoreLock
from dledger_mq.net.address import Address
from dledger_mq.net.frame_socket import FrameSocket
from dledger_mq.net.listening import bind, bound_address, start_accepting
from dledger_mq.remoting.errors import FrameError
from dledger_mq.remoting.frame import Frame
from dledger_mq.remoting.route import TopicRoute

if TYPE_CHECKING:
    from broker.metrics.endpoint import Endpoint

_log = logging.getLogger(__name__)

TICK_S = 0.05

USEFUL_WAIT_S = 1.0
"""For a leader, before a node that is back lets clients in: then they are told at least what is wrong."""

ROUTES_ASKED_MAX = 64
"""Questions for routes at a time, of clients that leave it to brokers to share out queues."""

_CHANCE = secrets.SystemRandom()


def monotonic_ms() -> int:
    """Read a clock that never goes back, for everything that waits."""
    return time.monotonic_ns() // 1_000_000


class Broker:
    """The broker of one node; `run` serves until it is stopped or its log fails.

    Attributes:
        log: the member of the Raft group.
        state: what follows from its committed entries.
        addresses: where clients connect, once bound.
    """

    def __init__(self, config: BrokerConfig) -> None:
        """Take the store and the client port, which the other members learn from its attributes; `run` lets clients in.

        Raises:
            StoreLockedError: another process uses the store.
            ListenError: the port is taken, or the host is unknown.
            OSError: the store's disk failed or is full.
            ConfigError: the configuration contradicts itself, or a certificate cannot be used.
        """
        self._tls = TlsKeeper(config.tls)
        self._secret_file = (
            SecretFile(config.secret_file, "--secret-file") if config.secret_file else None
        )
        derived = Path(config.store_path) / DERIVED
        # What is derived is written anew at each start, so it must be ours before the log is opened.
        self._lock = StoreLock(derived)
        try:
            self._node_settings = NodeSettings(config.store_path)
            self._rule_files, self._guard = _read_rules(config)
        except BaseException:  # whatever it was, nobody is there who could release the store
            self._lock.release()
            raise
        self.config = config
        try:
            self._sockets = _bind(config)
        except ListenError:
            self._lock.release()
            raise
        self._metrics_socket = self._bind_metrics(config.metrics.listen)
        self.addresses = [bound_address(sock) for sock in self._sockets]
        self.service_address = Address(config.advertised_host, self.addresses[0].port)
        self._link_nonce = secrets.token_hex(16)
        wipe_folders_beside(derived)
        self.state = BrokerState(
            UnitFiles(derived), SegmentFiles(derived), far_timers=TimerFiles(derived)
        )
        self._clock = SteadyWallClock(NodeId(config.node_id), len(config.peers))
        self.log = LogServer(
            self._log_config(), self.state, accepts_appends=False, clock=self._clock
        )
        self._outputs = Outputs()
        self._mistakes = Mistakes(keeps=True)
        self._origins: dict[FrameSocket, ClientOrigin] = {}
        self._listener = self._make_listener()
        self._outputs.may_have_ended = lambda: self._listener.may_have_ended
        self._outputs.send_each = send_each
        self._is_leading = self._is_turn = self._has_staged = False
        self._stop_wanted = trio.Event()
        self._routes_asked = 0

    def _make_listener(self) -> Listener:
        """Build what accepts and serves clients, within the bounds that are set."""
        limits = self.config.limits
        return Listener(
            self._received,
            closed=self._connection_closed,
            turn_ended=self._turn_ended,
            handle_together=self._received_together,
            limits=ListenerLimits(
                connections_max=limits.connections_max,
                frame_bytes_max=limits.frame_bytes_max,
                unfinished_bytes_max=limits.unfinished_bytes_max,
                unsent_bytes_max=limits.output_bytes_max,
            ),
            door=self._tls.door,
        )

    @property
    def metrics_address(self) -> Address | None:
        """The address where figures are given; None: nowhere."""
        return None if self._metrics_socket is None else bound_address(self._metrics_socket)

    def _bind_metrics(self, address: Address | None) -> socket.socket | None:
        """Take the port of the figures, if there is to be one.

        Raises:
            ListenError: it is taken, or the host is unknown.
        """
        if address is None:
            return None
        try:
            return bind(address)
        except OSError as error:
            for sock in self._sockets:
                sock.close()
            self._lock.release()
            why = error.strerror or error
            raise ListenError(
                f"{address}, the port of the figures, cannot be listened on: {why} (--metrics, or "
                "metricsPromExporterPort)"
            ) from error

    def _log_config(self) -> LogConfig:
        """Derive the log's settings; by the attributes other members find this node's client port and its links."""
        config = self.config
        return LogConfig(
            group=config.group,
            peers=config.peers,
            store_path=config.store_path,
            secret=config.secret if self._secret_file is None else self._secret_file.secret,
            tls=self._tls.members,
            segment_size_bytes=config.segment_size_bytes,
            snapshot_log_bytes=config.snapshot_log_bytes,
            scrub_bytes_per_s=config.scrub_bytes_per_s,
            part_cache_bytes_max=config.read_cache_bytes_max,
            catch_up_bytes_max=config.catch_up_bytes_max,
            catch_up_bytes_per_s=config.catch_up_bytes_per_s,
            snapshot_fetch_bytes_per_s=config.snapshot_fetch_bytes_per_s,
            fsync=config.fsync,
            service_attributes={
                SERVICE_ADDRESS: str(self.service_address),
                LINK_NONCE: self._link_nonce,
            },
            raft=config.raft_config(),
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until `stop` was called and carried out, or until the log fails.

        `task_status.started()` comes once the log is recovered and clients are accepted.

        Raises:
            DLedgerError: the log cannot be opened, or has failed.
        """
        try:
            async with trio.open_nursery() as nursery:
                controller = self._join(nursery)
                if (
                    self._metrics_socket is not None
                ):  # before the log: who asks learns that it is opened
                    await nursery.start(self._make_endpoint(self._metrics_socket, controller).run)
                await nursery.start(self.log.run)
                nursery.start_soon(controller.link.run)
                nursery.start_soon(controller.members.exchange.run)
                nursery.start_soon(self._tick)
                if self._rule_files is not None:
                    nursery.start_soon(self._rule_files.watch, self._rules_changed)
                nursery.start_soon(controller.services.pulls.turns.run)
                nursery.start_soon(controller.services.pulls.looks.run)
                nursery.start_soon(controller.services.pops.turns.run)
                for alarm in self._deliveries:
                    nursery.start_soon(alarm.run)
                await self._wait_until_useful(controller)
                self._start_accepting()
                await nursery.start(self._listener.run, self._sockets)
                nursery.start_soon(self._tls.run)
                if self._secret_file is not None:
                    nursery.start_soon(self._secret_file.run)
                nursery.start_soon(self._registrar.run)  # name servers connect back
                task_status.started()
                await self._stop_wanted.wait()
                await self._orderly_stop.run()
                self._outputs.flush()
                nursery.cancel_scope.cancel()
        finally:
            for sock in self._sockets:
                sock.close()
            if self._metrics_socket is not None:
                self._metrics_socket.close()
            self.state.close()
            self._lock.release()

    def _start_accepting(self) -> None:
        """Let clients connect; raises ListenError if somebody else listens on a port since it was bound."""
        try:
            for sock in self._sockets:
                start_accepting(sock)
        except OSError as error:
            raise _cannot_listen(self.config, error) from error

    async def _wait_until_useful(self, controller: BrokerController) -> None:
        """Wait a little until requests can be carried out or passed on, if this group has had a leader before.

        A client that is refused tries another group at once; one that is let in waits for its answer, and the log may
        take long to recover.
        """
        if not self.log.term or self.log.roster.is_alone:
            return
        useful = trio.Event()
        controller.link.watch(opened=useful.set)
        self.log.watch_role(lambda view: useful.set() if view.is_serving else None)
        if not (self.log.is_serving or controller.link.is_open):
            with trio.move_on_after(USEFUL_WAIT_S):
                await useful.wait()

    def stop(self) -> None:
        """Ask for an orderly stop; asked again, it waits no longer for clients that do not know the new leader."""
        if self._stop_wanted.is_set():
            self._orderly_stop.hurry()
        self._stop_wanted.set()

    @property
    def is_serving(self) -> bool:
        """True while this node leads and takes sends."""
        return self.log.is_serving

    def members(self, group: str) -> dict[str, ConsumerClient]:
        """Return the live members of a consumer group on all nodes, as far as this node knows, by client id."""
        return self._controller.members.members(group)

    # Joining what it consists of.

    def _join(self, nursery: trio.Nursery) -> BrokerController:
        """Build what needs the open log, and only then watch it: the callbacks use the registrar and the controller."""
        loss_watch = LossWatch(self.log, lambda: self.state.last_store_ms > 0)
        self._registrar = self._make_registrar(loss_watch)
        environment = Environment(
            service_address=self.service_address,
            link_nonce=self._link_nonce,
            wall_ms=self._clock,
            clock_ahead_ms=lambda: self._clock.ahead_ms,
            monotonic_ms=monotonic_ms,
            pick=_CHANCE.randrange,
            key_numbers=(os.getpid(), _CHANCE.getrandbits(32)),
            nursery=nursery,
            loss_notice=lambda: loss_watch.notice,
            made=self._registrar.made,
            when_routed=self._call_when_routed,
            find_route=partial(self._find_route, nursery) if self.config.namesrvs else None,
            disk_room=lambda: _disk_room(self.config.store_path),
            client_count=self._client_count,
            stop_stage=lambda: self._orderly_stop.stage,
            node_settings=NodeKeeper(
                self._node_settings, nursery, wall_ms=self._clock, flush=self._outputs.flush
            ),
            settings_changed=self._settings_changed,
            tls=self._tls.client,
            guard=self._guard,
            access_rules=self._make_access_keeper(nursery),
            mistakes=self._mistakes,
        )
        self._controller = BrokerController(
            self.config,
            self.log,
            self.state,
            outputs=self._outputs,
            environment=environment,
        )
        self._orderly_stop = OrderlyStop(
            self.log,
            self._registrar,
            forward_s=self.config.stop_forward_s,
            passed_on_s=self._passed_on_s,
            has_clients=lambda: self._client_count() > 0,
            is_quiet=lambda: self._controller.is_quiet and not self._registrar.waiting_count,
            send_readers_away=lambda: self._controller.send_readers_away(),
            answer_held_pulls=lambda: self._controller.services.pulls.answer_held(),
            now_s=lambda: monotonic_ms() / 1000,
        )
        self._controller.services.live.look()
        self._watch_log(self._controller)
        return self._controller

    def _make_endpoint(self, sock: socket.socket, controller: BrokerController) -> Endpoint:
        """Build the endpoint of the figures; the services exist by then.

        Its modules and libraries are loaded here: most brokers have none, and start a tenth of a second sooner.
        """
        from broker.server.figures.registry import make_endpoint

        return make_endpoint(
            sock,
            Observed(
                log=self.log,
                state=self.state,
                services=controller.services,
                config=lambda: self.config,
                room=lambda: _disk_room(self.config.store_path),
                connection_count=self._client_count,
                turned_away_count=lambda: self._listener.refused_count,
                stop_stage=lambda: self._orderly_stop.stage,
                wall_ms=self._clock,
                clock_ahead_ms=lambda: self._clock.ahead_ms,
            ),
            self._tls.figures,
        )

    def _watch_log(self, controller: BrokerController) -> None:
        """Let the log have what is staged, and learn what becomes of it and of this node."""
        self._deliveries = [
            DeliveryAlarm(task, self._outputs) for task in (controller.timers, controller.delays)
        ]
        controller.commits.wanted = self._staged
        self.log.appender.gatherers.append(controller.commits.flush)
        self.log.watch_role(self._role_changed)
        self.log.roster.watchers.append(self._members_changed)
        self.log.why_not_added = self._why_not_added
        self.log.reader.watch_applied(self._applied)

    def _settings_changed(self, config: BrokerConfig) -> None:
        """Go by other settings from now on; name servers learn of them with the next entry's topics."""
        before, now = self.config.texts.items(), config.texts.items()
        _log.info("settings changed: %s, before: %s", dict(now - before), dict(before - now))
        self.config = config
        self._registrar.perm_mask = config.permission
        self._orderly_stop.forward_s = config.stop_forward_s

    def _make_access_keeper(self, nursery: trio.Nursery) -> AccessKeeper | None:
        if self._rule_files is None or self._guard is None:
            return None
        return AccessKeeper(
            self._rule_files,
            self._guard,
            nursery,
            wall_ms=self._clock,
            flush=self._outputs.flush,
        )

    def _rules_changed(self, rules: AccessRules) -> None:
        """Go by other rules from now on; requests that wait were checked when they came."""
        assert self._guard is not None, "its files are watched"
        self._guard.rules = rules

    def _passed_on_s(self) -> float | None:
        """Return when a client's request was passed on last."""
        passed_on_ms = self._controller.services.router.passed_on_ms
        return None if passed_on_ms is None else passed_on_ms / 1000

    def _client_count(self) -> int:
        """Return how many connections have asked for something, without those of other members."""
        return len(self._origins) - self._controller.services.link_server.link_count

    def _make_registrar(self, loss_watch: LossWatch) -> Registrar:
        """Build the registrar; routes show a follower under an id of its own, so that all members stay visible."""
        config = self.config
        return Registrar(
            self.log,
            lambda: self.state.topics,
            lambda: self.state.settings,
            config.namesrvs,
            cluster=config.cluster,
            broker_name=config.broker_name,
            broker_addr=str(self.service_address),
            follower_id=config.broker_id_as_follower,
            perm_mask=config.permission,
            interval_s=config.register_interval_ms / 1000,
            loss_watch=loss_watch,
            tls=self._tls.client,
        )

    # What happens.

    def _received(self, connection: FrameSocket, frames: list[Frame]) -> int | None:
        """Carry out frames of one read, as many as a turn has time for; their answers are written when it ends.

        Errors are sorted by whose fault they are.
        """
        self._is_turn = True
        end_s = time.perf_counter() + TURN_S
        origin = self._origins.get(connection)
        if origin is None:
            origin = self._origins[connection] = ClientOrigin(connection, self._outputs)
        try:
            return self._controller.handle(origin, frames, lambda: time.perf_counter() >= end_s)
        except FrameError:
            raise  # the client's fault ends its connection
        except Exception as error:  # the root of a connection's work
            # A mistake of ours must not take the others along; which request it came up in is not known here.
            if not self._mistakes.note(error, f"a request of {origin.address}"):
                raise  # the disk's ends the node
            connection.close("internal error")
            return None

    def _received_together(
        self, connections: Sequence[FrameSocket], frames: list[Frame]
    ) -> Sequence[int]:
        """Carry out those requests of several connections that are plain; return their places."""
        self._is_turn = True
        origins = [origin for each in connections if (origin := self._origins.get(each))]
        if len(origins) < len(connections):
            return ()  # each had a frame before, unless that was a mistake of ours
        try:
            return self._controller.handle_together(origins, frames)
        except Exception as error:  # whose it is, the ordinary way finds out
            if not self._mistakes.note(error, f"requests of {len(origins)} clients"):
                raise
            return ()

    def _staged(self) -> None:
        """Let what is staged be proposed: at the end of this turn of the connections while there is one, else soon."""
        if self._is_turn:
            self._has_staged = True
        else:
            self.log.appender.gather_soon()

    def _turn_ended(self) -> bool:
        """Write what the frames of this turn were answered, with one call each, and propose what they staged.

        All connections that were ready had their turn, so nobody else is about to stage.

        Returns:
            Whether others have to go on: with an entry, which members are about to confirm, or with pulls that wait.
        """
        self._is_turn = False
        self._outputs.flush()
        turns = self._controller.services.pulls.turns
        turns.turn_ended()
        if not self._has_staged:
            return turns.waiting_count > 0 or self.log.appender.pending_count > 0
        self._has_staged = False
        self.log.appender.gather_now()
        return True

    def _connection_closed(self, connection: FrameSocket) -> None:
        origin = self._origins.pop(connection, None)
        if origin is not None:
            self._controller.connection_closed(origin.number)
            self._outputs.flush()

    def _applied(self) -> None:
        self._controller.applied()
        self._outputs.flush()  # nothing of what follows answers anybody
        self._registrar.applied()
        if self._is_leading:
            for alarm in self._deliveries:
                alarm.look()

    def _why_not_added(self, node_id: NodeId) -> str | None:
        """Return why a node cannot be a member beside the others; None: it can."""
        return why_same_follower_id(node_id, self.log.roster.in_force.members)

    def _members_changed(self) -> None:
        members = self.log.roster.in_force
        self._clock.members_changed(
            [name for name in members.members if name != self.log.node_id],
            learners=members.learners,
        )
        self._registrar.announce()

    def _role_changed(self, view: RoleView) -> None:
        if view.is_serving and not self._is_leading:
            self._clock.lead()
        if view.is_serving or self._is_leading:
            self._orderly_stop.note_led()
        self._is_leading = view.is_serving
        self._controller.role_changed(view)
        for alarm in self._deliveries:
            alarm.look()
        self._registrar.announce()
        self._outputs.flush()

    def _call_when_routed(self, then: Callable[[], None]) -> None:
        def answer() -> None:
            then()
            self._outputs.flush()

        self._registrar.when_routed(answer)

    def _find_route(
        self, nursery: trio.Nursery, topic: str, then: Callable[[TopicRoute | None], None]
    ) -> None:
        """Ask the name servers for a topic's route in a task, as long as not too many are asked for."""
        if self._routes_asked >= ROUTES_ASKED_MAX:
            then(None)
            return
        self._routes_asked += 1

        async def find() -> None:
            try:
                route = await self._registrar.find_route(topic)
            finally:
                self._routes_asked -= 1
            then(route)
            self._outputs.flush()

        nursery.start_soon(find)

    async def _tick(self) -> None:
        while True:
            await trio.sleep(TICK_S)
            self._controller.tick(monotonic_ms())


def _disk_room(folder: str) -> DiskRoom | None:
    """Ask the file system for the room where a folder lies; None when it cannot say."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return None
    return DiskRoom(usage.total, usage.used, usage.free)


def _read_rules(config: BrokerConfig) -> tuple[RuleFiles | None, AccessGuard | None]:
    """Read who may do what; nothing where everybody may do everything.

    Raises:
        ConfigError: the rules cannot be read.
    """
    if config.acl_file is None:
        return None, None
    files = RuleFiles(Path(config.acl_file))
    try:
        return files, AccessGuard(files.read())
    except AccessRulesError as error:
        raise ConfigError(f"aclEnable=true: {error} (aclFile)") from error


def _cannot_listen(config: BrokerConfig, error: OSError) -> ListenError:
    why = error.strerror or error
    return ListenError(
        f"{config.listen} cannot be listened on: {why} (--listen, or listenPort and bindAddress)"
    )


def _bind(config: BrokerConfig) -> list[socket.socket]:
    """Bind the client port, and the one two below it if that is wanted, or can be had.

    Raises:
        ListenError: the client port cannot be had, or the other one cannot and is wanted.
    """
    try:
        sockets = [bind(config.listen, accepts=False)]
    except OSError as error:
        raise _cannot_listen(config, error) from error
    if config.vip_port is False or (config.vip_port is None and not _may_have_vip_port(config)):
        return sockets
    host, port = bound_address(sockets[0])
    try:
        sockets.append(bind(Address(host, port - 2), accepts=False))
    except OSError as error:
        why = error.strerror or error
        if config.vip_port:
            sockets[0].close()
            text = (
                f"{host}:{port - 2} cannot be listened on: {why} (vipListenEnable, listenPort - 2)"
            )
            raise ListenError(text) from error
        _log.info("port %d is not served beside %d (vipListenEnable): %s", port - 2, port, why)
    return sockets


def _may_have_vip_port(config: BrokerConfig) -> bool:
    """Return whether the port below the client port may be taken unasked: members may want it later."""
    port = config.listen.port - 2
    return port > 0 and all(peer.port != port for peer in config.peers)
