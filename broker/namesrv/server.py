"""The name server as a process: listener, expiry of silent brokers, configuration values.

It must not know what a request means: `handlers` answers it.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from secrets import token_hex
from time import perf_counter
from typing import Final

import trio

from broker.access.errors import AccessRulesError
from broker.access.guard import AccessGuard
from broker.access.rule_files import RuleFiles
from broker.access.rules import AccessRules
from broker.namesrv.asking import ask_broker
from broker.namesrv.config import NameServerConfig
from broker.namesrv.errors import NameServerConfigError
from broker.namesrv.handlers import RequestHandlers, RequestSender
from broker.namesrv.kv import KvStore, LocalKv
from broker.namesrv.observed import NameServerParts, RequestCounts
from broker.namesrv.registrants import Ask, Registrants
from broker.namesrv.replicated_kv import ReplicatedKv
from broker.namesrv.routes import RouteTable
from broker.net.dead_peers import notice_dead_peer
from broker.net.listener import Listener, ListenerLimits
from broker.tls.keeper import TlsKeeper
from dledger.errors import StoreLockedError
from dledger.storage.lock import StoreLock
from dledger.storage.posix import PosixDisk
from dledger_mq.net.address import Address
from dledger_mq.net.frame_socket import FrameSocket
from dledger_mq.net.listening import bind, bound_address
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.errors import FrameError
from dledger_mq.remoting.frame import Frame
from dledger_mq.remoting.header import (
    RemotingCommand,
    decode_command,
    encode_command,
    make_request,
    make_response,
)
from dledger_mq.remoting.registrant import REGISTER_AGAIN

_log = logging.getLogger(__name__)

LOCK_NAME: Final = "kvConfig.lock"
"""Beside what is locked: its folder may be that of a broker, too."""

EXPIRY_INTERVAL_S = 5.0
DEAD_AFTER_S = 15
"""A broker whose machine died, or is cut off, is taken out after about so long."""

CODES_MAX = 256
"""Codes that are counted each by itself; whoever makes more up has them counted together."""

OTHER_CODE = -1

SLOW_REQUESTS_MAX = 1000
"""Configuration changes that wait for their commit, and registrations for their broker; more are answered as busy.
Changes find it full at half: whoever sends many keeps no broker out."""


TURN_S: Final = 0.01
"""Requests of one read are answered for so long; then others have their turn. A large registration takes longer."""

_OF_BROKERS: Final = frozenset(
    {
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.QUERY_DATA_VERSION,
        RequestCode.BROKER_HEARTBEAT,
    }
)
"""Requests of brokers, which show otherwise who they are: registrations carry a proof of their own (registrants.py)."""


class NameServer:
    """One name server. `run` does everything; it may run in a nursery next to brokers (--dev).

    Attributes:
        metrics_address: where figures are given, once it runs; None: nowhere.
    """

    def __init__(self, config: NameServerConfig, *, limits: ListenerLimits | None = None) -> None:
        """Take the configuration; `run` opens the sockets.

        Raises:
            ConfigError: a certificate cannot be used.
        """
        self._config = config
        self._limits = limits
        self.routes = RouteTable()
        self.metrics_address: Address | None = None
        self._tls = TlsKeeper(config.tls)

    async def run(
        self, *, task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until cancelled; started with the address that is bound.

        Raises:
            NameServerConfigError: the address or the store cannot be used, or the group cannot be joined.
        """
        files, guard = _read_rules(self._config)
        with _lock_store(self._config.folder):
            await self._run(files, guard, task_status=task_status)

    async def _run(
        self,
        files: RuleFiles | None,
        guard: AccessGuard | None,
        *,
        task_status: trio.TaskStatus[Address],
    ) -> None:
        """Serve until cancelled; nobody else uses the store."""
        kv = _open_kv(self._config)
        try:
            sock = _bind(self._config.listen)
            async with trio.open_nursery() as nursery:
                ask = partial(ask_broker, tls=self._tls.client)
                service = _Service(self._config, self.routes, kv, nursery, ask=ask, guard=guard)
                if files is not None:
                    nursery.start_soon(files.watch, service.adopt)
                listener = Listener(
                    service.handle,
                    closed=service.closed,
                    limits=self._limits,
                    door=self._tls.door,
                )
                if self._config.metrics is not None:
                    parts = NameServerParts(
                        node_id=str(bound_address(sock)),
                        routes=self.routes,
                        kv=kv,
                        requests=service.counts,
                        connection_count=lambda: len(listener.connections),
                        turned_away_count=lambda: listener.refused_count,
                    )
                    # Loaded with their libraries by those that have an endpoint: others start sooner.
                    from broker.namesrv.figures import make_endpoint

                    figures = _bind(self._config.metrics, "--metrics")
                    self.metrics_address = bound_address(figures)
                    await nursery.start(make_endpoint(figures, parts, self._tls.figures).run)
                nursery.start_soon(service.expire)
                nursery.start_soon(self._tls.run)
                nursery.start_soon(self._config.secrets.run)
                await nursery.start(listener.run, [sock])
                task_status.started(bound_address(sock))
        finally:
            with trio.CancelScope(shield=True):  # bounded: the store's own time limit
                await kv.close()


