"""What producers and consumers have in common: connections, routes, heartbeats, requests to leaders.

A session lives in the nursery of its owner; every task it starts ends with that nursery.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Final

import anyio
from anyio.abc import TaskGroup

from dledger_mq.client.credentials import Credentials
from dledger_mq.client.errors import (
    ClientClosedError,
    ClientError,
    ConnectionLostError,
    NoRouteError,
    RequestFailedError,
    RequestTimeoutError,
)
from dledger_mq.client.link import Link, Links, Opaques
from dledger_mq.client.name_servers import NameServers
from dledger_mq.client.retry import backoff_s
from dledger_mq.client.routes import Routes
from dledger_mq.client.wire import split_address
from dledger_mq.message.ids import UniqKeyMaker
from dledger_mq.net.loop import current_loop
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.heartbeat import Heartbeat, encode_heartbeat

HEARTBEAT_S: Final = 30.0
HEARTBEAT_TIMEOUT_S: Final = 3.0
REQUEST_TIMEOUT_S: Final = 5.0
TRY_TIMEOUT_S: Final = 1.5  # one node's share of a request; a dead one must not use up all the time

_instances = itertools.count()
log = logging.getLogger(__name__)

RequestHandler = Callable[[Link, RemotingCommand], None]


def local_ip(towards: str) -> str:
    """Return the address of ours from which `towards` (host:port) is reached; sends nothing."""
    address = split_address(towards)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"


def make_client_id(name_servers: tuple[str, ...], instance: str) -> str:
    """Return how brokers know a client: the address that reaches the name servers, and its instance."""
    return f"{local_ip(name_servers[0])}@{instance}"


class Session:
    """The shared half of one producer or consumer.

    Args:
        name_servers: at least one "host:port".
        nursery: owns every task of the session.
        instance: part of the client id; two members of a group must differ in it. Default: unique.
        heartbeat: makes what is sent to the brokers; None means nothing yet.
        tls: encrypts all connections; None: what `tls_for_all` says, else plain text.
        credentials: sign all requests; None: what `credentials_for_all` says, else nothing is signed.
    """

    def __init__(
        self,
        name_servers: tuple[str, ...],
        nursery: TaskGroup,
        *,
        instance: str | None = None,
        heartbeat: Callable[[], Heartbeat | None],
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        ip = local_ip(name_servers[0])
        if instance is None:
            instance = f"{os.getpid()}#{next(_instances)}.{time.time_ns() // 1_000_000}"
        self.client_id = make_client_id(name_servers, instance)
        self.unique_keys = UniqKeyMaker(
            socket.inet_aton(ip),
            os.getpid(),
            random.getrandbits(32),  # distinguishes processes, no secret
        )
        self.opaques = Opaques()
        self.nursery = nursery
        self.loop = current_loop()
        self._handlers: dict[int, RequestHandler] = {}
        self._heartbeat = heartbeat
        self._refused_heartbeats: dict[str, str] = {}  # address -> why, for want of a right
        self.links = Links(
            nursery, self.opaques, self._on_request, self._probe, tls=tls, credentials=credentials
        )
        self.name_servers = NameServers(name_servers, self.links.get)
        self.routes = Routes(self.name_servers, nursery, self.loop.now)

    def start(self) -> None:
        """Start the background tasks."""
        self.nursery.start_soon(self.routes.keep_fresh, name="routes")
        self.nursery.start_soon(self._beat_forever, name="heartbeats")

    def handle(self, code: int, handler: RequestHandler) -> None:
        """Let `handler` take requests with this code that brokers send to us."""
        self._handlers[code] = handler

    def _on_request(self, link: Link, command: RemotingCommand) -> None:
        """Pass a request of the broker to its handler; an unknown code is answered: the broker need not wait."""
        handler = self._handlers.get(command.code)
        if handler is not None:
            handler(link, command)
        elif not command.is_oneway:
            link.answer(
                RemotingCommand(
                    code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                    opaque=command.opaque,
                    flag=1,
                    remark=f"request type {command.code} not supported",
                )
            )

    def _probe(self) -> tuple[int, bytes] | None:
        """Return the request that probes a link: a heartbeat, which is answered at once and may be repeated."""
        heartbeat = self._heartbeat()
        return (RequestCode.HEART_BEAT, encode_heartbeat(heartbeat)) if heartbeat else None

    async def call_group(
        self,
        broker_name: str,
        code: int,
        ext: Mapping[str, str],
        body: bytes = b"",
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        try_timeout_s: float = TRY_TIMEOUT_S,
    ) -> RemotingCommand:
        """Ask a broker group, following its leader, until there is an answer that stands.

        Only for requests that may be carried out twice. An answer whose code asks for another try
        is returned when the time is over, unless an earlier try may have been carried out.

        Raises:
            ConnectionLostError, RequestTimeoutError: as the last try ended of which the outcome is
                unknown, else as the last one ended; `definite` says which.
            NoRouteError: no node of the group is known.
        """
        answer, _ = await self.call_group_in_doubt(
            broker_name, code, ext, body, timeout_s=timeout_s, try_timeout_s=try_timeout_s
        )
        return answer

    async def call_group_in_doubt(
        self,
        broker_name: str,
        code: int,
        ext: Mapping[str, str],
        body: bytes = b"",
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        try_timeout_s: float = TRY_TIMEOUT_S,
        is_gathered: bool = False,
    ) -> tuple[RemotingCommand, ClientError | None]:
        """Ask as `call_group` does; return beside the answer how an earlier try ended that may have been carried out.

        For requests that are answered otherwise when they were carried out before. With `is_gathered` it may wait a
        little for others, and leaves with them (`Link.call`). Raises as `call_group`.
        """
        deadline = self.loop.now() + timeout_s
        tries = 0
        unknown: ClientError | None = None
        while True:
            answer: RemotingCommand | None = None
            failure: ClientError
            try:
                address = await self.routes.find(broker_name, ask=tries > 0)
                link = self.links.get(address) if address is not None else None
            except ClientClosedError as error:
                raise unknown or error from error
            try_s = min(deadline - self.loop.now(), try_timeout_s)
            if address is None or link is None:
                failure = NoRouteError(broker_name, "no node of this group is known")
            else:
                try:
                    answer = await link.call(
                        code, ext, body, timeout_s=try_s, is_gathered=is_gathered
                    )
                except (ConnectionLostError, RequestTimeoutError) as error:
                    failure = error
                    unknown = unknown if error.definite else error
                else:
                    if not is_transient(answer.code):
                        return answer, unknown
                self.routes.report_failure(broker_name, address)
            tries += 1
            if self.loop.now() + backoff_s(tries) >= deadline:
                if unknown is not None:
                    raise unknown
                if answer is not None:
                    return answer, None
                raise failure
            await anyio.sleep(backoff_s(tries))

    async def beat(self) -> None:
        """Send a heartbeat to every node of every known group, and wait for their answers a little."""
        heartbeat = self._heartbeat()
        if heartbeat is None:
            return
        body = encode_heartbeat(heartbeat)
        async with anyio.create_task_group() as nursery:
            for address in sorted(self.routes.all_addresses()):
                nursery.start_soon(self._beat_one, address, body)

    async def make_known(self, broker_name: str) -> None:
        """Send a heartbeat to the node of a group that leads, unless that has one; nothing happens without a leader."""
        address = await self.routes.find(broker_name, ask=False)
        heartbeat = self._heartbeat()
        if address is None or heartbeat is None or self.links.get(address).has_taken_heartbeat:
            return
        await self._beat_one(address, encode_heartbeat(heartbeat))

    async def _beat_one(self, address: str, body: bytes) -> None:
        """Send one heartbeat; a failure is only logged at debug, since the next one comes in any case."""
        try:
            link = self.links.get(address)
            answer = await link.call(
                RequestCode.HEART_BEAT, {}, body, timeout_s=HEARTBEAT_TIMEOUT_S
            )
        except (ClientClosedError, ConnectionLostError, RequestTimeoutError) as error:
            # A client may be left while this waits for its first turn: leaving must not raise for it.
            log.debug("heartbeat not taken: %s", error)
            return
        if answer.code == ResponseCode.SUCCESS:
            link.has_taken_heartbeat = True
            self._refused_heartbeats.pop(address, None)
        elif answer.code == ResponseCode.NO_PERMISSION:
            # Nothing else tells a consumer that it may not consume: it would wait for messages for ever.
            if self._refused_heartbeats.get(address) != answer.remark:
                log.warning("%s refuses our heartbeats: %s", address, answer.remark)
            self._refused_heartbeats[address] = answer.remark or ""
        else:
            log.debug("heartbeat refused by %s: %s", address, answer.remark)

    async def _beat_forever(self) -> None:
        """Beat every 30 s, and soon after a node came back or is new."""
        next_at = anyio.current_time()
        while True:
            await anyio.sleep(1.0)
            now = anyio.current_time()
            if now >= next_at:
                next_at = now + HEARTBEAT_S
                self.links.retire(
                    self.routes.all_addresses() | frozenset(self.name_servers.addresses)
                )
                await self.beat()
            elif self._is_node_without_heartbeat():
                await self.beat()

    def _is_node_without_heartbeat(self) -> bool:
        """Return whether a node of a known group has taken none on its present link; False once the client was left."""
        try:
            links = [self.links.get(address) for address in self.routes.all_addresses()]
        except ClientClosedError:
            return False
        return not all(link.has_taken_heartbeat for link in links)

    async def unregister(self, *, producer_group: str = "", consumer_group: str = "") -> None:
        """Announce to every node that we leave; bounded, failures do not matter."""
        ext = {"clientID": self.client_id}
        if producer_group:
            ext["producerGroup"] = producer_group
        if consumer_group:
            ext["consumerGroup"] = consumer_group

        async def part(address: str) -> None:
            try:
                await self.links.get(address).call(
                    RequestCode.UNREGISTER_CLIENT, ext, timeout_s=0.5
                )
            except (ConnectionLostError, RequestTimeoutError) as error:
                log.debug("our leaving was not noticed: %s", error)

        async with anyio.create_task_group() as nursery:
            for address in self.routes.all_addresses():
                if self.links.get(address).has_taken_heartbeat:
                    nursery.start_soon(part, address)


def is_transient(code: int) -> bool:
    """Return whether an answer only means that another node or a later time may succeed."""
    return code in (
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.GO_AWAY,
    )


def raise_for(answer: RemotingCommand) -> RemotingCommand:
    """Return a successful answer.

    Raises:
        RequestFailedError: the answer has another code.
    """
    if answer.code != ResponseCode.SUCCESS:
        raise RequestFailedError(answer.code, answer.remark or "")
    return answer
