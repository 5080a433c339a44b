"""Tells every name server what this node is: at once when its role or the topics change, and regularly.

With it goes how far this node knows the log to be committed; what the name server remembers of that comes
back with the answer, and is another's to judge.

The connection to a name server stays open, because a name server takes a broker whose connection ends
out of the routes at once: that is how a dead leader disappears from them.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from itertools import count

import trio

from broker.net.address import Address
from broker.net.connection import Connection
from broker.net.listener import connect
from broker.remoting.codes import RequestCode
from broker.remoting.errors import FrameError
from broker.remoting.header import RemotingCommand, decode_command, encode_command, make_request
from broker.remoting.log_point import (
    COMMITTED_FIELD,
    FURTHEST_FIELD,
    LogPoint,
    read_log_point,
    write_log_point,
)
from broker.remoting.registration import BrokerIdentity, encode_registration, identity_ext
from broker.server.went_back import WentBack
from broker.service.tables import wire_topic, wire_version
from broker.store.topics import Topics
from dledger import LogServer

_log = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S = 2.0
_ANSWER_TIMEOUT_S = 3.0
_RETRY_S = 1.0
_RECONNECT_S = 0.2
DEBOUNCE_S = 0.05
"""Topic changes that come together are told together."""


class Registrar:
    """One task for each name server; `announce` makes all of them register now."""

    def __init__(
        self,
        log: LogServer,
        topics: Topics,
        namesrvs: tuple[Address, ...],
        *,
        cluster: str,
        broker_name: str,
        broker_addr: str,
        follower_id: int,
        perm_mask: int,
        interval_s: float,
        went_back: WentBack,
    ) -> None:
        self._log = log
        self._went_back = went_back
        self._topics = topics
        self._cluster = cluster
        self._broker_name = broker_name
        self._broker_addr = broker_addr
        self._follower_id = follower_id
        self._perm_mask = perm_mask
        self._interval_s = interval_s
        self._told_version = topics.version
        self._servers = [
            _NameServer(address, self._register_frame, went_back.judge) for address in namesrvs
        ]

    async def run(self) -> None:
        """Register with every name server until cancelled."""
        async with trio.open_nursery() as nursery:
            for server in self._servers:
                nursery.start_soon(server.run, self._interval_s)

    def announce(self) -> None:
        """Register at once: the role changed."""
        for server in self._servers:
            server.wake(urgent=True)

    def applied(self) -> None:
        """Register soon if the topics changed; only the leader's topics make routes."""
        version = self._topics.version
        if version != self._told_version and self._log.is_serving:
            self._told_version = version
            for server in self._servers:
                server.wake(urgent=False)

    async def leave(self, timeout_s: float) -> None:
        """Unregister everywhere: an orderly stop."""
        with trio.move_on_after(timeout_s):
            async with trio.open_nursery() as nursery:
                for server in self._servers:
                    nursery.start_soon(server.say, self._frame(RequestCode.UNREGISTER_BROKER, b""))

    def _register_frame(self, opaque: int) -> bytes:
        topics = [wire_topic(config, perm_mask=self._perm_mask) for config in self._topics]
        body = encode_registration(wire_version(self._topics.version), topics)
        point = self._went_back.own_point()
        told = {} if point is None else {COMMITTED_FIELD: write_log_point(point)}
        return self._frame(RequestCode.REGISTER_BROKER, body, told)(opaque)

    def _frame(
        self, code: RequestCode, body: bytes, told: Mapping[str, str] | None = None
    ) -> Callable[[int], bytes]:
        broker_id = 0 if self._log.is_serving else self._follower_id
        identity = BrokerIdentity(
            cluster_name=self._cluster,
            broker_name=self._broker_name,
            broker_addr=self._broker_addr,
            broker_id=broker_id,
            term=int(self._log.term),
        )
        ext = {**identity_ext(identity), **(told or {})}
        return lambda opaque: encode_command(make_request(code, opaque, ext, body))


class _NameServer:
    """One name server: a connection that is kept, and a bell to register at once."""

    def __init__(
        self,
        address: Address,
        register_frame: Callable[[int], bytes],
        judge: Callable[[LogPoint], Awaitable[None]],
    ) -> None:
        self._address = address
        self._register_frame = register_frame
        self._judge = judge
        self._opaques = count(1)
        self._bell = trio.Event()
        self._is_urgent = False
        self._connection: Connection | None = None
        self._was_reached = True
        self._answer: RemotingCommand | None = None
        self._answered = trio.Event()

    def wake(self, *, urgent: bool) -> None:
        """Register now, or after DEBOUNCE_S."""
        self._is_urgent = self._is_urgent or urgent
        self._bell.set()

    async def run(self, interval_s: float) -> None:
        """Register again and again; a name server that is down is tried again, the broker goes on."""
        async with trio.open_nursery() as nursery:
            while True:
                self._bell, self._is_urgent = trio.Event(), False
                is_done = await self._register(nursery)
                with trio.move_on_after(interval_s if is_done else _RETRY_S):
                    await self._bell.wait()
                if not self._is_urgent:
                    await trio.sleep(DEBOUNCE_S)

    async def _register(self, nursery: trio.Nursery) -> bool:
        try:
            if self._connection is None or self._connection.is_closed:
                if self._connection is not None:
                    # Whoever answers and hangs up again and again must not keep us busy.
                    await trio.sleep(_RECONNECT_S)
                self._connection = await connect(
                    self._address, nursery, timeout_s=_CONNECT_TIMEOUT_S
                )
                nursery.start_soon(self._receive, self._connection)
            answer = await self.say(self._register_frame)
        except OSError as error:
            self._note(f"cannot be reached: {error}")
            return False
        if answer is None or answer.code != 0:
            self._note("did not answer" if answer is None else f"answered: {answer.remark}")
            return False
        self._note("")
        furthest = read_log_point(answer.ext.get(FURTHEST_FIELD))
        if furthest is not None:
            # It waits for the group, the next registration must not.
            nursery.start_soon(self._judge, furthest)
        return True

    async def say(self, frame: Callable[[int], bytes]) -> RemotingCommand | None:
        """Send one request and wait for the answer; None without one."""
        connection = self._connection
        if connection is None or connection.is_closed:
            return None
        self._answer, self._answered = None, trio.Event()
        connection.send_nowait(frame(next(self._opaques)))
        with trio.move_on_after(_ANSWER_TIMEOUT_S):
            await self._answered.wait()
        return self._answer

    async def _receive(self, connection: Connection) -> None:
        try:
            while frames := await connection.receive():
                self._answer = decode_command(frames[-1])
                self._answered.set()
        except FrameError as error:
            _log.warning("name server %s: %s", self._address, error)
        finally:
            connection.close("no longer read")
            self._answered.set()
            self.wake(urgent=True)

    def _note(self, problem: str) -> None:
        """One log line when it starts to fail, one when it works again."""
        if problem and self._was_reached:
            _log.warning("name server %s %s; trying again", self._address, problem)
        elif not problem and not self._was_reached:
            _log.info("name server %s is reached again", self._address)
        self._was_reached = not problem