class _Service:
    """Joins the listener with the handlers."""

    def __init__(
        self,
        config: NameServerConfig,
        routes: RouteTable,
        kv: KvStore,
        nursery: trio.Nursery,
        *,
        ask: Ask,
        guard: AccessGuard | None,
    ) -> None:
        self._guard = guard
        self._routes = routes
        self._nursery = nursery
        self._slow_count = 0
        self.counts = RequestCounts({})
        self._registrants = Registrants(
            routes,
            ask,
            secrets=config.secrets.accepted,
            draw_nonce=partial(token_hex, 16),
            now_ms=_now_ms,
        )
        self._handlers = RequestHandlers(
            routes,
            kv,
            _now_ms,
            self._registrants,
            ring=_ring,
            settings={
                "listenPort": str(config.listen.port),
                "bindAddress": config.listen.host,
                "orderMessageEnable": str(config.orders_messages).lower(),
            },
            orders_messages=config.orders_messages,
        )

    def handle(self, connection: FrameSocket, frames: list[Frame]) -> int:
        """Answer the requests of one read with one write, as many as there is time for; return how many."""
        asker = RequestSender(connection, connection.peer, lambda: connection.is_closed)
        answers: list[bytes] = []
        taken, end_s = 0, perf_counter() + TURN_S
        try:
            for frame in frames:
                if taken and perf_counter() >= end_s:
                    break
                taken += 1
                request = decode_command(frame)
                try:
                    answer = self._refusal(connection, frame, request)
                    answer = answer or self._answer(connection, asker, request)
                    if answer is not None and not request.is_oneway:
                        answers.append(_encoded(answer))
                except Exception:  # noqa: BLE001 - the root of a request's work
                    if answers:
                        connection.send_many(answers)  # before it is closed
                        answers = []
                    _end(connection, request)
                    break
        finally:  # also when a header cannot be read: those before it were served
            if answers:
                connection.send_many(answers)
        return taken

    def adopt(self, rules: AccessRules) -> None:
        """Go by other rules from now on."""
        assert self._guard is not None, "its files are watched"
        self._guard.rules = rules

    def _refusal(
        self, connection: FrameSocket, frame: Frame, request: RemotingCommand
    ) -> RemotingCommand | None:
        """Return the answer to a request that its sender may not make; brokers show otherwise who they are."""
        if self._guard is None or request.is_response or request.code in _OF_BROKERS:
            return None
        is_route = request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
        if is_route and self._registrants.has_signed(connection):
            return None  # a broker that shares out the queues of all groups (adr/0235); it has no account
        problem = self._guard.refusal(connection.peer, frame, request)
        if problem is None:
            return None
        return make_response(request.opaque, ResponseCode.NO_PERMISSION, problem)

    def _answer(
        self, connection: FrameSocket, asker: RequestSender, request: RemotingCommand
    ) -> RemotingCommand | None:
        """Return the answer, or None when it comes later or never."""
        if request.is_response:
            return None  # the name server asks nobody
        by_code = self.counts.by_code
        code = request.code if request.code in by_code or len(by_code) < CODES_MAX else OTHER_CODE
        by_code[code] = by_code.get(code, 0) + 1
        if not self._handlers.is_slow(request, asker):
            return self._handlers.answer(request, asker)
        share = 1 if request.code == RequestCode.REGISTER_BROKER else 2
        if self._slow_count >= SLOW_REQUESTS_MAX // share:
            self.counts.busy += 1
            return make_response(
                request.opaque,
                ResponseCode.SYSTEM_BUSY,
                f"{self._slow_count} registrations and changes wait already, at most {SLOW_REQUESTS_MAX // share}: "
                "nothing was done, try again",
            )
        self._slow_count += 1
        self._nursery.start_soon(self._answer_later, connection, asker, request)
        return None

    async def _answer_later(
        self, connection: FrameSocket, asker: RequestSender, request: RemotingCommand
    ) -> None:
        """Answer a slow request; a fault of ours ends only its connection, so that its sender need not wait."""
        try:
            answer = await self._handlers.answer_slow(request, asker)
        except Exception:  # noqa: BLE001 - the root of a request's work
            _end(connection, request)
            return
        finally:
            self._slow_count -= 1
            assert self._slow_count >= 0, f"{self._slow_count} slow requests wait"
        if not request.is_oneway:
            connection.send_nowait(_encoded(answer))

    def closed(self, connection: FrameSocket) -> None:
        """Remove the brokers that registered over a connection."""
        self._registrants.closed(connection)
        for identity in self._routes.connection_closed(connection):
            _log.info(
                "broker %s at %s left: %s",
                identity.broker_name,
                identity.broker_addr,
                connection.close_reason,
            )

    async def expire(self) -> None:
        """Take silent brokers out, for ever."""
        while True:
            await trio.sleep(EXPIRY_INTERVAL_S)
            for identity in self._routes.expire(_now_ms()):
                self.counts.silent += 1
                _log.warning(
                    "broker %s at %s is silent: taken out",
                    identity.broker_name,
                    identity.broker_addr,
                )


