"""The connection of a node to the leader's client port: forwarded requests and shared clients.

Requests are pipelined, each with an opaque of the link. When the connection breaks, each waiter is notified;
what that means for a request is the router's to say. The other end is handlers/link_server.py.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import trio

from broker.server.links.private_codes import (
    LINK_NONCE,
    OUTDATED_HELLO,
    SERVICE_ADDRESS,
    PrivateCode,
    link_proof,
)
from dledger import GroupSecret, LogServer, NodeId
from dledger_mq.net.address import Address, parse_address
from dledger_mq.net.connecting import connect
from dledger_mq.net.connection import Connection
from dledger_mq.net.frame_socket import UNSENT_BYTES_MAX
from dledger_mq.remoting.errors import FrameError
from dledger_mq.remoting.frame import Frame
from dledger_mq.remoting.header import (
    RemotingCommand,
    decode_command,
    encode_command,
    make_request,
)

_log = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S = 1.0
_HELLO_TIMEOUT_S = 2.0
_RETRY_S = 0.1
_LINGER_MS = 2000
_OPAQUE_MASK = 0x7FFF_FFFF


SMALL_BYTES: Final = 16 * 1024
SMALL_ROOM_BYTES: Final = UNSENT_BYTES_MAX * 3 // 4
"""Bytes on their way up to which small requests (offsets, locks, heartbeats) find room; large ones stop earlier."""


class LinkWaiter(Protocol):
    """Something that is notified once of the leader's answer."""

    def answered(self, response: RemotingCommand) -> None:
        """Take the leader's answer."""
        ...

    def broken(self, reason: str) -> None:
        """Continue without one: the connection ended, or time is over. The leader may have done what was asked."""
        ...


@dataclass(slots=True)
class _Asked:
    """A request that waits for its answer.

    Attributes:
        size_bytes: of its body, at least 0.
    """

    waiter: LinkWaiter
    deadline_ms: int
    size_bytes: int


class LeaderConnection:
    """One open connection to one leader, and the waiters on it.

    Attributes:
        asked: what waits for an answer, by opaque.
        asked_bytes: the sum of `size_bytes` in `asked`.
        stale_since_ms: since when its node is known to lead no more; None while it leads.
    """

    def __init__(self, leader_id: str, connection: Connection) -> None:
        self.leader_id = leader_id
        self.connection = connection
        self.asked: dict[int, _Asked] = {}
        self.asked_bytes = 0
        self.stale_since_ms: int | None = None
        self._opaque = 0

    def request(self, code: int, ext: dict[str, str], body: bytes, *, is_oneway: bool) -> int:
        """Send a request; return its opaque."""
        self._opaque = (self._opaque + 1) & _OPAQUE_MASK
        request = make_request(code, self._opaque, ext, body, is_oneway=is_oneway)
        self.connection.send_nowait(encode_command(request))
        return self._opaque

    def answered(self, response: RemotingCommand) -> None:
        """Hand an answer to its waiter, unless that was notified before."""
        asked = self.asked.pop(response.opaque, None)
        if asked is not None:
            self._remove_bytes(asked)
            asked.waiter.answered(response)

    def expire(self, now_ms: int) -> None:
        """Notify the waiters whose time is over."""
        late = [opaque for opaque, asked in self.asked.items() if asked.deadline_ms <= now_ms]
        for opaque in late:
            asked = self.asked.pop(opaque)
            self._remove_bytes(asked)
            asked.waiter.broken(f"the leader {self.leader_id} did not answer in time")

    def _remove_bytes(self, asked: _Asked) -> None:
        self.asked_bytes -= asked.size_bytes
        assert self.asked_bytes >= 0, f"{self.asked_bytes} bytes are on their way to the leader"

    def broken(self) -> None:
        """Notify all waiters that the connection ended."""
        asked, self.asked, self.asked_bytes = self.asked, {}, 0
        for item in asked.values():
            item.waiter.broken(f"the connection to the leader {self.leader_id} broke")


