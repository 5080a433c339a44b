"""Tells every name server what this node is: at once when its role or the topics change, and regularly.

With it goes how far this node knows the log to be committed; what the name server remembers of that comes
back with the answer, and is another's to judge. So does a rival: another group's broker under the same name.

A registration shows that it is this node's own: a name server asks back for the token of its connection
(`made`), or wants it signed with the group's secret.

The connection to a name server stays open, because a name server takes a broker whose connection ends
out of the routes at once: that is how a dead leader disappears from them.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count

import trio

from broker.net.dead_peers import notice_dead_peer
from broker.server.route_waits import RouteWaits
from broker.server.watches.loss_watch import LossWatch
from broker.server.watches.name_contested import NameContested
from broker.service.tables import wire_topic, wire_version
from broker.store.group_settings import GroupSettings
from broker.store.topics import DataVersion, Topics
from dledger import GroupSecret, LogServer
from dledger_mq.net.address import Address
from dledger_mq.net.connecting import connect
from dledger_mq.net.connection import Connection
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.errors import BodyError, FrameError
from dledger_mq.remoting.header import RemotingCommand, decode_command, encode_command, make_request
from dledger_mq.remoting.log_point import (
    COMMITTED_FIELD,
    FURTHEST_FIELD,
    LogPoint,
    read_log_point,
    write_log_point,
)
from dledger_mq.remoting.registrant import (
    NONCE_FIELD,
    PROOF_FIELD,
    REGISTER_AGAIN,
    RIVAL_FIELD,
    TOKEN_FIELD,
    registration_proof,
)
from dledger_mq.remoting.registration import BrokerIdentity, encode_registration, identity_ext
from dledger_mq.remoting.route import TopicRoute, decode_route

_log = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S = 2.0
_ANSWER_TIMEOUT_S = 3.0
_RETRY_S = 1.0
_RECONNECT_S = 0.2
_DEAD_AFTER_S = 10
"""A name server that is cut off is connected anew after that; it forgets this node a little later."""

_BUSY_MAX = 10
"""Answers in a row that ask for patience, before that is worth a line in the log."""

DEBOUNCE_S = 0.05
"""Topic changes that come together are sent together."""


class Registrar:
    """One task for each name server; `announce` makes all of them register now."""

    def __init__(
        self,
        log: LogServer,
        topics: Callable[[], Topics],
        settings: Callable[[], GroupSettings],
        namesrvs: tuple[Address, ...],
        *,
        cluster: str,
        broker_name: str,
        broker_addr: str,
        follower_id: int,
        perm_mask: int,
        interval_s: float,
        loss_watch: LossWatch,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:
        """Set up a task for each name server; `run` starts them.

        Args:
            log: of this node; its role and term are registered.
            topics: returns those of the fold; only the leader's make routes.
            settings: returns those of the fold; name servers take what follows from a change, as they do for topics.
            namesrvs: addresses of the name servers.
            cluster: name of the cluster in routes.
            broker_name: of the group in routes.
            broker_addr: host:port where clients reach this node.
            follower_id: the broker id while it does not lead.
            perm_mask: permissions that topics have here at most.
            interval_s: between two registrations when nothing changes.
            loss_watch: judges what the name server remembers of the group's log.
            tls: returns what encrypts a connection; None: it is plain text.
        """
        self._log = log
        self._tls = tls
        self._loss_watch = loss_watch
        self._topics = topics
        self._cluster = cluster
        self._broker_name = broker_name
        self._broker_addr = broker_addr
        self._follower_id = follower_id
        self.perm_mask = perm_mask
        self._interval_s = interval_s
        self._settings = settings
        self._registered = (topics().version, settings().version)
        self._has_registered_point = False
        self._contested = NameContested(log, broker_name)
        self._waits = RouteWaits(self._has_taken)
        self._servers = [self._make_server(address) for address in namesrvs]

    def _make_server(self, address: Address) -> _NameServer:
        return _NameServer(
            address,
            self._register_frame,
            self._loss_watch.judge,
            self._contested.take_answer,
            is_leading=lambda: self._log.is_serving,
            is_member=lambda: self._log.is_accepted,
            tried=self._waits.look,
            tls=self._tls,
        )

    async def run(self) -> None:
        """Register with every name server until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._waits.run)
            for server in self._servers:
                nursery.start_soon(server.run, self._interval_s)

    def when_routed(self, then: Callable[[], None]) -> None:
        """Register with every name server that can be reached, and call `then`, after ROUTE_WAIT_S at the latest.

        What this node registers once it leads no more makes no route, so it is not what is waited for.
        """
        self._waits.add(tuple(server.next_number for server in self._servers), then)
        for server in self._servers:
            server.wake(urgent=True)

    @property
    def waiting_count(self) -> int:
        """The count of answers that wait for name servers."""
        return len(self._waits)

    def _has_taken(self, numbers: tuple[int, ...]) -> bool:
        return all(map(_NameServer.has_taken, self._servers, numbers))

    async def find_route(self, topic: str) -> TopicRoute | None:
        """Return a topic's route as a name server knows it; None: none of them answers, or none knows the topic."""
        for server in self._servers:
            answer = await server.ask(
                lambda opaque: encode_command(
                    make_request(RequestCode.GET_ROUTEINFO_BY_TOPIC, opaque, {"topic": topic})
                )
            )
            if answer is not None and answer.code == 0:
                try:
                    return decode_route(answer.body)
                except BodyError as error:
                    _log.warning("a name server's route of %s: %s", topic, error)
        return None

    def announce(self) -> None:
        """Register at once: the role changed, or who belongs to the group."""
        for server in self._servers:
            server.wake(urgent=True)

    def applied(self) -> None:
        """Register soon if the topics changed (only the leader's make routes), or the log's place can be sent at last.

        A node whose log is not known does not keep its group's name from others at the name server.
        """
        if not self._has_registered_point and self._loss_watch.own_point() is not None:
            self._has_registered_point = True
            self.announce()
        versions = (self._topics().version, self._settings().version)
        if versions != self._registered and self._log.is_serving:
            self._registered = versions
            for server in self._servers:
                server.wake(urgent=False)

    def made(self, token: str) -> bool:
        """Return True if this node registers somewhere with this token."""
        return any(hmac.compare_digest(server.token, token) for server in self._servers)

    async def leave(self, timeout_s: float) -> None:
        """Unregister everywhere: an orderly stop."""
        with trio.move_on_after(timeout_s):
            async with trio.open_nursery() as nursery:
                for server in self._servers:
                    nursery.start_soon(server.leave, self._leave_frame)

    def _register_frame(self, opaque: int, token: str, nonce: str) -> bytes:
        topics = [wire_topic(config, perm_mask=self.perm_mask) for config in self._topics()]
        body = encode_registration(wire_version(self._version()), topics)
        ext = {**self._identity_ext(), TOKEN_FIELD: token}
        point = self._loss_watch.own_point()
        if point is not None:
            ext[COMMITTED_FIELD] = write_log_point(point)
        secret = GroupSecret.of(self._log.config.secret)
        if nonce and secret is not None:
            ext[PROOF_FIELD] = registration_proof(secret.shown, nonce, ext, body)
        return encode_command(make_request(RequestCode.REGISTER_BROKER, opaque, ext, body))

    def _version(self) -> DataVersion:
        """Return a version that changes with the topics and with the settings, and is the same on every node."""
        topics, settings = self._topics().version, self._settings().version
        changed_ms = max(topics.timestamp_ms, settings.timestamp_ms)
        return DataVersion(topics.counter + settings.counter, changed_ms)

    def _leave_frame(self, opaque: int) -> bytes:
        request = make_request(RequestCode.UNREGISTER_BROKER, opaque, self._identity_ext())
        return encode_command(request)

    def _identity_ext(self) -> dict[str, str]:
        identity = BrokerIdentity(
            cluster_name=self._cluster,
            broker_name=self._broker_name,
            broker_addr=self._broker_addr,
            broker_id=0 if self._log.is_serving else self._follower_id,
            term=int(self._log.term),
        )
        return identity_ext(identity)