def _read_rules(config: NameServerConfig) -> tuple[RuleFiles | None, AccessGuard | None]:
    """Read who may do what; nothing where everybody may.

    Raises:
        NameServerConfigError: the rules cannot be read.
    """
    if config.acl_file is None:
        return None, None
    files = RuleFiles(config.acl_file)
    try:
        return files, AccessGuard(files.read())
    except AccessRulesError as error:
        raise NameServerConfigError(f"aclEnable=true: {error} (aclFile)") from error


def _now_ms() -> int:
    return int(trio.current_time() * 1000)


def _ring(connection: Hashable) -> None:
    """Make a broker register again."""
    if isinstance(connection, FrameSocket):
        connection.send_nowait(encode_command(make_request(REGISTER_AGAIN, 0, is_oneway=True)))


def _end(connection: FrameSocket, request: RemotingCommand) -> None:
    """Log the exception that is being handled, and close the connection: what was done by then is not known.

    A mistake of ours must not take the others along; on a broker's next connection it registers anew.
    """
    _log.exception("internal error in request %d of %s", request.code, connection.peer)
    connection.close("internal error")


def _encoded(answer: RemotingCommand) -> bytes:
    """Encode an answer; a refusal when it does not fit a frame."""
    try:
        return encode_command(answer)
    except FrameError as error:
        refusal = make_response(
            answer.opaque, ResponseCode.SYSTEM_ERROR, f"the answer does not fit a frame: {error}"
        )
        return encode_command(refusal)


def _bind(address: Address, option: str = "--listen") -> socket.socket:
    """Bind the port; what connects there is noticed when its machine dies.

    Raises:
        NameServerConfigError: the port is taken, or the address is not ours.
    """
    try:
        sock = bind(address)
    except OSError as error:
        raise NameServerConfigError(
            f"{option} {address}: cannot listen there: {error.strerror or error}"
        ) from error
    notice_dead_peer(sock, after_s=DEAD_AFTER_S)
    return sock


def _lock_store(folder: Path | None) -> AbstractContextManager[object]:
    """Keep other name servers from a store: each would write over what the other has answered.

    Raises:
        NameServerConfigError: one uses it, or the lock cannot be taken.
    """
    if folder is None:
        return nullcontext()
    try:
        return StoreLock(folder, LOCK_NAME)
    except StoreLockedError as error:
        raise NameServerConfigError(f"--store {folder}: {error}, another name server") from error
    except OSError as error:
        raise NameServerConfigError(
            f"--store {folder}: the lock {LOCK_NAME} cannot be taken: {error.strerror or error}"
        ) from error


def _open_kv(config: NameServerConfig) -> KvStore:
    disk = None
    if config.folder is not None:
        try:
            disk = PosixDisk(config.folder)
        except OSError as error:
            raise NameServerConfigError(
                f"--store {config.folder}: the folder cannot be made: {error.strerror}"
            ) from error
    return LocalKv(disk) if config.group is None else ReplicatedKv(config.group)