class LeaderLink:
    """Keeps a connection to whoever leads, while that is another node.

    When the leader changes, the old connection stays a little for the answers that are on their way,
    and the new one is opened at once.
    """

    def __init__(
        self,
        log: LogServer,
        *,
        secret: GroupSecret | None,
        asked_max: int,
        asked_bytes_max: int,
        now_ms: Callable[[], int],
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
    ) -> None:
        """Set up the link to the leader, which `run` keeps open; others subscribe with `watch` and `register`."""
        self._log = log
        self._secret = secret
        self._tls = tls
        self._asked_max = asked_max
        self._asked_bytes_max = min(asked_bytes_max, UNSENT_BYTES_MAX // 2)
        self._now_ms = now_ms
        self._begun_watchers: list[Callable[[], None]] = []
        self._opened_watchers: list[Callable[[], None]] = []
        self._settled_watchers: list[Callable[[], None]] = []
        self._handlers: dict[int, Callable[[RemotingCommand], object]] = {}
        self._links: list[LeaderConnection] = []
        self._wake = trio.Event()

    def watch(
        self,
        *,
        begun: Callable[[], None] | None = None,
        opened: Callable[[], None] | None = None,
        settled: Callable[[], None] | None = None,
    ) -> None:
        """Call `begun` for each leader that can be reached: what it asks stands ahead of what is passed on.

        Then `opened` is called whenever requests can be passed on, `settled` after answers were handed over.
        """
        if begun is not None:
            self._begun_watchers.append(begun)
        if opened is not None:
            self._opened_watchers.append(opened)
        if settled is not None:
            self._settled_watchers.append(settled)

    def register(self, code: PrivateCode, handle: Callable[[RemotingCommand], object]) -> None:
        """Call `handle` with each oneway request of this code that the leader sends."""
        self._handlers[code] = handle

    @property
    def _current(self) -> LeaderConnection | None:
        """The link to the node that leads now; None without one."""
        leader_id = self._log.leader_id
        for link in reversed(self._links):
            if link.leader_id == leader_id:
                return link
        return None

    @property
    def is_open(self) -> bool:
        """True while a request can be passed on."""
        return self._current is not None

    @property
    def asked_count(self) -> int:
        """The count of requests that wait for a leader's answer."""
        return sum(len(link.asked) for link in self._links)

    def ask(
        self, code: int, waiter: LinkWaiter, *, ext: dict[str, str], body: bytes, timeout_ms: int
    ) -> bool:
        """Pass a request on; return False if there is no connection or too many wait."""
        link = self._current
        if link is None or len(link.asked) >= self._asked_max:
            return False
        opaque = link.request(code, ext, body, is_oneway=False)
        assert opaque not in link.asked, f"two requests on their way have the opaque {opaque}"
        link.asked[opaque] = _Asked(waiter, self._now_ms() + timeout_ms, len(body))
        link.asked_bytes += len(body)
        return True

    def has_room(self, size_bytes: int) -> bool:
        """Return True if a request of this size may join those on their way to the leader.

        More than a connection can bear would end it, and leave the outcome of all of them unknown. Small ones find
        room where large ones do not; one alone always does. Without a connection there is nothing to fill.
        """
        link = self._current
        if link is None:
            return True
        on_their_way = max(link.asked_bytes, link.connection.unsent_bytes)
        if not on_their_way:
            return True
        bytes_max = SMALL_ROOM_BYTES if size_bytes <= SMALL_BYTES else self._asked_bytes_max
        return on_their_way + size_bytes <= bytes_max and len(link.asked) < self._asked_max

    def send(self, code: int, *, ext: dict[str, str], body: bytes) -> bool:
        """Pass on a request that wants no answer; return False if there is no connection."""
        link = self._current
        if link is None:
            return False
        link.request(code, ext, body, is_oneway=True)
        return True

    def leader_changed(self) -> None:
        """Use the link to the leader that is known now; one that was kept from its earlier term begins again."""
        if self.is_open:
            self._begin()
        self._wake.set()

    def _begin(self) -> None:
        for begun in self._begun_watchers:
            begun()

    def expire(self, now_ms: int) -> None:
        """Notify the waiters whose time is over, and close links to nodes that lead no longer."""
        leader_id = self._log.leader_id
        for link in tuple(self._links):
            link.expire(now_ms)
            if link.leader_id == leader_id:
                link.stale_since_ms = None
            elif link.stale_since_ms is None:
                link.stale_since_ms = now_ms
            elif not link.asked or now_ms - link.stale_since_ms > _LINGER_MS:
                link.connection.close("the leader changed")

    async def run(self) -> None:
        """Connect to the leader, again and again, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._wake = trio.Event()
                address = self._leader_address()
                if address is None or self.is_open:
                    await self._wake.wait()
                    continue
                leader_id = str(self._log.leader_id)
                try:
                    link = await self._open(leader_id, address, nursery)
                except (OSError, FrameError) as error:
                    _log.debug("link to leader %s at %s: %s", leader_id, address, error)
                    with trio.move_on_after(_RETRY_S):
                        await self._wake.wait()
                    continue
                self.opened(link)
                nursery.start_soon(self._serve, link)

    def _leader_address(self) -> Address | None:
        """Return where another node that leads serves clients; None while that is not known."""
        leader_id = self._log.leader_id
        if leader_id is None or leader_id == self._log.config.raft.node_id:
            return None
        text = self._log.status.attributes(leader_id).get(SERVICE_ADDRESS, "")
        return parse_address(text) if text else None

    async def _open(
        self, leader_id: str, address: Address, nursery: trio.Nursery
    ) -> LeaderConnection:
        connection = await connect(address, nursery, timeout_s=_CONNECT_TIMEOUT_S, tls=self._tls())
        try:
            await self._send_hello(connection, leader_id)
        except BaseException:  # also a cancellation: nobody else knows of the connection yet
            connection.close("the link was not opened")
            raise
        return LeaderConnection(leader_id, connection)

    def hello(self, leader_id: str) -> bytes:
        """Build the frame with which a link begins; its opaque is 0."""
        group = self._log.config.group
        node_id = str(self._log.config.raft.node_id)
        nonce = self._log.status.attributes(NodeId(leader_id)).get(LINK_NONCE, "")
        secret = None if self._secret is None else self._secret.shown
        proof = link_proof(secret, group=group, node_id=node_id, nonce=nonce)
        ext = {"group": group, "node": node_id, "nonce": nonce, "proof": proof}
        return encode_command(make_request(PrivateCode.HELLO, 0, ext))

    async def _send_hello(self, connection: Connection, leader_id: str) -> None:
        """Open the link, which must come before all other frames.

        It raises ConnectionError, on which `run` tries again.
        """
        connection.send_nowait(self.hello(leader_id))
        frames = []
        with trio.move_on_after(_HELLO_TIMEOUT_S):
            frames = await connection.receive()
        if not frames:
            raise ConnectionError("no answer to the link's hello")
        response = decode_command(frames[0])
        if response.code == OUTDATED_HELLO:
            raise ConnectionError(f"{leader_id} was started again: {response.remark}")
        if response.code != 0:
            _log.warning("%s refused the link: %s", leader_id, response.remark)
            raise ConnectionError(f"refused: {response.remark}")

    async def _serve(self, link: LeaderConnection) -> None:
        try:
            while frames := await link.connection.receive():
                self.received(link, frames)
        except FrameError as error:
            _log.warning("the leader %s sent what cannot be read: %s", link.leader_id, error)
        finally:
            link.connection.close("the link ends")
            self.ended(link)

    # What happens to a link, whoever carries its bytes.

    def has(self, link: LeaderConnection) -> bool:
        """Return True if a link was opened and has not ended."""
        return link in self._links

    def opened(self, link: LeaderConnection) -> None:
        """Add a link whose hello the leader has taken: requests can be passed on."""
        assert link not in self._links, f"the link to {link.leader_id} was opened twice"
        self._links.append(link)
        self._begin()
        for opened in self._opened_watchers:
            opened()
        self._settle()

    def received(self, link: LeaderConnection, frames: list[Frame]) -> None:
        """Take answers of the leader, and requests of its own.

        Raises:
            FrameError: a header cannot be read; the connection has to be closed.
        """
        for frame in frames:
            self._take(link, decode_command(frame))
        self._settle()

    def ended(self, link: LeaderConnection) -> None:
        """Remove a link whose connection is gone."""
        self._links.remove(link)
        link.broken()
        assert not link.asked, f"{len(link.asked)} waiters joined a link that had ended"
        self._settle()
        self._wake.set()

    def _settle(self) -> None:
        for settled in self._settled_watchers:
            settled()

    def _take(self, link: LeaderConnection, command: RemotingCommand) -> None:
        if command.is_response:
            link.answered(command)
        elif command.code in self._handlers:
            self._handlers[command.code](command)
