"""A broker group in memory, for tests of code that uses the client.

    async with open_fake_group() as group:
        async with Producer(namesrv=group.namesrv, group="g") as producer:
            await producer.send(Message("T", b"x"))
        assert [message.body for message in group.messages("T")] == [b"x"]

It speaks the real protocol on loopback sockets: a name server and some nodes that share one perfect
log. Nodes can be killed, come back and be elected; the next answers can be scripted. Time runs by itself and
can be moved on (`advance`): messages with a delay or a due time come when it has come, and producers are asked
about transactions that stay open. It knows what the client needs and nothing more: no disk, and retries come at
once.
"""

from __future__ import annotations

import socket
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup, TaskStatus

from dledger_mq.message.batch import split_batch
from dledger_mq.message.names import dlq_topic, retry_topic
from dledger_mq.message.numbers import QueueOffset
from dledger_mq.message.properties import find_property
from dledger_mq.message.record import StoredMessage, decode_record
from dledger_mq.net.address import Address
from dledger_mq.net.connection import Connection
from dledger_mq.net.listening import bind, bound_address
from dledger_mq.net.loop import current_loop
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.frame import Frame
from dledger_mq.remoting.group_bodies import (
    decode_lock_request,
    encode_consumer_list,
    encode_lock_reply,
)
from dledger_mq.remoting.header import RemotingCommand, encode_command, make_request, make_response
from dledger_mq.remoting.heartbeat import Heartbeat, decode_heartbeat
from dledger_mq.remoting.json_body import Json, JsonKey, read_object, write_json
from dledger_mq.remoting.replies import SendReplies
from dledger_mq.remoting.requests import (
    PULL_SUSPEND,
    PullRequest,
    SendRequest,
    decode_request,
)
from dledger_mq.remoting.route import (
    BrokerData,
)
from dledger_mq.testing.fake_clock import FakeClock
from dledger_mq.testing.fake_delays import FakeDelays, Waiting
from dledger_mq.testing.fake_log import FakeLog, first_kept
from dledger_mq.testing.fake_members import FakeMembers
from dledger_mq.testing.fake_names import CLUSTER, answer_name_request
from dledger_mq.testing.fake_pops import POP_CODES, FakePops
from dledger_mq.testing.fake_transactions import FakeTransactions

LOST = -1  # in `FakeGroup.script`: store it, answer nothing
IGNORED = -2  # in `FakeGroup.script`: do nothing, answer nothing

CHECK_AFTER_S = 6  # a transaction that is open for so long is asked about

_ADMIN_CODES = frozenset(
    {
        RequestCode.CHECK_CLIENT_CONFIG,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
    }
)


@dataclass(eq=False)
class FakeNode:
    """One node: an address that can be up or down."""

    number: int
    address: str = ""
    scope: anyio.CancelScope | None = None
    is_paused: bool = False  # connections stay, nothing is read from them
    heartbeats: list[Heartbeat] = field(default_factory=list)

    @property
    def is_up(self) -> bool:
        """True while it accepts connections."""
        return self.scope is not None


