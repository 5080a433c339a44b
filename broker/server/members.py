"""Live clients: heartbeats, member lists, and the exchange that gives all nodes the same list (34, 35, 38, 40, 46)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

import msgspec
import trio

from broker.remoting import fields
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.errors import BodyError
from broker.remoting.group_bodies import encode_consumer_list
from broker.remoting.header import RemotingCommand, encode_command, make_request
from broker.remoting.heartbeat import EXPRESSION_TAG, decode_client_config, decode_heartbeat
from broker.server.commits import AwaitCommit, Commits
from broker.server.gate import Errand
from broker.server.link import LeaderLink
from broker.server.origin import ClientOrigin, Origin, Outputs, answer
from broker.server.private_codes import NOT_CARRIED_OUT, PrivateCode
from broker.service.catalog import Catalog, Creation, group_for_use, special_topic
from broker.service.clients import (
    ClientUnion,
    ConsumerClient,
    LocalClients,
    consumers_of,
    producers_of,
)
from broker.service.pull import SQL_REFUSED
from broker.service.refusal import Refusal
from broker.service.tags import TagExpressionError, tag_hashes
from broker.store.groups import SubscriptionGroupConfig
from broker.store.names import retry_topic
from broker.store.topics import TopicConfig
from dledger import DLedgerError, LogServer

_log = logging.getLogger(__name__)

SYNC_INTERVAL_S = 1.0
SYNC_TIMEOUT_MS = 2_000
CREATE_TIMEOUT_S = 2.0
"""A heartbeat waits this long for its group and retry topic; clients give it 3 to 5 s."""


class SyncRequest(msgspec.Struct, frozen=True):
    """Body of SYNC_CLIENTS.

    Attributes:
        node: who tells.
        changes: number of the state of its clients; comparable within one connection.
        clients: its consumers; None: as `changes` was told before.
        union: the version of the union that the node has.
    """

    node: str
    changes: int
    clients: list[ConsumerClient] | None
    union: tuple[str, int]


class SyncReply(msgspec.Struct, frozen=True):
    """Answer to SYNC_CLIENTS.

    Attributes:
        is_known: the leader has the clients of `changes`; else they are to be told.
        union: version of the leader's union.
        by_node: the union, if the node has another version.
    """

    is_known: bool
    union: tuple[str, int]
    by_node: dict[str, list[ConsumerClient]] | None


_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(SyncRequest).decode
_decode_reply = msgspec.msgpack.Decoder(SyncReply).decode


class Members:
    """Knows who is connected, here and elsewhere."""

    def __init__(
        self,
        log: LogServer,
        commits: Commits,
        catalog: Catalog,
        link: LeaderLink,
        outputs: Outputs,
        nursery: trio.Nursery,
        *,
        auto_create_groups: bool,
        tasks_max: int,
        now_ms: Callable[[], int],
    ) -> None:
        self._log = log
        self._commits = commits
        self._catalog = catalog
        self._link = link
        self._outputs = outputs
        self._nursery = nursery
        self._auto_create_groups = auto_create_groups
        self._tasks_max = tasks_max
        self._tasks = 0
        self._now_ms = now_ms
        self._node = str(log.config.raft.node_id)
        self._origins: dict[int, ClientOrigin] = {}
        self._links: dict[str, ClientOrigin] = {}
        self._told: dict[str, tuple[int, int]] = {}
        self._union_id = ("", 0)
        self._synced_changes = -1
        self._synced = trio.Event()
        self._sync_wanted = trio.Event()
        self.local = LocalClients()
        self.union = ClientUnion()

    # What clients ask.

    def heartbeat(self, origin: Origin, request: RemotingCommand) -> None:
        """HEART_BEAT: answered when the group and its retry topic exist and the leader knows the client.

        Raises:
            BodyError: the body is no heartbeat.
        """
        beat = decode_heartbeat(request.body)
        who = {"language": request.language, "version": request.version, "address": origin.address}
        assert isinstance(origin, ClientOrigin), "a heartbeat belongs to the node it was sent to"
        consumers = [
            client
            for client in consumers_of(beat, **who)  # type: ignore[arg-type]  # who mixes str and int
            if not isinstance(self._group(client.group), Refusal)
        ]
        producers = producers_of(beat, **who)  # type: ignore[arg-type]  # who mixes str and int
        self._origins[origin.number] = origin
        changed = self.local.heartbeat(origin.number, consumers, producers, self._now_ms())
        if self._log.is_serving:
            self._notify(self.union.put(self._node, self.local.consumers(), self._now_ms()))
        creation = self.creation_for(consumers)
        if (changed or creation) and self._tasks < self._tasks_max:
            self._tasks += 1
            self._nursery.start_soon(self._finish_heartbeat, origin, request.opaque, creation)
        else:
            answer(origin, request.opaque, ResponseCode.SUCCESS)

    async def _finish_heartbeat(self, origin: Origin, opaque: int, creation: Creation) -> None:
        try:
            with trio.move_on_after(CREATE_TIMEOUT_S):
                if self._log.is_serving:
                    await self.create(creation)
                else:
                    await self._wait_synced()
        except DLedgerError as error:
            # The next heartbeat tries again; the client is registered in any case.
            _log.info("the groups of a client at %s are not created yet: %s", origin.address, error)
        finally:
            self._tasks -= 1
        answer(origin, opaque, ResponseCode.SUCCESS)
        self._outputs.flush()

    def _group(self, name: str) -> object:
        return group_for_use(self._catalog, name, auto_create=self._auto_create_groups)

    def creation_for(self, consumers: Iterable[ConsumerClient]) -> Creation:
        """Groups and retry topics that these consumers lack (Q3)."""
        topics: list[TopicConfig] = []
        groups: list[SubscriptionGroupConfig] = []
        for name in dict.fromkeys(client.group for client in consumers):
            found = group_for_use(self._catalog, name, auto_create=self._auto_create_groups)
            if isinstance(found, Refusal):
                continue
            group, created = found
            groups += created.groups
            if group.retry_queue_count > 0:
                created = special_topic(
                    self._catalog, retry_topic(name), queue_count=group.retry_queue_count
                )[1]
                topics += created.topics
        return Creation(tuple(topics), tuple(groups))

    async def create(self, creation: Creation) -> None:
        """Create groups and topics on this node, which leads.

        Raises:
            DLedgerError: it was refused, or leadership was lost.
        """
        if creation:
            waiter = AwaitCommit()
            self._commits.wait(self._commits.create(creation), waiter)
            await waiter.wait()

    def unregister(self, origin: Origin, request: RemotingCommand) -> None:
        """UNREGISTER_CLIENT.

        Raises:
            FieldError: the client id is missing.
        """
        gone = self.local.unregister(
            fields.text(request.ext, "clientID"),
            consumer_group=request.ext.get("consumerGroup", ""),
            producer_group=request.ext.get("producerGroup", ""),
        )
        self._changed_here(gone)
        answer(origin, request.opaque, ResponseCode.SUCCESS)

    def consumer_list(self, errand: Errand, request: RemotingCommand) -> None:
        """GET_CONSUMER_LIST_BY_GROUP; without a leader, as far as this node knows.

        Raises:
            FieldError: the group is missing.
        """
        group = fields.text(request.ext, "consumerGroup")
        ids = list(self.members(group))
        if ids:
            body = encode_consumer_list(ids)
            answer(errand.origin, errand.opaque, ResponseCode.SUCCESS, body=body)
        else:
            text = f"no consumer for this group, {group[:255]}"
            answer(errand.origin, errand.opaque, ResponseCode.SYSTEM_ERROR, text)

    @staticmethod
    def check_config(origin: Origin, request: RemotingCommand) -> None:
        """CHECK_CLIENT_CONFIG.

        Raises:
            BodyError: the body is no client configuration.
        """
        subscription = decode_client_config(request.body)[2]
        if subscription.expression_type != EXPRESSION_TAG:
            answer(origin, request.opaque, ResponseCode.SYSTEM_ERROR, SQL_REFUSED)
            return
        try:
            tag_hashes(subscription.expression)
        except TagExpressionError as error:
            answer(origin, request.opaque, ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error))
        else:
            answer(origin, request.opaque, ResponseCode.SUCCESS)

    def members(self, group: str) -> dict[str, ConsumerClient]:
        """The live members of a group on all nodes, as far as this node knows."""
        known = dict(self.union.members(group))
        if not self._log.is_serving:
            known.update({client.client_id: client for client in self.local.consumers(group)})
        return known

    def connection_closed(self, number: int) -> None:
        """A client's connection ended."""
        self._origins.pop(number, None)
        self._changed_here(self.local.connection_closed(number))

    def expire(self, now_ms: int) -> None:
        """Forget clients and nodes that are silent."""
        self._changed_here(self.local.expire(now_ms))
        if self._log.is_serving:
            self.union.touch(self._node, now_ms)
            self._notify(self.union.expire(now_ms))

    # The exchange between nodes.

    def role_changed(self) -> None:
        """Somebody else leads, or this node does."""
        if self._log.is_serving:
            self._told.clear()
            self.union.start_reign(self._now_ms())
            self._notify(self.union.put(self._node, self.local.consumers(), self._now_ms()))
        self._synced_changes = -1
        self._sync_wanted.set()

    def union_changed(self) -> None:
        """The leader says that its union changed."""
        self._sync_wanted.set()

    def sync_from(self, link: ClientOrigin, request: RemotingCommand) -> None:
        """SYNC_CLIENTS at the leader: another node tells of its clients.

        Raises:
            BodyError: the body is no sync request.
        """
        if not self._log.is_serving:
            answer(link, request.opaque, NOT_CARRIED_OUT, "this node does not lead")
            return
        try:
            told = _decode_request(request.body)
        except (msgspec.MsgspecError, ValueError) as error:
            raise BodyError(f"not a list of clients: {error}") from error
        self._links[told.node] = link
        if told.clients is None:
            if self._told.get(told.node) != (link.number, told.changes):
                self._answer_sync(link, request.opaque, told, is_known=False)
                return
            self.union.touch(told.node, self._now_ms())
        else:
            self._told[told.node] = (link.number, told.changes)
            self._notify(self.union.put(told.node, told.clients, self._now_ms()), but=link)
            creation = self.creation_for(told.clients)
            if creation:
                self._nursery.start_soon(self._finish_sync, link, request.opaque, told, creation)
                return
        self._answer_sync(link, request.opaque, told, is_known=True)

    async def _finish_sync(
        self, link: ClientOrigin, opaque: int, told: SyncRequest, creation: Creation
    ) -> None:
        try:
            with trio.move_on_after(CREATE_TIMEOUT_S):
                await self.create(creation)
        except DLedgerError as error:
            _log.info("the groups of clients at %s are not created yet: %s", told.node, error)
            self._told.pop(told.node, None)
        self._answer_sync(link, opaque, told, is_known=True)
        self._outputs.flush()

    def _answer_sync(
        self, link: ClientOrigin, opaque: int, told: SyncRequest, *, is_known: bool
    ) -> None:
        version = (f"{self._node}@{self._log.term}", self.union.version)
        by_node = None
        if told.union != version:
            by_node = {node: list(clients) for node, clients in self.union.by_node().items()}
        answer(link, opaque, 0, body=_encode(SyncReply(is_known, version, by_node)))

    async def run(self) -> None:
        """Tell the leader of this node's clients: at each change, and every second that they live."""
        full = True
        while True:
            with trio.move_on_after(SYNC_INTERVAL_S):
                await self._sync_wanted.wait()
            self._sync_wanted = trio.Event()
            if self._log.is_serving or not self._link.is_open:
                full = True
                continue
            changes = self.local.changes
            full = full or changes != self._synced_changes
            reply = await self._ask_leader(changes, full=full)
            full = reply is None or not reply.is_known
            if reply is None:
                continue
            if full:
                self._sync_wanted.set()
                continue
            if reply.by_node is not None:
                self._union_id = reply.union
                self._push(self.union.replace(reply.by_node, self._now_ms()))
            self._synced_changes = changes
            synced, self._synced = self._synced, trio.Event()
            synced.set()

    async def _ask_leader(self, changes: int, *, full: bool) -> SyncReply | None:
        clients = self.local.consumers() if full else None
        body = _encode(SyncRequest(self._node, changes, clients, self._union_id))
        waiter = _SyncWaiter()
        asked = self._link.ask(
            PrivateCode.SYNC_CLIENTS, waiter, ext={}, body=body, timeout_ms=SYNC_TIMEOUT_MS
        )
        if not asked:
            return None
        await waiter.done.wait()
        return waiter.reply

    async def _wait_synced(self) -> None:
        """Until the leader has told that it knows the clients of now."""
        wanted = self.local.changes
        self._sync_wanted.set()
        while self._synced_changes < wanted and not self._log.is_serving:
            await self._synced.wait()

    def _changed_here(self, groups: list[str]) -> None:
        if not groups:
            return
        if self._log.is_serving:
            self._notify(self.union.put(self._node, self.local.consumers(), self._now_ms()))
        else:
            self._sync_wanted.set()

    def _notify(self, groups: list[str], but: ClientOrigin | None = None) -> None:
        """At the leader: tell the clients here and the other nodes that groups changed."""
        if not groups:
            return
        self._push(groups)
        frame = encode_command(make_request(PrivateCode.UNION_CHANGED, 0, is_oneway=True))
        for node, link in tuple(self._links.items()):
            if link.is_closed:
                del self._links[node]
            elif link is not but:
                link.send(frame)

    def _push(self, groups: list[str]) -> None:
        """Tell the clients here (40): they rebalance at once instead of within 20 s."""
        for name in groups:
            group = self._catalog.group(name)
            if group is not None and not group.notify_consumer_ids_changed:
                continue
            for number in self.local.connections_of(name):
                origin = self._origins.get(number)
                if origin is not None:
                    request = make_request(
                        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
                        0,
                        {"consumerGroup": name},
                        is_oneway=True,
                    )
                    origin.send(encode_command(request))
        self._outputs.flush()


class _SyncWaiter:
    """Waits for the leader's answer to SYNC_CLIENTS."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.reply: SyncReply | None = None

    def answered(self, response: RemotingCommand) -> None:
        if response.code == 0:
            try:
                self.reply = _decode_reply(response.body)
            except (msgspec.MsgspecError, ValueError) as error:
                _log.warning("the leader's list of clients cannot be read: %s", error)
        self.done.set()

    def broken(self, reason: str) -> None:
        self.done.set()
