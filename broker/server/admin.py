"""What tools and name servers ask: topics, groups, statistics, messages by id and key, registrations."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from broker.server.commits import Commits
from broker.server.gate import Errand, Gate
from broker.server.linear import LinearReads
from broker.server.members import Members
from broker.server.origin import Origin, answer
from broker.server.private_codes import SERVICE_ADDRESS
from broker.service import tables
from broker.service.connections import consumer_connections, producer_connections
from broker.store.control import Command, DeleteGroup, DeleteTopic, PutGroup, PutTopic
from broker.store.reading import MessageGoneError, RecordReader, query_by_key, store_time_at
from broker.store.staging import StagedEntry
from broker.store.state import BrokerState
from broker.store.topics import QUEUE_COUNT_MAX, TopicConfig
from dledger import DLedgerError, Index, LogServer, RefusedError
from dledger_mq.message import names
from dledger_mq.remoting import fields
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.json_body import write_json
from dledger_mq.remoting.registrant import (
    CHAIN_FIELD,
    INDEX_FIELD,
    MEMBER_FIELD,
    TOKEN_FIELD,
    is_token,
)

_UNIQUE_COUNT_MAX = 32


class Admin:
    """Answers tools. Changes go through the log; `Dispatch` says what is read at the leader and what here."""

    def __init__(
        self,
        log: LogServer,
        state: BrokerState,
        commits: Commits,
        gate: Gate,
        linear: LinearReads,
        members: Members,
        *,
        broker_name: str,
        config_text: Callable[[], str],
        runtime: Callable[[], Mapping[str, str]],
        made: Callable[[str], bool],
    ) -> None:
        self._log = log
        self._state = state
        self._commits = commits
        self._gate = gate
        self._linear = linear
        self._members = members
        self._broker_name = broker_name
        self._config_text = config_text
        self._runtime = runtime
        self._made = made

    # Name servers.

    def confirm_registration(self, origin: Origin, request: RemotingCommand) -> None:
        """ASK_REGISTRANT: whether this node registers with a token, what names its log at an index, who is a member.

        Raises:
            FieldError: the index is no number.
        """
        ext: dict[str, str] = {}
        index = fields.int64(request.ext, INDEX_FIELD, None)
        name = None if index is None else self._log.reader.committed_name(Index(index))
        if name is not None:
            ext[CHAIN_FIELD] = str(name.chain_crc)
        address = request.ext.get(MEMBER_FIELD)
        if address is not None and self._log.leader_id is not None:
            ext[MEMBER_FIELD] = "true" if self._is_member(address) else "false"
        token = request.ext.get(TOKEN_FIELD)
        if token is None or (is_token(token) and self._made(token)):
            answer(origin, request.opaque, ResponseCode.SUCCESS, ext=ext)
        else:
            text = "this node registers nowhere with that token"
            answer(origin, request.opaque, ResponseCode.NO_PERMISSION, text)

    def _is_member(self, address: str) -> bool:
        """Whether a member told that it serves clients there; who was never met has told nothing."""
        ids = [peer.node_id for peer in self._log.config.peers]
        return address in [self._log.status.attributes(each).get(SERVICE_ADDRESS) for each in ids]

    # Changes.

    def put_topic(self, errand: Errand, request: RemotingCommand) -> None:
        """UPDATE_AND_CREATE_TOPIC.

        Raises:
            FieldError: a field is missing or impossible.
        """
        ext = request.ext
        config = TopicConfig(
            fields.text(ext, "topic"),
            fields.int32(ext, "readQueueNums"),
            fields.int32(ext, "writeQueueNums"),
            fields.int32(ext, "perm"),
            fields.boolean(ext, "order", default=False),
            ext.get("topicFilterType") or "SINGLE_TAG",
            fields.int32(ext, "topicSysFlag", 0),
        )
        problem = names.topic_problem(config.name) or names.system_topic_problem(config.name)
        counts = (config.read_queue_count, config.write_queue_count)
        if problem is None and not all(0 < count <= QUEUE_COUNT_MAX for count in counts):
            problem = f"{counts[0]} read and {counts[1]} write queues: both must be from 1 to {QUEUE_COUNT_MAX}"
        if problem is None and not 0 <= config.perm <= 7:
            problem = f"perm {config.perm} is not from 0 to 7"
        self._change(errand, problem, PutTopic(config))

    def delete_topic(self, errand: Errand, request: RemotingCommand) -> None:
        """DELETE_TOPIC_IN_BROKER; a topic that does not exist is a success.

        Raises:
            FieldError: the topic is missing.
        """
        topic = fields.text(request.ext, "topic")
        problem = names.topic_problem(topic) or names.system_topic_problem(topic)
        if problem is None and topic not in self._state.topics:
            answer(errand.origin, errand.opaque, ResponseCode.SUCCESS)
            return
        self._change(errand, problem, DeleteTopic(topic))

    def put_group(self, errand: Errand, request: RemotingCommand) -> None:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP.

        Raises:
            BodyError: the body is no group configuration.
        """
        config = tables.read_group(request.body)
        self._change(errand, names.group_problem(config.name), PutGroup(config))

    def delete_group(self, errand: Errand, request: RemotingCommand) -> None:
        """DELETE_SUBSCRIPTIONGROUP.

        Raises:
            FieldError: the group is missing.
        """
        ext = request.ext
        name = fields.text(ext, "groupName")
        cleans = any(
            fields.boolean(ext, key, default=False) for key in ("cleanOffset", "removeOffset")
        )
        problem = "a system group" if names.is_system_group(name) else None
        if problem is None and name not in self._state.groups:
            answer(errand.origin, errand.opaque, ResponseCode.SUCCESS)
            return
        self._change(errand, problem, DeleteGroup(name, clean_offsets=cleans))

    def _change(self, errand: Errand, problem: str | None, command: Command) -> None:
        if problem is not None:
            answer(errand.origin, errand.opaque, ResponseCode.SYSTEM_ERROR, problem)
            return
        if self._commits.is_full:
            errand.refuse_as_busy()
            return
        place = self._commits.stage_control(command)
        self._commits.wait(place, _ChangeWaiter(self, errand))

    def changed(self, errand: Errand, staged: StagedEntry, place: int) -> None:
        """Answer a change that is committed; the fold may have refused it."""
        refusal = self._state.refusals.at(staged.physical_offset(place))
        if refusal is None:
            answer(errand.origin, errand.opaque, ResponseCode.SUCCESS)
        else:
            text = f"refused: {refusal.kind.name.lower()} {refusal.detail}"
            answer(errand.origin, errand.opaque, ResponseCode.SYSTEM_ERROR, text[:1024])

    def change_failed(self, errand: Errand, error: DLedgerError) -> None:
        """A change that was surely not made goes to the next leader."""
        if isinstance(error, RefusedError) and error.retriable:
            errand.cause = str(error)
            self._gate.hold(errand)
        else:
            text = f"outcome unknown: {error}; the change may have been made"
            answer(errand.origin, errand.opaque, ResponseCode.SYSTEM_ERROR, text)

    # Reads.

    def all_topics(self, origin: Origin, request: RemotingCommand) -> None:
        """GET_ALL_TOPIC_CONFIG."""
        _body(origin, request, tables.all_topics(self._state.topics))

    def all_groups(self, origin: Origin, request: RemotingCommand) -> None:
        """GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
        _body(origin, request, tables.all_groups(self._state.groups))

    def all_offsets(self, errand: Errand, request: RemotingCommand) -> None:
        """GET_ALL_CONSUMER_OFFSET."""
        _body(errand.origin, request, tables.all_offsets(self._state.offsets))

    def delay_offsets(self, origin: Origin, request: RemotingCommand) -> None:
        """GET_ALL_DELAY_OFFSET."""
        _body(origin, request, tables.delay_offsets(self._state.schedule.progress_table()))

    def config(self, origin: Origin, request: RemotingCommand) -> None:
        """GET_BROKER_CONFIG."""
        version = '{"counter":0,"timestamp":0}'
        body = self._config_text().encode()
        answer(origin, request.opaque, ResponseCode.SUCCESS, ext={"version": version}, body=body)

    def runtime_info(self, origin: Origin, request: RemotingCommand) -> None:
        """GET_BROKER_RUNTIME_INFO."""
        _body(origin, request, write_json({"table": dict(self._runtime())}))

    def topic_stats(self, errand: Errand, request: RemotingCommand) -> None:
        """GET_TOPIC_STATS_INFO.

        Raises:
            FieldError: the topic is missing.
        """
        topic = self._state.topics.get(fields.text(request.ext, "topic"))
        if topic is None:
            text = "the topic does not exist"
            answer(errand.origin, errand.opaque, ResponseCode.TOPIC_NOT_EXIST, text)
            return
        last_store_ms: dict[int, int] = {}
        for queue_id in range(topic.write_queue_count):
            end = self._state.queues.min_max(topic.name, queue_id)[1]
            stored_ms = store_time_at(self._state, self._log.reader, topic.name, queue_id, end - 1)
            last_store_ms[queue_id] = max(0, stored_ms)
        body = tables.topic_stats(topic, self._broker_name, self._state.queues, last_store_ms)
        _body(errand.origin, request, body)

    def consume_stats(self, errand: Errand, request: RemotingCommand) -> None:
        """GET_CONSUME_STATS, for one topic or all that the group consumes.

        Raises:
            FieldError: the group is missing.
        """
        group = fields.text(request.ext, "consumerGroup")
        wanted = request.ext.get("topic")
        named = [wanted] if wanted else self._state.offsets.topics_of(group)
        topics = [topic for name in named if (topic := self._state.topics.get(name)) is not None]
        body = tables.consume_stats(
            topics, group, self._broker_name, self._state.queues, self._state.offsets
        )
        _body(errand.origin, request, body)

    def consumer_connections(self, origin: Origin, request: RemotingCommand) -> None:
        """GET_CONSUMER_CONNECTION_LIST.

        Raises:
            FieldError: the group is missing.
        """
        group = fields.text(request.ext, "consumerGroup")
        members = self._members.members(group)
        if members:
            _body(origin, request, consumer_connections(members))
        else:
            text = f"the consumer group[{group}] not online"
            answer(origin, request.opaque, ResponseCode.CONSUMER_NOT_ONLINE, text)

    def producer_connections(self, origin: Origin, request: RemotingCommand) -> None:
        """GET_PRODUCER_CONNECTION_LIST; producers of this node only.

        Raises:
            FieldError: the group is missing.
        """
        group = fields.text(request.ext, "producerGroup")
        clients = self._members.local.producers(group)
        if clients:
            _body(origin, request, producer_connections(clients))
        else:
            text = f"the producer group[{group}] not exist"
            answer(origin, request.opaque, ResponseCode.SYSTEM_ERROR, text)

    def groups_of_topic(self, origin: Origin, request: RemotingCommand) -> None:
        """QUERY_TOPIC_CONSUME_BY_WHO.

        Raises:
            FieldError: the topic is missing.
        """
        topic = fields.text(request.ext, "topic")
        groups = self._members.exchange.union.groups_of_topic(
            topic
        ) + self._state.offsets.groups_of(topic)
        _body(origin, request, tables.group_list(groups))

    def view(self, errand: Errand, request: RemotingCommand) -> None:
        """VIEW_MESSAGE_BY_ID; a node that does not have it yet asks the leader.

        Raises:
            FieldError: the offset is missing.
        """
        offset = fields.int64(request.ext, "offset")

        def look(*, is_final: bool) -> bool:
            try:
                record = RecordReader(self._log.reader).read_at(offset)
            except MessageGoneError as error:
                if is_final:
                    text = f"can not find message by the offset, {offset}: {error}"
                    answer(errand.origin, errand.opaque, ResponseCode.SYSTEM_ERROR, text)
                return False
            answer(errand.origin, errand.opaque, ResponseCode.SUCCESS, body=bytes(record))
            return True

        self._look(errand, look)

    def query(self, errand: Errand, request: RemotingCommand) -> None:
        """QUERY_MESSAGE by key or unique key; a node that finds nothing asks the leader.

        Raises:
            FieldError: a field is missing or impossible.
        """
        ext = request.ext
        is_unique = fields.boolean(ext, "_UNIQUE_KEY_QUERY", default=False)
        topic, key = fields.text(ext, "topic"), fields.text(ext, "key")
        count_max = _UNIQUE_COUNT_MAX if is_unique else max(1, fields.int32(ext, "maxNum"))
        begin_ms, end_ms = fields.int64(ext, "beginTimestamp"), fields.int64(ext, "endTimestamp")

        def look(*, is_final: bool) -> bool:
            records = query_by_key(
                self._state,
                self._log.reader,
                topic,
                key,
                count_max=count_max,
                begin_ms=begin_ms,
                end_ms=end_ms,
                is_unique_key=is_unique,
            )
            if records:
                self._answer_records(errand, records)
            elif is_final:
                text = "can not find message, maybe time range not correct"
                answer(errand.origin, errand.opaque, ResponseCode.QUERY_NOT_FOUND, text)
            return bool(records)

        self._look(errand, look)

    def _answer_records(self, errand: Errand, records: list[memoryview]) -> None:
        index = self._state.key_index
        answer(
            errand.origin,
            errand.opaque,
            ResponseCode.SUCCESS,
            ext={
                "indexLastUpdateTimestamp": str(index.last_store_ms),
                "indexLastUpdatePhyoffset": str(index.last_physical_offset),
            },
            body=b"".join(records),
        )

    def _look(self, errand: Errand, look: Callable[..., bool]) -> None:
        """What is found is true on any node; that there is nothing is for the leader to say, once it is confirmed."""
        if look(is_final=False):
            return
        if self._log.is_serving:

            def look_again() -> None:
                look(is_final=True)

            self._linear.read(errand, look_again)
        else:
            self._gate.bring(errand)


class _ChangeWaiter:
    __slots__ = ("_admin", "_errand")

    def __init__(self, admin: Admin, errand: Errand) -> None:
        self._admin = admin
        self._errand = errand

    def committed(self, staged: StagedEntry, place: int) -> None:
        self._admin.changed(self._errand, staged, place)

    def failed(self, error: DLedgerError) -> None:
        self._admin.change_failed(self._errand, error)


def _body(origin: Origin, request: RemotingCommand, body: bytes) -> None:
    answer(origin, request.opaque, ResponseCode.SUCCESS, body=body)
