"""The exchange that gives all nodes of a group the same list of live clients (docs/formats/broker_link.md).

Each node sends its own clients to the leader; the leader joins them and returns the union. What does not fit a frame is
not exchanged, and that is logged: the clients of each node go on there, and those of other nodes are as they were last
known.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable

import msgspec
import trio

from broker.server.handlers.followers import Followers
from broker.server.links.link import LeaderLink
from broker.server.links.private_codes import NOT_CARRIED_OUT, PrivateCode
from broker.server.mistakes import Mistakes
from broker.server.requests.origin import ClientOrigin, Outputs, answer
from broker.service.catalog import Creation
from broker.service.clients import ClientUnion, ConsumerClient, LocalClients
from dledger import NO_INDEX, DLedgerError, LogServer, Role
from dledger_mq.remoting.errors import BodyError, FrameError
from dledger_mq.remoting.header import RemotingCommand, encode_command, make_request

_log = logging.getLogger(__name__)

SYNC_INTERVAL_S = 1.0
SYNC_TIMEOUT_MS = 2_000
CREATE_TIMEOUT_S = 2.0
"""A heartbeat waits this long for its group and retry topic; clients give it 3 to 5 s."""


class SyncRequest(msgspec.Struct, frozen=True):
    """Body of SYNC_CLIENTS.

    Attributes:
        node: the id of the node that sends them.
        changes: number of the state of its clients; comparable within one connection.
        clients: its consumers; None: as they were sent before with `changes`.
        union: the version of the union that the node has.
        applied_position: byte place up to which it has applied the log; 0 from one that is not to be read from, as it
            stops or is behind, and from older versions.
        disk_used_percent: share of the disk of its store that is in use; None: it does not know, or is of an older
            version.
    """

    node: str
    changes: int
    clients: list[ConsumerClient] | None
    union: tuple[str, int]
    applied_position: int = 0
    disk_used_percent: float | None = None


class SyncReply(msgspec.Struct, frozen=True):
    """Answer to SYNC_CLIENTS.

    Attributes:
        is_known: True if the leader has the clients of `changes`; else they are to be sent.
        union: version of the leader's union.
        by_node: the union, if the node has another version.
    """

    is_known: bool
    union: tuple[str, int]
    by_node: dict[str, list[ConsumerClient]] | None


_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(SyncRequest).decode
_decode_reply = msgspec.msgpack.Decoder(SyncReply).decode


class ClientExchange:
    """Keeps the union of all nodes' consumers, at the leader and at the others.

    Attributes:
        union: the consumers of all nodes, as far as this node knows.
        is_leaving: True once the leader is to send no readers here.
        disk_used_percent: of this node's disk, for the leader; None: unknown.
    """

    def __init__(
        self,
        log: LogServer,
        link: LeaderLink,
        local: LocalClients,
        *,
        followers: Followers,
        outputs: Outputs,
        nursery: trio.Nursery,
        push: Callable[[list[str]], None],
        creation_for: Callable[[Iterable[ConsumerClient]], Creation],
        create: Callable[[Creation], Awaitable[None]],
        now_ms: Callable[[], int],
        mistakes: Mistakes | None = None,
    ) -> None:
        """Set up the exchange of clients between nodes; `run` does it.

        `push` takes the groups whose rolls changed, for the notice to their clients here; `creation_for` names the
        topics and groups that consumers lack, and `create` creates them at the leader.
        """
        self._log = log
        self._link = link
        self._local = local
        self._followers = followers
        self._outputs = outputs
        self._nursery = nursery
        self._push = push
        self._creation_for = creation_for
        self._create = create
        self._mistakes = mistakes or Mistakes()
        self._now_ms = now_ms
        self._node = str(log.node_id)
        self._links: dict[str, ClientOrigin] = {}
        self._sent_changes: dict[str, tuple[int, int]] = {}
        self._union_id = ("", 0)
        self._announced = 0
        self._synced_changes = -1
        self._synced = trio.Event()
        self._wanted = trio.Event()
        self._first_report: _SyncWaiter | None = None
        self._known_index = NO_INDEX
        self.union = ClientUnion()
        self.is_leaving = False
        self.disk_used_percent: float | None = None
        link.watch(begun=self._report_first)
        link.register(PrivateCode.UNION_CHANGED, lambda _command: self.ask_again())

    def local_changed(self, groups: list[str]) -> None:
        """Publish that consumers of this node came, went or changed; `groups` are theirs."""
        if not groups:
            return
        if self._log.is_serving:
            self._notify(self.union.put(self._node, self._local.consumers(), self._now_ms()))
        else:
            self._wanted.set()

    def expire(self, now_ms: int) -> None:
        """Forget nodes that are silent; the leader does."""
        if self._log.is_serving:
            self.union.touch(self._node, now_ms)
            self._notify(self.union.expire(now_ms))

    def ask_again(self) -> None:
        """Ask the leader at once: its union changed."""
        self._wanted.set()

    def _report_first(self) -> None:
        """Report this node's clients to a new leader, ahead of what they ask.

        By the report it knows who commits the offset of a locked queue.
        """
        self._first_report = self._send_report(self._local.consumers())
        self._wanted.set()

    def role_changed(self) -> None:
        """Begin anew, since another node leads, or this one does."""
        if self._log.is_serving:
            self._sent_changes.clear()
            self.union.leadership_began(self._now_ms())
            self._notify(self.union.put(self._node, self._local.consumers(), self._now_ms()))
        self._synced_changes = -1
        self._wanted.set()

    async def wait_synced(self) -> None:
        """Wait until the leader has confirmed that it knows the clients of now."""
        changes = self._local.changes
        self._wanted.set()
        while self._synced_changes < changes and not self._log.is_serving:
            await self._synced.wait()

    def sync_from(self, link: ClientOrigin, request: RemotingCommand) -> None:
        """Carry out SYNC_CLIENTS at the leader: take the clients of another node.

        Raises:
            BodyError: the body is no sync request.
        """
        try:
            sync = _decode_request(request.body)
        except (msgspec.MsgspecError, ValueError) as error:
            raise BodyError(f"not a list of clients: {error}") from error
        self._links[sync.node] = link
        if not self._log.is_serving:
            if self._log.role is Role.LEADER and sync.clients is not None:
                # What these clients ask is parked here until this node serves, and is judged by who they are.
                self._push(self.union.put(sync.node, sync.clients, self._now_ms()))
            answer(link, request.opaque, NOT_CARRIED_OUT, "this node does not lead")
            return
        self._followers.reported(sync.node, link, sync.applied_position, sync.disk_used_percent)
        if sync.clients is None:
            is_known = self._sent_changes.get(sync.node) == (link.number, sync.changes)
            # A node that was silent for too long is out of the union, though its link lives: it sends them again.
            if not is_known or not self.union.touch(sync.node, self._now_ms()):
                self._answer_sync(link, request.opaque, sync, is_known=False)
                return
        else:
            self._sent_changes[sync.node] = (link.number, sync.changes)
            self._notify(self.union.put(sync.node, sync.clients, self._now_ms()), but=link)
            creation = self._creation_for(sync.clients)
            if creation:
                self._nursery.start_soon(self._finish_sync, link, request.opaque, sync, creation)
                return
        self._answer_sync(link, request.opaque, sync, is_known=True)

    async def _finish_sync(
        self, link: ClientOrigin, opaque: int, sync: SyncRequest, creation: Creation
    ) -> None:
        """Create the groups of clients at another node, as far as there is time, and answer that."""
        try:
            with trio.move_on_after(CREATE_TIMEOUT_S):
                await self._create(creation)
        except DLedgerError as error:
            _log.info("the groups of clients at %s are not created yet: %s", sync.node, error)
            self._sent_changes.pop(sync.node, None)
        except Exception as error:
            if not self._mistakes.note(error, f"the creation of groups for clients at {sync.node}"):
                raise
        self._answer_sync(link, opaque, sync, is_known=True)
        self._outputs.flush()

    def _answer_sync(
        self, link: ClientOrigin, opaque: int, sync: SyncRequest, *, is_known: bool
    ) -> None:
        version = (f"{self._node}@{self._log.term}", self.union.version)
        by_node = None
        if sync.union != version:
            by_node = {node: list(clients) for node, clients in self.union.by_node().items()}
        try:
            answer(link, opaque, 0, body=_encode(SyncReply(is_known, version, by_node)))
        except FrameError as error:
            _log.warning("%s is not told of the clients of all nodes: %s", sync.node, error)
            answer(link, opaque, 0, body=_encode(SyncReply(is_known, sync.union, None)))

    async def run(self) -> None:
        """Send this node's clients to the leader: at each change, and every second as a sign of life."""
        full = True
        while True:
            with trio.move_on_after(SYNC_INTERVAL_S):
                await self._wanted.wait()
            self._wanted = trio.Event()
            if self._log.is_serving or not self._link.is_open:
                full = True
                continue
            first, self._first_report = self._first_report, None
            full = full or self._local.changes != self._synced_changes
            waiter = first or self._send_report(self._local.consumers() if full else None)
            reply = None if waiter is None else await waiter.wait()
            full = reply is None or not reply.is_known
            if reply is None or waiter is None:
                continue
            if full:
                self._wanted.set()
                continue
            if reply.by_node is not None:
                self._union_id = reply.union
                self._push(self.union.replace(reply.by_node, self._now_ms()))
            self._synced_changes = waiter.changes
            synced, self._synced = self._synced, trio.Event()
            synced.set()

    def _send_report(self, clients: list[ConsumerClient] | None) -> _SyncWaiter | None:
        """Report this node's clients to the leader, None: as they were; return the waiter for its answer.

        Returns:
            None if there is no leader to ask, too much waits for its answers, or the clients do not fit a frame.
        """
        body = _encode(
            SyncRequest(
                self._node,
                self._local.changes,
                clients,
                self._union_id,
                self._readable_position(),
                self.disk_used_percent,
            )
        )
        waiter = _SyncWaiter(self._local.changes)
        try:
            asked = self._link.ask(
                PrivateCode.SYNC_CLIENTS, waiter, ext={}, body=body, timeout_ms=SYNC_TIMEOUT_MS
            )
        except FrameError as error:
            _log.warning("the leader is not told of the clients that are connected here: %s", error)
            return None
        return waiter if asked else None

    def _readable_position(self) -> int:
        """Return the byte place up to which backlogs can be read here.

        A node that has yet to apply what it knew to be committed at its last report cannot confirm what it reads: its
        readers would be sent back to the leader, one batch after the other.
        """
        reader = self._log.reader
        is_behind = reader.applied_index < self._known_index
        self._known_index = reader.commit_index
        return 0 if self.is_leaving or is_behind else reader.applied_position

    def _notify(self, groups: list[str], but: ClientOrigin | None = None) -> None:
        """Notify the clients here of groups whose roll changed, and the nodes of any change; the leader does."""
        if groups:
            self._push(groups)
        if self.union.version != self._announced:
            self._announced = self.union.version
            self.notify_nodes(PrivateCode.UNION_CHANGED, but=but)

    def links(self) -> list[ClientOrigin]:
        """Return the open links of the other nodes, which report their clients to this one, the leader."""
        return [link for link in self._links.values() if not link.is_closed]

    def link_of(self, group: str, client_id: str) -> ClientOrigin | None:
        """Return the link of another node to which a consumer is connected, or None; the leader asks."""
        links = [self._links.get(node) for node in self.union.nodes_of(group, client_id)]
        return next((link for link in links if link is not None and not link.is_closed), None)

    def notify_nodes(
        self,
        code: PrivateCode,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        but: ClientOrigin | None = None,
    ) -> None:
        """Send a oneway request to the nodes that are linked to this one, the leader."""
        frame = encode_command(make_request(code, 0, ext, body, is_oneway=True))
        for node, link in tuple(self._links.items()):
            if link.is_closed:
                del self._links[node]
            elif link is not but:
                link.send(frame)


class _SyncWaiter:
    """Waits for the leader's answer to SYNC_CLIENTS."""

    def __init__(self, changes: int) -> None:
        """Wait for the answer to a report of `changes`."""
        self.changes = changes
        self._done = trio.Event()
        self._reply: SyncReply | None = None

    async def wait(self) -> SyncReply | None:
        """Return the leader's answer; None when it gave none that can be read."""
        await self._done.wait()
        return self._reply

    def answered(self, response: RemotingCommand) -> None:
        if response.code == 0:
            try:
                self._reply = _decode_reply(response.body)
            except (msgspec.MsgspecError, ValueError) as error:
                _log.warning("the leader's list of clients cannot be read: %s", error)
        self._done.set()

    def broken(self, reason: str) -> None:
        self._done.set()
