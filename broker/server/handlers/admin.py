"""Answers to tools and name servers: topics, groups, statistics, messages by id and key, registrations.

What tools change is carried out elsewhere (table_changes.py, offset_tools.py), and what they look at one by one is
answered in tool_reads.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from broker.server.handlers.members import Members
from broker.server.links.private_codes import SERVICE_ADDRESS
from broker.server.requests.request import Handler, PendingRequest, Where
from broker.server.requests.router import Router
from broker.service import tables
from broker.service.conclusions import RequestKind
from broker.service.connections import consumer_connections, producer_connections
from broker.service.refusal import Refusal
from broker.store.kept_log import KeptLog
from broker.store.key_index import Walks
from broker.store.lookups import KeyKind, query_by_key, store_time_at
from broker.store.record_reader import MessageGoneError, RecordReader
from broker.store.state import BrokerState
from dledger import Index, LogServer
from dledger_mq.message.names import missing_because
from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset, StoreTimeMs
from dledger_mq.message.record import decode_record
from dledger_mq.remoting import fields
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.errors import FieldError
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.json_body import write_json
from dledger_mq.remoting.message_queries import (
    ANSWERED_BY_FIELD,
    BEFORE_FIELD,
    BEHIND_FIELD,
    LEADS_FIELD,
)
from dledger_mq.remoting.registrant import (
    ASK_REGISTRANT,
    CHAIN_FIELD,
    INDEX_FIELD,
    MEMBER_FIELD,
    TOKEN_FIELD,
    is_token,
)

_UNIQUE_COUNT_MAX = 32

_TIMES_MAX = 512
"""Queues of which GET_CONSUME_STATS looks up times, some 10 ms of the loop; where there are more it gives none."""


class AdminHandlers:
    """Answers tools; `handlers` says what is read at the leader and what here."""

    def __init__(
        self,
        log: LogServer,
        state: BrokerState,
        router: Router,
        *,
        members: Members,
        broker_name: str,
        runtime: Callable[[], Mapping[str, str]],
        consumed_per_second: Callable[[str, str], float],
        given: tables.GivenOffsets,
        made: Callable[[str], bool],
        looked: Callable[[str, str], None],
    ) -> None:
        """Set up the answers.

        Args:
            log: who leads, and what is committed.
            state: the fold that is asked.
            router: waits for the disk, and for confirmations.
            members: the live clients of all nodes.
            broker_name: of the group in routes.
            runtime: returns the figures of this process.
            consumed_per_second: returns the pace of a group in a topic.
            given: returns how far the members of a group were given messages of a topic.
            made: returns True if this node registers somewhere with a token.
            looked: is told group and address of who asks how far a group is.
        """
        self._log = log
        self._state = state
        self._router = router
        self._members = members
        self._broker_name = broker_name
        self._runtime = runtime
        self._consumed_per_second = consumed_per_second
        self._given = given
        self._made = made
        self._looked = looked

    def handlers(self) -> tuple[Handler[RemotingCommand], ...]:
        """Return the handlers of its codes."""
        code, read, here = RequestCode, RequestKind.READ, Where.HERE
        return (
            Handler(ASK_REGISTRANT, self.confirm_registration, read, here),
            Handler(
                code.GET_ALL_CONSUMER_OFFSET,
                self.all_offsets,
                read,
                is_confirmed=True,
                counts_offsets=True,
            ),
            Handler(code.GET_TOPIC_STATS_INFO, self.topic_stats, read, is_confirmed=True),
            Handler(
                code.GET_CONSUME_STATS,
                self.consume_stats,
                read,
                is_confirmed=True,
                counts_offsets=True,
            ),
            Handler(code.VIEW_MESSAGE_BY_ID, self.view, read, Where.ANY),
            Handler(code.QUERY_MESSAGE, self.query, read, Where.ANY),
            Handler(code.GET_ALL_TOPIC_CONFIG, self.all_topics, read, here),
            Handler(code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, self.all_groups, read, here),
            Handler(code.GET_ALL_DELAY_OFFSET, self.delay_offsets, read, here),
            Handler(code.GET_BROKER_RUNTIME_INFO, self.runtime_info, read, here),
            Handler(code.GET_CONSUMER_CONNECTION_LIST, self.consumer_connections, read, here),
            Handler(code.GET_PRODUCER_CONNECTION_LIST, self.producer_connections, read, here),
            Handler(code.QUERY_TOPIC_CONSUME_BY_WHO, self.groups_of_topic, read, here),
        )

    # Name servers.

    def confirm_registration(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out ASK_REGISTRANT: does this node register with a token, what names its log, who is a member?

        Raises:
            FieldError: the index is no number.
        """
        ext: dict[str, str] = {}
        index = fields.int64(command.ext, INDEX_FIELD, None)
        name = None if index is None else self._log.reader.committed_fingerprint(Index(index))
        if name is not None:
            ext[CHAIN_FIELD] = str(name.chain_crc)
        address = command.ext.get(MEMBER_FIELD)
        if address is not None and self._log.leader_id is not None:
            ext[MEMBER_FIELD] = "true" if self._is_member(address) else "false"
        token = command.ext.get(TOKEN_FIELD)
        if token is None or (is_token(token) and self._made(token)):
            request.answer(ResponseCode.SUCCESS, ext=ext)
        else:
            text = "this node registers nowhere with that token"
            request.answer(ResponseCode.NO_PERMISSION, text)

    def _is_member(self, address: str) -> bool:
        """Return True if a member serves clients at this address; a node that was never heard has none."""
        ids = self._log.roster.in_force.members
        return address in [self._log.status.attributes(each).get(SERVICE_ADDRESS) for each in ids]

    # Reads.

    def all_topics(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer GET_ALL_TOPIC_CONFIG."""
        _body(request, tables.all_topics(self._state.topics))

    def all_groups(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
        _body(request, tables.all_groups(self._state.groups))

    def all_offsets(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer GET_ALL_CONSUMER_OFFSET."""
        _body(request, tables.all_offsets(self._state.offsets, self._state.pops))

    def delay_offsets(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer GET_ALL_DELAY_OFFSET."""
        _body(request, tables.delay_offsets(self._state.schedule.progress_table()))

    def runtime_info(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer GET_BROKER_RUNTIME_INFO."""
        _body(request, write_json({"table": dict(self._runtime())}))

    def topic_stats(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer GET_TOPIC_STATS_INFO.

        Raises:
            FieldError: the topic is missing.
        """
        topic = self._state.topics.get(fields.text(command.ext, "topic"))
        if topic is None:
            text = "the topic does not exist"
            why = missing_because(fields.text(command.ext, "topic"))
            request.answer(ResponseCode.TOPIC_NOT_EXIST, f"{text}.{why}" if why else text)
            return
        last_store_ms: dict[QueueId, StoreTimeMs] = {}
        for queue_id in map(QueueId, range(topic.write_queue_count)):
            _, end = self._state.queues.min_max(topic.name, queue_id)
            stored_ms = store_time_at(
                self._state,
                self._log.reader,
                topic.name,
                queue_id,
                offset=QueueOffset(end - 1),
                may_wait=self._router.may_wait_for_disk(request),
            )
            if stored_ms is not None:
                last_store_ms[queue_id] = stored_ms
        body = tables.topic_stats(topic, self._broker_name, self._state.queues, last_store_ms)
        _body(request, body)

    def consume_stats(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer GET_CONSUME_STATS, for one topic or all that the group consumes.

        Raises:
            FieldError: the group is missing.
        """
        group = fields.text(command.ext, "consumerGroup")
        self._looked(group, request.origin.address)
        wanted = command.ext.get("topic")
        named = [wanted] if wanted else self._state.offsets.topics_of(group)
        topics = [topic for name in named if (topic := self._state.topics.get(name)) is not None]
        table = tables.consume_table(
            topics,
            group=group,
            broker_name=self._broker_name,
            queues=self._state.queues,
            offsets=self._state.offsets,
            given=self._given,
            pops=self._state.pops,
        )
        if len(table) <= _TIMES_MAX:
            for queue, progress in table.items():
                stored_ms = store_time_at(
                    self._state,
                    self._log.reader,
                    queue.topic,
                    QueueId(queue.queue_id),
                    offset=QueueOffset(progress.consumer_offset - 1),
                    may_wait=self._router.may_wait_for_disk(request),
                )
                progress.last_timestamp = stored_ms or 0
        per_second = sum(self._consumed_per_second(group, topic.name) for topic in topics)
        _body(request, tables.consume_stats(table, per_second=per_second))

    def consumer_connections(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer GET_CONSUMER_CONNECTION_LIST.

        Raises:
            FieldError: the group is missing.
        """
        group = fields.text(command.ext, "consumerGroup")
        members = self._members.members(group)
        if members:
            _body(request, consumer_connections(members))
        else:
            text = f"the consumer group[{group}] not online"
            request.answer(ResponseCode.CONSUMER_NOT_ONLINE, text)

    def producer_connections(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer GET_PRODUCER_CONNECTION_LIST; producers of this node only.

        Raises:
            FieldError: the group is missing.
        """
        group = fields.text(command.ext, "producerGroup")
        clients = self._members.local.producers(group)
        if clients:
            _body(request, producer_connections(clients))
        else:
            text = f"the producer group[{group}] not exist"
            request.answer(ResponseCode.SYSTEM_ERROR, text)

    def groups_of_topic(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer QUERY_TOPIC_CONSUME_BY_WHO.

        Raises:
            FieldError: the topic is missing.
        """
        topic = fields.text(command.ext, "topic")
        groups = self._members.exchange.union.groups_of_topic(
            topic
        ) + self._state.offsets.groups_of(topic)
        _body(request, tables.group_list(groups))

    def view(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer VIEW_MESSAGE_BY_ID; a node that does not have the message yet asks the leader.

        Raises:
            FieldError: the offset is missing.
        """
        offset = PhysicalOffset(fields.int64(command.ext, "offset"))
        self._find(request, partial(self._message_at, request, offset))

    def _message_at(self, request: PendingRequest, offset: PhysicalOffset) -> _Found | Refusal:
        """Return the message that begins at a place, if the group still shows it."""
        log = KeptLog(self._log.reader, self._state.retention)
        reader = RecordReader(log, only_memory=self._router.may_wait_for_disk(request))
        try:
            record = reader.read_at(offset)
        except MessageGoneError as error:
            text = f"can not find message by the offset, {offset}: {error}"
            return Refusal(ResponseCode.SYSTEM_ERROR, text)
        topic = decode_record(bytes(record), check_crc=False).topic
        if offset < self._state.retention.beginning_of(topic):
            text = f"can not find message by the offset, {offset}: it is older than its topic shows"
            return Refusal(ResponseCode.SYSTEM_ERROR, text)
        return _Found(bytes(record), self._standing())

    def query(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer QUERY_MESSAGE by key or unique key; a node that finds nothing asks the leader.

        Raises:
            FieldError: a field is missing or impossible.
        """
        ext = command.ext
        kind = _kind(ext)
        topic, key = fields.text(ext, "topic"), fields.text(ext, "key")
        is_unique = kind is KeyKind.UNIQUE
        count_max = _UNIQUE_COUNT_MAX if is_unique else max(1, fields.int32(ext, "maxNum"))
        before = fields.int64(ext, BEFORE_FIELD, None)
        begin_ms, end_ms = fields.int64(ext, "beginTimestamp"), fields.int64(ext, "endTimestamp")
        walks = Walks()

        def look() -> _Found | Refusal:
            records = query_by_key(
                self._state,
                self._log.reader,
                topic,
                key,
                count_max=count_max,
                begin_ms=begin_ms,
                end_ms=end_ms,
                kind=kind,
                before=None if before is None else PhysicalOffset(before),
                walks=walks if self._router.may_wait_for_disk(request) else None,
            )
            return self._found(records, topic)

        self._find(request, look)

    def _found(self, records: list[memoryview], topic: str) -> _Found | Refusal:
        """Return what was found in a topic; if nothing was, the refusal says so, and whether message trace is off."""
        if not records and topic not in self._state.topics and (why := missing_because(topic)):
            text = f"topic[{topic}] not exist, and nothing is found there.{why}"
            return Refusal(ResponseCode.TOPIC_NOT_EXIST, text)
        if not records:
            text = "can not find message, maybe time range not correct"
            return Refusal(ResponseCode.QUERY_NOT_FOUND, text)
        index = self._state.key_index
        ext = {
            "indexLastUpdateTimestamp": str(index.last_store_ms),
            "indexLastUpdatePhyoffset": str(index.last_physical_offset),
            **self._standing(),
        }
        return _Found(b"".join(records), ext)

    def _standing(self) -> dict[str, str]:
        """Return who answers, and how far behind he is; a follower gives what it has applied."""
        reader = self._log.reader
        behind = 0 if self._log.is_serving else max(0, reader.commit_index - reader.applied_index)
        return {
            ANSWERED_BY_FIELD: str(self._log.node_id),
            LEADS_FIELD: "true" if self._log.is_serving else "false",
            BEHIND_FIELD: str(behind),
        }

    def _find(self, request: PendingRequest, look: Callable[[], _Found | Refusal]) -> None:
        """Answer with what any node finds; that there is nothing is for a confirmed leader to say."""
        self._router.attempt(request, partial(self._look_here, request, look))

    def _look_here(self, request: PendingRequest, look: Callable[[], _Found | Refusal]) -> None:
        """Answer with what this node finds; if that is nothing, bring the request to where it can be said."""
        found = look()
        if isinstance(found, _Found):
            found.answer(request)
        elif self._log.is_serving:
            self._router.when_confirmed(request, partial(_look_again, request, look))
        else:
            self._router.route(request)


def _kind(ext: Mapping[str, str]) -> KeyKind:
    """Return which keys are meant: RocketMQ says it by a mark, from 5.4 on by a type of index.

    Raises:
        FieldError: the type is none of keys.
    """
    if fields.boolean(ext, "_UNIQUE_KEY_QUERY", default=False):
        return KeyKind.UNIQUE
    wanted = ext.get("indexType") or ""
    try:
        return KeyKind(wanted)
    except ValueError as error:
        raise FieldError("indexType", f"is {wanted[:40]!r}, neither U nor K") from error


class _Found(NamedTuple):
    """The outcome of a search for messages."""

    body: bytes
    ext: dict[str, str] | None = None

    def answer(self, request: PendingRequest) -> None:
        """Answer a request with the messages that were found."""
        request.answer(ResponseCode.SUCCESS, ext=self.ext, body=self.body)


def _look_again(request: PendingRequest, look: Callable[[], _Found | Refusal]) -> None:
    found = look()
    if isinstance(found, _Found):
        found.answer(request)
    else:
        request.answer(found.code, found.remark)


def _body(request: PendingRequest, body: bytes) -> None:
    request.answer(ResponseCode.SUCCESS, body=body)