class _NameServer:
    """One name server: a connection that is kept, and an event to register at once.

    Invariant: one request is outstanding at most. An orderly stop unregisters while `run` may be registering.

    Attributes:
        token: by which this node knows its registrations on the connection as its own.

    Registrations are numbered from 1; `_done_number` is the last one of a leader that was taken.
    """

    def __init__(
        self,
        address: Address,
        register_frame: Callable[[int, str, str], bytes],
        judge: Callable[[LogPoint], Awaitable[None]],
        contested: Callable[[Address, str], None],
        *,
        is_leading: Callable[[], bool],
        is_member: Callable[[], bool],
        tried: Callable[[], None],
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:
        """Set up a name server that was not reached yet; `run` registers with it.

        Args:
            address: where it listens.
            register_frame: makes the request, from an opaque, a token and a nonce.
            judge: judges the furthest place of the group's log that it remembers.
            contested: takes the address of a rival, or an empty text, from each answer.
            is_leading: whether what is registered now makes routes.
            is_member: whether this node belongs to its group; else it registers nowhere.
            tried: called after each try, with or without success.
            tls: returns what encrypts the connection; None: it is plain text.
        """
        self._address = address
        self._register_frame = register_frame
        self._judge = judge
        self._contested = contested
        self._is_leading = is_leading
        self._is_member = is_member
        self._tried = tried
        self._tls = tls
        self.token = secrets.token_hex(16)
        self._nonce = ""
        self._opaques = count(1)
        self._turn = trio.Lock()
        self._asked = 0  # opaque of the request that is outstanding; 0: none is
        self._busy_count = 0
        self._bell = trio.Event()
        self._is_urgent = False
        self._begun_count = 0
        self._done_number = 0
        self._has_led = False  # when the latest registration was made
        self._connection: Connection | None = None
        self._next_connect_s = 0.0
        self._has_left = False
        self._was_reached = True
        self._answer: RemotingCommand | None = None
        self._answered = trio.Event()

    def wake(self, *, urgent: bool) -> None:
        """Register now, or after DEBOUNCE_S."""
        self._is_urgent = self._is_urgent or urgent
        self._bell.set()

    @property
    def next_number(self) -> int:
        """The number of the first registration that begins from now on."""
        return self._begun_count + 1

    def has_taken(self, number: int) -> bool:
        """Return True if a registration as leader with at least this number was taken, or need not be waited for."""
        return self._done_number >= number or not self._was_reached

    async def run(self, interval_s: float) -> None:
        """Register again and again, until `leave`; a name server that is down is tried again, the broker goes on."""
        async with trio.open_nursery() as nursery:
            while not self._has_left:
                self._bell, self._is_urgent = trio.Event(), False
                if not self._is_member():
                    self._withdraw()
                    await self._bell.wait()
                    continue
                self._begun_count += 1
                is_done = await self._register(nursery)
                if is_done and self._has_led:
                    self._done_number = self._begun_count
                self._tried()
                if not self._is_connected:
                    continue  # connecting takes its time
                with trio.move_on_after(interval_s if is_done else _RETRY_S):
                    await self._bell.wait()
                if not self._is_urgent:
                    await trio.sleep(DEBOUNCE_S)

    def _withdraw(self) -> None:
        """End the connection: the name server takes this node out of the routes."""
        if self._connection is not None and self._is_connected:
            self._connection.close("this node is no member of its group")

    async def leave(self, frame: Callable[[int], bytes]) -> None:
        """Unregister, and register no more."""
        self._has_left = True
        await self.ask(frame)

    @property
    def _is_connected(self) -> bool:
        return self._connection is not None and not self._connection.is_closed

    async def _connect(self, nursery: trio.Nursery) -> None:
        """Connect, at most every _RECONNECT_S: whoever is down, or hangs up again and again, must not keep us busy.

        Raises:
            OSError: nobody is there.
        """
        await trio.sleep_until(self._next_connect_s)
        self._next_connect_s = trio.current_time() + _RECONNECT_S
        self._connection = await connect(
            self._address,
            nursery,
            timeout_s=_CONNECT_TIMEOUT_S,
            tune=partial(notice_dead_peer, after_s=_DEAD_AFTER_S),
            tls=self._tls(),
        )
        self.token, self._nonce = secrets.token_hex(16), ""
        nursery.start_soon(self._receive, self._connection)

    async def _register(self, nursery: trio.Nursery) -> bool:
        """Register once and take up what the answer says; return True if the name server has taken it."""
        try:
            if not self._is_connected:
                await self._connect(nursery)
                if self._has_left:
                    return False  # a stop had nobody to unregister from
            answer = await self.ask(self._next_frame)
            nonce = "" if answer is None else answer.ext.get(NONCE_FIELD, "")
            if nonce not in ("", self._nonce):
                self._nonce = nonce
                answer = await self.ask(self._next_frame)
        except OSError as error:
            self._note(f"cannot be reached: {error}")
            return False
        rival = "" if answer is None else answer.ext.get(RIVAL_FIELD, "")
        if rival or (answer is not None and answer.code == 0):
            self._contested(self._address, rival)
        is_busy = answer is not None and answer.code == ResponseCode.SYSTEM_BUSY
        self._busy_count = self._busy_count + 1 if is_busy else 0
        if 0 < self._busy_count <= _BUSY_MAX:
            return False  # nothing is wrong: it cannot decide yet
        if answer is None or answer.code != 0:
            self._note("did not answer" if answer is None else f"answered: {answer.remark}")
            return False
        self._note("")
        furthest = read_log_point(answer.ext.get(FURTHEST_FIELD))
        if furthest is not None:
            # It waits for the group, the next registration must not.
            nursery.start_soon(self._judge, furthest)
        return True

    def _next_frame(self, opaque: int) -> bytes:
        self._has_led = self._is_leading()
        return self._register_frame(opaque, self.token, self._nonce)

    async def ask(self, frame: Callable[[int], bytes]) -> RemotingCommand | None:
        """Send one request, after the one before has ended, and wait for the answer; None without one."""
        async with self._turn:
            connection = self._connection
            if connection is None or connection.is_closed:
                return None
            assert not self._asked, f"{self._address}: request {self._asked} is outstanding"
            self._answer, self._answered = None, trio.Event()
            self._asked = next(self._opaques)
            try:
                connection.send_nowait(frame(self._asked))
                with trio.move_on_after(_ANSWER_TIMEOUT_S):
                    await self._answered.wait()
            finally:
                self._asked = 0
            return self._answer

    async def _receive(self, connection: Connection) -> None:
        """Read answers until the connection ends, which wakes whoever waits: the next registration connects anew."""
        try:
            while frames := await connection.receive():
                for command in map(decode_command, frames):
                    if command.is_response and command.opaque == self._asked != 0:
                        self._answer = command
                        self._answered.set()
                    elif command.code == REGISTER_AGAIN and not command.is_response:
                        self.wake(urgent=True)
        except FrameError as error:
            _log.warning("name server %s: %s", self._address, error)
        finally:
            connection.close("no longer read")
            self._answered.set()
            self.wake(urgent=True)

    def _note(self, problem: str) -> None:
        """Log one line when it starts to fail, one when it works again."""
        if problem and self._was_reached:
            _log.warning("name server %s %s; trying again", self._address, problem)
        elif not problem and not self._was_reached:
            _log.info("name server %s is reached again", self._address)
        self._was_reached = not problem
