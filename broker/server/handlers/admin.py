"""Answers to tools and name servers: topics, groups, statistics, messages by id and key, registrations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from broker.server.handlers.members import Members
from broker.server.links.private_codes import SERVICE_ADDRESS
from broker.server.requests.commits import Commits
from broker.server.requests.request import Handler, PendingRequest, Where
from broker.server.requests.router import Router
from broker.service import tables
from broker.service.conclusions import RequestKind
from broker.service.connections import consumer_connections, producer_connections
from broker.service.refusal import Refusal
from broker.service.topic_attributes import TopicAttributeError, alter
from broker.store.control import Command, DeleteGroup, DeleteTopic, PutGroup, PutTopic
from broker.store.kept_log import KeptLog
from broker.store.key_index import Walks
from broker.store.lookups import query_by_key, store_time_at
from broker.store.record_reader import MessageGoneError, RecordReader
from broker.store.staging import StagedEntry
from broker.store.state import BrokerState
from broker.store.topics import QUEUE_COUNT_MAX, TopicConfig
from dledger import DLedgerError, Index, LogServer
from dledger_mq.message import names
from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset, StoreTimeMs
from dledger_mq.message.record import decode_record
from dledger_mq.remoting import fields
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.errors import FieldError
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.json_body import write_json
from dledger_mq.remoting.registrant import (
    ASK_REGISTRANT,
    CHAIN_FIELD,
    INDEX_FIELD,
    MEMBER_FIELD,
    TOKEN_FIELD,
    is_token,
)

_UNIQUE_COUNT_MAX = 32

_CHANGES_WAITING_MAX = 256
"""Changes of one topic that wait for another one; more are refused as busy."""


class AdminHandlers:
    """Answers tools. Changes go through the log; `handlers` says what is read at the leader and what here."""

    def __init__(
        self,
        log: LogServer,
        state: BrokerState,
        commits: Commits,
        router: Router,
        *,
        members: Members,
        broker_name: str,
        runtime: Callable[[], Mapping[str, str]],
        made: Callable[[str], bool],
        when_routed: Callable[[Callable[[], None]], None],
    ) -> None:
        """Set up the answers.

        Args:
            log: who leads, and what is committed.
            state: the fold that is asked.
            commits: changes are staged here.
            router: waits for their commit.
            members: the live clients of all nodes.
            broker_name: of the group in routes.
            runtime: returns the figures of this process.
            made: returns True if this node registers somewhere with a token.
            when_routed: calls back once the name servers know the topics of now.
        """
        self._log = log
        self._state = state
        self._commits = commits
        self._router = router
        self._members = members
        self._broker_name = broker_name
        self._runtime = runtime
        self._made = made
        self._when_routed = when_routed
        self._topic_changes: dict[str, list[PendingRequest]] = {}
        """By the topic that is being changed: what is to be changed next, in the order in which it came."""

    def handlers(self) -> tuple[Handler[RemotingCommand], ...]:
        """Return the handlers of its codes."""
        code, admin, read, here = RequestCode, RequestKind.ADMIN, RequestKind.READ, Where.HERE
        group_code = code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        return (
            Handler(ASK_REGISTRANT, self.confirm_registration, read, here),
            Handler(code.UPDATE_AND_CREATE_TOPIC, self.put_topic, admin),
            Handler(code.DELETE_TOPIC_IN_BROKER, self.delete_topic, admin, is_confirmed=True),
            Handler(group_code, self.put_group, admin),
            Handler(code.DELETE_SUBSCRIPTIONGROUP, self.delete_group, admin, is_confirmed=True),
            Handler(code.GET_ALL_CONSUMER_OFFSET, self.all_offsets, read, is_confirmed=True),
            Handler(code.GET_TOPIC_STATS_INFO, self.topic_stats, read, is_confirmed=True),
            Handler(code.GET_CONSUME_STATS, self.consume_stats, read, is_confirmed=True),
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

    # Changes.

    def put_topic(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out UPDATE_AND_CREATE_TOPIC.

        Raises:
            FieldError: a field is missing or impossible.
        """
        ext = command.ext
        if self._waits_for_topic(request, fields.text(ext, "topic")):
            return
        config = TopicConfig(
            fields.text(ext, "topic"),
            fields.int32(ext, "readQueueNums"),
            fields.int32(ext, "writeQueueNums"),
            fields.int32(ext, "perm"),
            fields.boolean(ext, "order", default=False),
            ext.get("topicFilterType") or "SINGLE_TAG",
            fields.int32(ext, "topicSysFlag", 0),
            self._attributes(ext),
        )
        problem = names.topic_problem(config.name) or names.system_topic_problem(config.name)
        counts = (config.read_queue_count, config.write_queue_count)
        if problem is None and not all(0 < count <= QUEUE_COUNT_MAX for count in counts):
            problem = f"{counts[0]} read and {counts[1]} write queues: both must be from 1 to {QUEUE_COUNT_MAX}"
        if problem is None and not 0 <= config.perm <= 7:
            problem = f"perm {config.perm} is not from 0 to 7"
        self._change(request, problem, PutTopic(config), topic=config.name)

    def _attributes(self, ext: Mapping[str, str]) -> dict[str, str]:
        """Return a topic's attributes after a change, which a request may lack.

        Raises:
            FieldError: the change makes no sense.
        """
        topic = self._state.topics.get(fields.text(ext, "topic"))
        current = {} if topic is None else topic.attributes
        try:
            return alter(ext.get("attributes") or "", current, is_new=topic is None)
        except TopicAttributeError as error:
            raise FieldError("attributes", f"cannot be: {error}") from error

    def delete_topic(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out DELETE_TOPIC_IN_BROKER; a topic that does not exist is a success.

        Raises:
            FieldError: the topic is missing.
        """
        topic = fields.text(command.ext, "topic")
        if self._waits_for_topic(request, topic):
            return
        problem = names.topic_problem(topic) or names.system_topic_problem(topic)
        if problem is None and topic not in self._state.topics:
            request.answer(ResponseCode.SUCCESS)
            return
        self._change(request, problem, DeleteTopic(topic), topic=topic)

    def _waits_for_topic(self, request: PendingRequest, topic: str) -> bool:
        """Let a request wait while the topic is being changed: what it makes of it depends on what there is then."""
        waiting = self._topic_changes.get(topic)
        if waiting is None:
            return False
        if len(waiting) >= _CHANGES_WAITING_MAX:
            request.refuse_as_busy()
        else:
            waiting.append(request)
        return True

    def _topic_changed(self, topic: str, error: DLedgerError | None) -> None:
        """Go on with what has waited, whatever became of the change."""
        for request in self._topic_changes.pop(topic):
            self._router.route(request)

    def put_group(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out UPDATE_AND_CREATE_SUBSCRIPTIONGROUP.

        Raises:
            BodyError: the body is no group configuration.
        """
        config = tables.read_group(command.body)
        self._change(request, names.group_problem(config.name), PutGroup(config))

    def delete_group(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out DELETE_SUBSCRIPTIONGROUP; a group that does not exist is a success.

        Raises:
            FieldError: the group is missing.
        """
        ext = command.ext
        name = fields.text(ext, "groupName")
        cleans = any(
            fields.boolean(ext, key, default=False) for key in ("cleanOffset", "removeOffset")
        )
        problem = "a system group" if names.is_system_group(name) else None
        if problem is None and name not in self._state.groups:
            request.answer(ResponseCode.SUCCESS)
            return
        self._change(request, problem, DeleteGroup(name, clean_offsets=cleans))

    def _change(
        self,
        request: PendingRequest,
        problem: str | None,
        change: Command,
        *,
        topic: str | None = None,
    ) -> None:
        """Write a change, or answer the problem; other changes of the same topic wait for it."""
        if problem is not None:
            request.answer(ResponseCode.SYSTEM_ERROR, problem)
            return
        if self._commits.is_full:
            request.refuse_as_busy()
            return
        place = self._commits.stage_control(change)
        ended = None
        if topic is not None:
            assert topic not in self._topic_changes, f"two changes of {topic} at once"
            self._topic_changes[topic] = []
            ended = partial(self._topic_changed, topic)
        changed = partial(self._changed, request)
        self._router.when_committed(request, place, changed, ended=ended)

    def _changed(self, request: PendingRequest, staged: StagedEntry, place: int) -> None:
        """Answer a change that is committed; the fold may have refused it."""
        refusal = self._state.refusals.at(staged.physical_offset(place))
        if refusal is None and request.handler.code == RequestCode.UPDATE_AND_CREATE_TOPIC:
            # Whoever is told that there is a topic looks for its route next.
            self._when_routed(partial(request.answer, ResponseCode.SUCCESS))
        elif refusal is None:
            request.answer(ResponseCode.SUCCESS)
        else:
            text = f"refused: {refusal.kind.name.lower()} {refusal.detail}"
            request.answer(ResponseCode.SYSTEM_ERROR, text[:1024])

    # Reads.

    def all_topics(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer GET_ALL_TOPIC_CONFIG."""
        _body(request, tables.all_topics(self._state.topics))

    def all_groups(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
        _body(request, tables.all_groups(self._state.groups))

    def all_offsets(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer GET_ALL_CONSUMER_OFFSET."""
        _body(request, tables.all_offsets(self._state.offsets))

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
            request.answer(ResponseCode.TOPIC_NOT_EXIST, text)
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
        wanted = command.ext.get("topic")
        named = [wanted] if wanted else self._state.offsets.topics_of(group)
        topics = [topic for name in named if (topic := self._state.topics.get(name)) is not None]
        body = tables.consume_stats(
            topics,
            group=group,
            broker_name=self._broker_name,
            queues=self._state.queues,
            offsets=self._state.offsets,
        )
        _body(request, body)

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
        return _Found(bytes(record))

    def query(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer QUERY_MESSAGE by key or unique key; a node that finds nothing asks the leader.

        Raises:
            FieldError: a field is missing or impossible.
        """
        ext = command.ext
        is_unique = fields.boolean(ext, "_UNIQUE_KEY_QUERY", default=False)
        topic, key = fields.text(ext, "topic"), fields.text(ext, "key")
        count_max = _UNIQUE_COUNT_MAX if is_unique else max(1, fields.int32(ext, "maxNum"))
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
                is_unique_key=is_unique,
                walks=walks if self._router.may_wait_for_disk(request) else None,
            )
            return self._found(records)

        self._find(request, look)

    def _found(self, records: list[memoryview]) -> _Found | Refusal:
        if not records:
            text = "can not find message, maybe time range not correct"
            return Refusal(ResponseCode.QUERY_NOT_FOUND, text)
        index = self._state.key_index
        ext = {
            "indexLastUpdateTimestamp": str(index.last_store_ms),
            "indexLastUpdatePhyoffset": str(index.last_physical_offset),
        }
        return _Found(b"".join(records), ext)

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