class FakeGroup:
    """A name server and the nodes of one group. Made by `open_fake_group`.

    Attributes:
        script: what happens to the next sends, one by one: a response code, LOST or IGNORED; when it
            is empty they are stored.
        pop_script: the same for the next requests about popped messages, but for those that only ask whether there are
            some; LOST carries them out.
        pops: the messages that are handed out and not acknowledged.
        groups: consumer groups that were made by an administrator; `ordered_groups` are those in order (FIFO).
        locks: holders of queues by (group, topic, queue id).
        offsets: committed offsets by (group, topic, queue id).
        sends: all sends that arrived, as (unique key, queue id), repeated ones too.
        sent_back: what consumers gave back, as (body, delay level).
        requests: codes of all other requests to nodes.
        topics_asked_for: topics in requests for routes.
        leader: the node that leads, None while there is no leader.
        timers: messages that wait for a due time, by recall handle; they come when it has come.
        clock: the group's time.
        transactions: the half messages, and how their transactions ended.
        has_topics_on_demand: whether topics come to be with their first message.
        has_brokers: whether the name server knows the group.
        log: the messages; `log.deduplicates` says whether a UNIQ_KEY that was stored is not stored again.
    """

    def __init__(self, nursery: TaskGroup, *, nodes: int, queues: int, broker_name: str) -> None:
        self.broker_name = broker_name
        self.queue_count = queues
        self.nodes = [FakeNode(number) for number in range(nodes)]
        self.leader: FakeNode | None = self.nodes[0]
        self.script: deque[int] = deque()
        self.pop_script: deque[int] = deque()
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.groups: set[str] = set()
        self.ordered_groups: set[str] = set()
        self.locks: dict[tuple[str, str, int], str] = {}
        self.sends: list[tuple[str, int]] = []
        self.sent_back: list[tuple[bytes, int]] = []
        self.requests: list[int] = []
        self.topics_asked_for: list[str] = []
        self.clock = FakeClock()
        self.log = FakeLog(queues)
        self.pops = FakePops(self.log, self.clock, self.offsets, broker_name)
        self._delays = FakeDelays(self.clock, self._deliver)
        self.timers = self._delays.timers
        self.has_topics_on_demand = True
        self.has_brokers = True
        self.namesrv = ""
        self._nursery = nursery
        self._consumers = FakeMembers()
        self._producers = FakeMembers()
        self._reply = SendReplies()
        self.transactions = FakeTransactions(self.log)

    def create_topic(self, topic: str, queues: int | None = None) -> None:
        """Make a topic; sends make topics too."""
        self.log.create_topic(topic, queues)

    def put(self, topic: str, queue_id: int, body: bytes, properties: bytes = b"") -> QueueOffset:
        """Store a message as if somebody had sent it; return its queue offset."""
        place = self.log.store(topic, queue_id, body, properties, sys_flag=0, flag=0, born_ms=0)
        return place.queue_offset

    def messages(self, topic: str, queue_id: int | None = None) -> list[StoredMessage]:
        """Return what is stored, queue after queue."""
        return self.log.messages(topic, queue_id)

    def advance(self, seconds: float) -> None:
        """Let so much time pass at once: what falls due meanwhile is delivered when this returns."""
        self.clock.advance(seconds)

    def drop_before(self, topic: str, queue_id: int, offset: int) -> None:
        """Forget the first messages of a queue, as retention does."""
        self.log.drop_before(topic, queue_id, offset)

    async def kill(self, node: FakeNode) -> None:
        """Close its port and all its connections; if it led, there is no leader."""
        if node.scope is not None:
            node.scope.cancel()
        node.scope = None
        if self.leader is node:
            self.leader = None
        await anyio.wait_all_tasks_blocked()

    async def restart(self, node: FakeNode) -> None:
        """Let it listen again, at its old address."""
        await self._nursery.start(self._serve_node, node)

    def elect(self, node: FakeNode) -> None:
        """Make it the leader."""
        self.leader = node

    def notify(self, group: str) -> None:
        """Notify the members of a consumer group that its membership changed."""
        for connection in self._consumers.connections(group):
            request = make_request(
                RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
                0,
                {"consumerGroup": group},
                is_oneway=True,
            )
            connection.send_nowait(encode_command(request))

    def ask_about_open(self, group: str) -> int:
        """Ask the producers of a group about every transaction that is open; return how many there are."""
        checks = self.transactions.checks(self.broker_name)
        for connection in self._producers.connections(group):
            for check in checks:
                connection.send_nowait(check)
        return len(checks)

    def _deliver(self, waiting: Waiting) -> None:
        self.put(*waiting)

    async def _serve_node(
        self, node: FakeNode, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve a node until its scope is cancelled; one that comes back listens on the port it had."""

        def handle(connection: Connection, frames: list[Frame]) -> None:
            if not node.is_paused:
                for frame in frames:
                    self._on_node_frame(node, connection, frame)

        port = int(node.address.rpartition(":")[2]) if node.address else 0
        sock = bind(Address("127.0.0.1", port))
        node.address = str(bound_address(sock))
        with anyio.CancelScope() as node.scope:
            task_status.started()
            await _serve(sock, handle, self._on_end)

    async def _serve_names(self, port: int, *, task_status: TaskStatus[None]) -> None:
        sock = bind(Address("127.0.0.1", port))
        self.namesrv = str(bound_address(sock))
        task_status.started()
        await _serve(sock, self._on_name_frames, lambda _: None)

    def _on_name_frames(self, connection: Connection, frames: list[Frame]) -> None:
        """Answer as the name server, and note the topics asked for, which tests compare."""
        for frame in frames:
            request = decode_request(frame)
            assert isinstance(request, RemotingCommand), f"a name server was sent {request}"
            topic = request.ext.get("topic", "")
            self.topics_asked_for.append(topic)
            answer = answer_name_request(
                request,
                self.log.queues,
                self._brokers(),
                default_queues=self.queue_count if self.has_topics_on_demand else None,
            )
            connection.send_nowait(encode_command(answer))

    def _brokers(self) -> tuple[BrokerData, ...]:
        """Return the group's addresses as registered; none while no node is up."""
        addresses = self._registered() if self.has_brokers else {}
        return (BrokerData(addresses, self.broker_name, CLUSTER),) if addresses else ()

    def _registered(self) -> dict[int, str]:
        up = [node for node in self.nodes if node.is_up]
        table = {0: self.leader.address} if self.leader is not None else {}
        followers = [node.address for node in up if node is not self.leader]
        return table | dict(enumerate(followers, start=1))

    def _on_node_frame(self, node: FakeNode, connection: Connection, frame: Frame) -> None:
        """Take in a frame; its code is noted, but for a send, which tests see in `sends`."""
        request = decode_request(frame)
        if isinstance(request, SendRequest):
            self._on_send(connection, request, frame.body)
        elif isinstance(request, PullRequest):
            self.requests.append(RequestCode.PULL_MESSAGE)
            self._on_pull(node, connection, request)
        elif not request.is_response:
            self.requests.append(request.code)
            is_pop = request.code in POP_CODES
            answer = (self._on_pop_request if is_pop else self._answer)(node, connection, request)
            if answer is not None and not request.is_oneway:
                connection.send_nowait(encode_command(answer))

    def _on_send(self, connection: Connection, request: SendRequest, body: bytes) -> None:
        """Store a send, unless the script says otherwise; LOST stores and does not answer, IGNORED does neither."""
        fields = request.fields
        properties = (fields.properties or "").encode()
        key = (find_property(properties, b"UNIQ_KEY") or b"").decode()
        self.sends.append((key, fields.queue_id))
        wanted = self.script.popleft() if self.script else 0
        if wanted == 0 and self.leader is None:
            wanted = ResponseCode.SERVICE_NOT_AVAILABLE
        if wanted > 0:
            self._refuse(connection, request.opaque, wanted)
            return
        if wanted == IGNORED:
            return
        self.create_topic(fields.topic)
        if find_property(properties, b"REPLY_TO_CLIENT") is not None:
            properties += b"CLUSTER\x01%b\x02" % CLUSTER.encode()
        if find_property(properties, b"TRAN_MSG") == b"true":
            self._on_half(connection, request, body, properties, is_lost=wanted == LOST)
            return
        delays, name = self._delays, self.broker_name
        handle = delays.wait_for_due_time(fields, body, properties, broker_name=name)
        stored = (
            []
            if handle is not None or delays.wait_for_level(fields, body, properties)
            else [
                self.log.store(
                    fields.topic,
                    fields.queue_id,
                    one_body,
                    one_properties,
                    sys_flag=fields.sys_flag,
                    flag=one_flag,
                    born_ms=fields.born_timestamp_ms,
                )
                for one_body, one_properties, one_flag in (
                    [(item.body, item.properties, item.flag) for item in split_batch(body)]
                    if fields.is_batch
                    else [(body, properties, fields.flag)]
                )
            ]
        )
        if wanted == LOST or request.is_oneway:
            return
        ids = ",".join(place.message_id for place in stored)
        connection.send_nowait(
            self._reply.encode(
                request.opaque,
                msg_id=ids.encode(),
                queue_id=fields.queue_id,
                queue_offset=stored[0].queue_offset if stored else QueueOffset(0),
                recall_handle=handle,
            )
        )

    def _on_half(
        self,
        connection: Connection,
        request: SendRequest,
        body: bytes,
        properties: bytes,
        *,
        is_lost: bool,
    ) -> None:
        """Store a half message and plan its check; `is_lost` withholds the answer alone."""
        place = self.transactions.begin(request.fields, body, properties)
        group = (find_property(properties, b"PGROUP") or b"").decode()
        self._ask_later(group, place.queue_offset)
        if not is_lost:
            key = (find_property(properties, b"UNIQ_KEY") or b"").decode()
            connection.send_nowait(
                self._reply.encode(
                    request.opaque,
                    msg_id=place.message_id.encode(),
                    queue_id=request.fields.queue_id,
                    queue_offset=place.queue_offset,
                    transaction_id=key,
                )
            )

    def _ask_later(self, group: str, half_offset: int) -> None:
        """Ask about a transaction in a while, again and again while it is open."""

        def ask() -> None:
            if half_offset not in self.transactions.verdicts:
                self.ask_about_open(group)
                self._ask_later(group, half_offset)

        self.clock.at(self.clock.now_ms + 1000 * CHECK_AFTER_S, ask)

    def _on_pull(self, node: FakeNode, connection: Connection, request: PullRequest) -> None:
        fields = request.fields
        answer = self._read(request)
        if answer is not None:
            connection.send_nowait(answer)
        elif self.leader is None:
            self._refuse(connection, request.opaque, ResponseCode.SERVICE_NOT_AVAILABLE)
        elif fields.sys_flag & PULL_SUSPEND:
            self._nursery.start_soon(self._hold, node, connection, request)
        else:
            connection.send_nowait(self.log.answer_nothing(request, ResponseCode.PULL_NOT_FOUND))

    async def _hold(self, node: FakeNode, connection: Connection, request: PullRequest) -> None:
        with anyio.move_on_after(request.fields.suspend_timeout_millis / 1000):
            while (answer := self._read(request)) is None and not connection.is_closed:
                await self.log.wait_grown(request.fields.topic)
            if node.is_paused:
                return
            if answer is not None:
                connection.send_nowait(answer)
                return
        connection.send_nowait(self.log.answer_nothing(request, ResponseCode.PULL_NOT_FOUND))

    def _read(self, request: PullRequest) -> bytes | None:
        """Return the answer to a pull, None when it should wait."""
        return None if self.leader is None else self.log.answer_pull(request)

    def _refuse(self, connection: Connection, opaque: int, code: int) -> None:
        connection.send_nowait(
            encode_command(make_response(opaque, code, "scripted, or no leader"))
        )

    def _answer(
        self, node: FakeNode, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | None:
        """Answer a request; heartbeats and unregistering work without a leader, all that follows needs one."""
        match request.code:
            case RequestCode.HEART_BEAT:
                return self._on_heartbeat(node, connection, request)
            case RequestCode.UNREGISTER_CLIENT:
                group = request.ext.get("consumerGroup", "")
                if self._consumers.leave(group, request.ext.get("clientID", "")):
                    self.notify(group)
                return make_response(request.opaque, ResponseCode.SUCCESS)
            case _ if self.leader is None:
                return make_response(
                    request.opaque, ResponseCode.SERVICE_NOT_AVAILABLE, "no leader"
                )
            case RequestCode.GET_CONSUMER_LIST_BY_GROUP:
                members = self._consumers.ids(request.ext["consumerGroup"])
                if not members:
                    return make_response(request.opaque, ResponseCode.SYSTEM_ERROR, "no consumer")
                body = encode_consumer_list(members)
                return make_response(request.opaque, ResponseCode.SUCCESS, body=body)
            case code if code in _ADMIN_CODES:
                return self._administer(request)
            case RequestCode.RECALL_MESSAGE:
                is_known = self._delays.recall(request.ext["recallHandle"])
                code = ResponseCode.SUCCESS if is_known else ResponseCode.NO_MESSAGE
                return make_response(request.opaque, code)
            case RequestCode.LOCK_BATCH_MQ | RequestCode.UNLOCK_BATCH_MQ:
                return self._on_lock_request(request)
            case RequestCode.END_TRANSACTION:
                return self.transactions.end(request)
            case RequestCode.CONSUMER_SEND_MSG_BACK | RequestCode.SEND_REPLY_MESSAGE_V2 as code:
                is_reply = code == RequestCode.SEND_REPLY_MESSAGE_V2
                return self._on_reply(request) if is_reply else self._on_send_back(request)
            case _:
                return self._on_offset_request(request)

    def _on_pop_request(
        self, node: FakeNode, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | None:
        """Answer a request about popped messages, unless the script says otherwise; a notice may be held."""
        if self.leader is None:
            return make_response(request.opaque, ResponseCode.SERVICE_NOT_AVAILABLE, "no leader")
        if request.code == RequestCode.NOTIFICATION:
            self._nursery.start_soon(self._hold_notice, node, connection, request)
            return None
        wanted = self.pop_script.popleft() if self.pop_script else 0
        if wanted == IGNORED:
            return None
        if wanted > 0:
            return make_response(request.opaque, wanted, "scripted")
        answer = self.pops.answer(request)
        return None if wanted == LOST else answer

    async def _hold_notice(
        self, node: FakeNode, connection: Connection, request: RemotingCommand
    ) -> None:
        """Answer a notice when there is something to pop, or its time is over."""
        with anyio.move_on_after(int(request.ext["pollTime"]) / 1000):
            while self.pops.answer(request).ext.get("hasMsg") == "false":
                if connection.is_closed:
                    return
                await self.log.wait_grown(request.ext["topic"])
        if not node.is_paused:
            connection.send_nowait(encode_command(self.pops.answer(request)))

    def _administer(self, request: RemotingCommand) -> RemotingCommand:
        """Carry out one of `_ADMIN_CODES`; the one without a case of its own is GET_ALL_CONSUMER_OFFSET."""
        ext, body = request.ext, b""
        match request.code:
            case RequestCode.CHECK_CLIENT_CONFIG:  # the client has read its filters
                pass
            case RequestCode.UPDATE_AND_CREATE_TOPIC:
                self.create_topic(ext["topic"], int(ext["writeQueueNums"]))
            case RequestCode.DELETE_TOPIC_IN_BROKER:
                self.log.queues.pop(ext["topic"], None)
            case RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP:
                self._set_group(read_object(request.body))
            case RequestCode.DELETE_SUBSCRIPTIONGROUP:
                self.groups.discard(ext["groupName"])
                self.ordered_groups.discard(ext["groupName"])
                if ext.get("cleanOffset") == "true":
                    for place in [one for one in self.offsets if one[0] == ext["groupName"]]:
                        del self.offsets[place]
            case RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG:
                is_ordered = ext["group"] in self.ordered_groups
                body = write_json({"consumeMessageOrderly": is_ordered, "groupName": ext["group"]})
            case RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG:
                body = write_json({"subscriptionGroupTable": {name: {} for name in self.groups}})
            case _:
                table: dict[str, dict[int, int]] = defaultdict(dict)
                for (group, topic, queue_id), offset in self.offsets.items():
                    table[f"{topic}@{group}"][queue_id] = offset
                body = write_json({"inFlightTable": self.pops.counts(), "offsetTable": table})
        return make_response(request.opaque, ResponseCode.SUCCESS, body=body)

    def _set_group(self, settings: Mapping[JsonKey, Json]) -> None:
        name = str(settings["groupName"])
        self.groups.add(name)
        self.ordered_groups.discard(name)
        if settings.get("consumeMessageOrderly") is True:
            self.ordered_groups.add(name)

    def _on_lock_request(self, request: RemotingCommand) -> RemotingCommand:
        wanted = decode_lock_request(request.body)
        held = []
        for queue in wanted.mq_set:
            key = (wanted.consumer_group, queue.topic, queue.queue_id)
            if request.code == RequestCode.LOCK_BATCH_MQ:
                if self.locks.setdefault(key, wanted.client_id) == wanted.client_id:
                    held.append(queue)
            elif self.locks.get(key) == wanted.client_id:
                del self.locks[key]
        body = encode_lock_reply(held) if request.code == RequestCode.LOCK_BATCH_MQ else b""
        return make_response(request.opaque, ResponseCode.SUCCESS, body=body)

    def _on_heartbeat(
        self, node: FakeNode, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """Take in clients; who is new to a consumer group is made known to its members."""
        heartbeat = decode_heartbeat(request.body)
        node.heartbeats.append(heartbeat)
        for producer_group in heartbeat.producer_groups:
            self._producers.beat(producer_group, heartbeat.client_id, connection)
        for consumer in heartbeat.consumers:
            is_new = self._consumers.beat(consumer.group, heartbeat.client_id, connection)
            self.create_topic(retry_topic(consumer.group), 1)
            if is_new:
                self.notify(consumer.group)
        return make_response(request.opaque, ResponseCode.SUCCESS)

    def _on_end(self, connection: Connection) -> None:
        """Forget the clients that had no other connection, and tell those that stay in their consumer groups."""
        self._producers.connection_ended(connection)
        for group in self._consumers.connection_ended(connection):
            self.notify(group)

    def _on_send_back(self, request: RemotingCommand) -> RemotingCommand:
        """Store the copy at once, whatever its delay: in the retry topic, or below level 0 with the dead letters."""
        message = self.log.at(int(request.ext["offset"]))
        properties = message.properties
        if find_property(properties, b"RETRY_TOPIC") is None:
            properties += b"RETRY_TOPIC\x01%b\x02" % message.topic.encode()
        group = request.ext["group"]
        level = int(request.ext["delayLevel"])
        self.sent_back.append((message.body, level))
        is_dead = level < 0
        self.log.store(
            dlq_topic(group) if is_dead else retry_topic(group),
            0,
            message.body,
            properties,
            sys_flag=message.sys_flag,
            flag=message.flag,
            born_ms=message.born_timestamp_ms,
            reconsume_times=message.reconsume_times + 1,
        )
        return make_response(request.opaque, ResponseCode.SUCCESS)

    def _on_reply(self, request: RemotingCommand) -> RemotingCommand:
        """Hand a reply to the producer that asked for it, if it is here; its answer is not waited for."""
        ext = request.ext
        properties = ext["i"]
        requester = (find_property(properties.encode(), b"REPLY_TO_CLIENT") or b"").decode()
        connection = self._producers.connection(requester)
        if connection is None:
            text = f"the requester {requester} is not here"
            return make_response(request.opaque, ResponseCode.SYSTEM_ERROR, text)
        named = {"topic": ext["b"], "queueId": ext["e"], "sysFlag": ext["f"]}
        push = make_request(
            RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
            request.opaque,
            {**named, "bornTimestamp": ext["g"], "properties": properties},
            request.body,
        )
        connection.send_nowait(encode_command(push))
        place = {"msgId": "0", "queueId": "0", "queueOffset": "0"}
        return make_response(request.opaque, ResponseCode.SUCCESS, ext=place)

    def _on_offset_request(self, request: RemotingCommand) -> RemotingCommand:
        """Answer the five requests for offsets; a store time is searched for without an index, as queues are short."""
        ext = request.ext
        topic, queue_id = ext.get("topic", ""), int(ext.get("queueId", "0"))
        place = (ext.get("consumerGroup", ""), topic, queue_id)
        queue = self.log.queue(topic, queue_id)
        offset: int | None
        match request.code:
            case RequestCode.QUERY_CONSUMER_OFFSET:
                offset = self.offsets.get(place)
            case RequestCode.UPDATE_CONSUMER_OFFSET:
                self.offsets[place] = offset = int(ext["commitOffset"])
            case RequestCode.GET_MAX_OFFSET:
                offset = len(queue)
            case RequestCode.GET_MIN_OFFSET:
                offset = first_kept(queue)
            case RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
                at_ms = int(ext["timestamp"])
                times = [decode_record(record).store_timestamp_ms for record in queue if record]
                offset = len(queue) - sum(time >= at_ms for time in times)
            case _:
                code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                return make_response(request.opaque, code, f"code {request.code}")
        if offset is None:
            return make_response(request.opaque, ResponseCode.QUERY_NOT_FOUND, "no offset")
        return make_response(request.opaque, ResponseCode.SUCCESS, ext={"offset": str(offset)})


async def _serve(
    listening: socket.socket,
    handle: Callable[[Connection, list[Frame]], None],
    ended: Callable[[Connection], None],
) -> None:
    """Accept connections, and hand over what they bring and each that has ended, until cancelled; then close all."""
    wait_readable = current_loop().wait_readable

    async def serve_one(connection: Connection) -> None:
        try:
            while frames := await connection.receive():
                handle(connection, frames)
        finally:
            connection.close("the server stops")
            ended(connection)

    with listening:
        async with anyio.create_task_group() as tasks:
            while True:
                await wait_readable(listening)
                try:
                    sock, _ = listening.accept()
                except BlockingIOError:
                    continue
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                tasks.start_soon(serve_one, Connection(sock, tasks))


@asynccontextmanager
async def open_fake_group(
    *, nodes: int = 3, queues: int = 4, broker_name: str = "broker-a", namesrv_port: int = 0
) -> AsyncIterator[FakeGroup]:
    """Serve a fake group while the block runs; its first node leads."""
    failure: Exception | None = None
    async with anyio.create_task_group() as nursery:
        group = FakeGroup(nursery, nodes=nodes, queues=queues, broker_name=broker_name)
        nursery.start_soon(group.clock.run)
        await nursery.start(group._serve_names, namesrv_port)  # noqa: SLF001 - same module
        for node in group.nodes:
            await group.restart(node)
        try:
            yield group
        except Exception as error:  # noqa: BLE001 - the caller's own, raised again below without a group around it
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
