"""A broker group in memory that also answers what tools ask (21, 202, 203, 208, 300, 314, 12, 33), for one command.

The client's own fake knows what a client needs; here is what operators ask besides. What a test wants to be answered
otherwise it puts into `answers`.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from broker.admin.cli import COMMANDS, main, spelled_out
from broker.admin.command import Command, CommandGroup
from dledger_mq.message.properties import encode_properties
from dledger_mq.message.record import StoredMessage, decode_record
from dledger_mq.net.connection import Connection
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand, make_response
from dledger_mq.remoting.json_body import read_object, write_json
from dledger_mq.remoting.message_queue import WireQueue
from dledger_mq.testing import FakeGroup, open_fake_group
from dledger_mq.testing.fake_group import FakeNode
from tests.unit.admin.runtime_tables import table_of

BROKER = "broker-a"
MINUTE_MS = 60_000
Answer = Callable[[RemotingCommand], RemotingCommand | None]


class ToolGroup:
    """The group, and the answers to tools.

    Attributes:
        fake: topics, messages, offsets and members are its own.
        answers: by request code, instead of what is answered otherwise; None: no answer at all.
        members: of consumer groups that are online, as 203 shows them.
        settings: of topics and consumer groups, as they were changed last.
        is_ours: it says that it is a broker of this project.
        moves_groups: it carries out resets (222).
        standing: what answers to searches say of whoever gives them.
        queries: the fields of searches by key.
    """

    def __init__(self, fake: FakeGroup) -> None:
        self.fake = fake
        self.answers: dict[int, Answer] = {}
        self.members: dict[str, list[dict[str, object]]] = {}
        self.settings: dict[str, dict[str, object]] = {}
        self.is_ours = self.moves_groups = True
        self.standing = {"dledgerMember": "n0", "dledgerLeads": "true", "dledgerBehind": "0"}
        self.queries: list[dict[str, str]] = []
        self._now_ms = fake.clock.now_ms - MINUTE_MS
        self._otherwise = fake._answer
        fake._answer = self._answer  # type: ignore[method-assign]

    def put(self, topic: str, queue: int, body: bytes, **properties: str) -> StoredMessage:
        """Store a message; return it."""
        self._now_ms += 1000
        pairs = encode_properties(properties)
        self.fake.log.store(topic, queue, body, pairs, sys_flag=0, flag=0, born_ms=self._now_ms)
        return self.fake.messages(topic, queue)[-1]

    def _answer(
        self, node: FakeNode, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | None:
        made: dict[int, Callable[[RemotingCommand], bytes | None]] = {
            28: self._runtime,
            21: self._topics,
            201: self._groups,
            202: self._queues,
            203: self._consumers,
            208: self._progress,
            300: self._groups_of,
            314: self._clone,
            12: self._by_key,
            33: self._at,
        }
        if request.code == RequestCode.INVOKE_BROKER_TO_RESET_OFFSET:
            return self._reset(request)
        if request.code in self.answers:
            return self.answers[request.code](request)
        if request.code == RequestCode.UPDATE_AND_CREATE_TOPIC:
            self.settings[request.ext["topic"]] = dict(request.ext)
        if request.code == RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP:
            settings = {str(key): value for key, value in read_object(request.body).items()}
            self.settings[str(settings["groupName"])] = dict(settings)
        if request.code not in made:
            return self._otherwise(node, connection, request)
        body = made[request.code](request)
        if body is not None and request.code in {12, 33} and self.is_ours:
            return make_response(request.opaque, 0, ext=dict(self.standing), body=body)
        if body is None:
            missing = {
                202: ResponseCode.TOPIC_NOT_EXIST,
                203: ResponseCode.CONSUMER_NOT_ONLINE,
                12: ResponseCode.QUERY_NOT_FOUND,
                33: ResponseCode.SYSTEM_ERROR,
            }
            return make_response(request.opaque, missing[request.code], "not there")
        return make_response(request.opaque, ResponseCode.SUCCESS, body=body)

    def _runtime(self, request: RemotingCommand) -> bytes:
        members = {"raftMemberAddresses": "{}", "raftMembers": "n0"}
        return write_json({"table": (table_of("n0") | members) if self.is_ours else {"a": "b"}})

    def _reset(self, request: RemotingCommand) -> RemotingCommand:
        ext = request.ext
        if not self.moves_groups:
            return make_response(request.opaque, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        assert self.is_ours, "another broker passes over the queue"
        if ext["topic"] not in self.fake.log.queues:
            return make_response(request.opaque, ResponseCode.TOPIC_NOT_EXIST, "no such topic")
        self.fake.offsets[ext["group"], ext["topic"], int(ext["queueId"])] = int(ext["offset"])
        return make_response(request.opaque, ResponseCode.SUCCESS)

    def _topics(self, request: RemotingCommand) -> bytes:
        table = {}
        for name, queues in self.fake.log.queues.items():
            put: Any = self.settings.get(name, {})
            table[name] = {
                "topicName": name,
                "readQueueNums": int(put.get("readQueueNums", len(queues))),
                "writeQueueNums": int(put.get("writeQueueNums", len(queues))),
                "perm": int(put.get("perm", 6)),
                "order": put.get("order") == "true",
            }
            if put.get("attributes"):
                key, _, value = put["attributes"].removeprefix("+").partition("=")
                table[name]["attributes"] = {key: value}
        return write_json({"topicConfigTable": table})

    def _groups(self, request: RemotingCommand) -> bytes:
        table = {
            name: {"groupName": name} | self.settings.get(name, {}) for name in self.fake.groups
        }
        return write_json({"subscriptionGroupTable": table})

    def _ends(self, topic: str, queue_id: int) -> tuple[int, int, int]:
        queue = self.fake.log.queue(topic, queue_id)
        kept = [decode_record(record) for record in queue if record]
        return len(queue) - len(kept), len(queue), kept[-1].store_timestamp_ms if kept else 0

    def _queues(self, request: RemotingCommand) -> bytes | None:
        topic = request.ext["topic"]
        if topic not in self.fake.log.queues:
            return None
        table = {}
        for queue_id in range(len(self.fake.log.queues[topic])):
            low, high, last_ms = self._ends(topic, queue_id)
            table[WireQueue(BROKER, queue_id, topic)] = {
                "lastUpdateTimestamp": last_ms,
                "maxOffset": high,
                "minOffset": low,
            }
        return write_json({"offsetTable": table})

    def _progress(self, request: RemotingCommand) -> bytes:
        group = request.ext["consumerGroup"]
        known = sorted({topic for name, topic, _ in self.fake.offsets if name == group})
        named = [request.ext["topic"]] if "topic" in request.ext else known
        table = {
            WireQueue(BROKER, queue_id, topic): {
                "brokerOffset": self._ends(topic, queue_id)[1],
                "consumerOffset": self.fake.offsets.get((group, topic, queue_id), -1),
                "lastTimestamp": 0,
                "pullOffset": self.fake.offsets.get((group, topic, queue_id), 0)
                + self.fake.pops.counts().get(f"{topic}@{group}", {}).get(queue_id, 0),
            }
            for topic in named
            for queue_id in range(len(self.fake.log.queues.get(topic, ())))
        }
        return write_json({"consumeTps": 0.0, "offsetTable": table})

    def _consumers(self, request: RemotingCommand) -> bytes | None:
        members = self.members.get(request.ext["consumerGroup"])
        if not members:
            return None
        return write_json(
            {
                "connectionSet": members,
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                "subscriptionTable": {"Orders": {"topic": "Orders", "subString": "red || blue"}},
            }
        )

    def _groups_of(self, request: RemotingCommand) -> bytes:
        found = {group for group, topic, _ in self.fake.offsets if topic == request.ext["topic"]}
        return write_json({"groupList": sorted(found)})

    def _clone(self, request: RemotingCommand) -> bytes:
        source, target = request.ext["srcGroup"], request.ext["destGroup"]
        for (group, topic, queue_id), offset in list(self.fake.offsets.items()):
            if group == source and request.ext.get("topic", topic) == topic:
                self.fake.offsets[target, topic, queue_id] = offset
        return b""

    def _by_key(self, request: RemotingCommand) -> bytes | None:
        ext = request.ext
        self.queries.append(dict(ext))
        before = int(ext.get("dledgerBefore", 2**62)) if self.is_ours else 2**62
        found = [
            record
            for queue in self.fake.log.queues.get(ext["topic"], ())
            for record in queue
            if record
            and ext["key"].encode()
            in (
                decode_record(record).find(b"UNIQ_KEY"),
                *(decode_record(record).find(b"KEYS") or b"").split(),
            )
            and int(ext["beginTimestamp"])
            <= decode_record(record).store_timestamp_ms
            <= int(ext["endTimestamp"])
            and decode_record(record).physical_offset < before
        ]
        found.sort(key=lambda record: decode_record(record).physical_offset)
        return b"".join(found[-int(ext["maxNum"]) :]) or None

    def _at(self, request: RemotingCommand) -> bytes | None:
        for queues in self.fake.log.queues.values():
            for queue in queues:
                for record in queue:
                    if record and decode_record(record).physical_offset == int(
                        request.ext["offset"]
                    ):
                        return record
        return None


@asynccontextmanager
async def open_tool_group() -> AsyncIterator[ToolGroup]:
    """Serve the topic Orders with two queues, and the group billing that has consumed half of it."""
    async with open_fake_group(nodes=1) as fake:
        group = ToolGroup(fake)
        fake.create_topic("Orders", 2)
        for number in range(4):
            group.put(
                "Orders", 0, b"body %d" % number, UNIQ_KEY=f"U{number}", KEYS=f"order-{number} all"
            )
        group.put("Orders", 1, b"\xff\x00", UNIQ_KEY="U9", TAGS="red")
        fake.groups.add("billing")
        fake.offsets["billing", "Orders", 0] = 2
        yield group


async def dledger_admin(group: ToolGroup, *words: str) -> int:
    """Run a command, with the group's name server unless it names nodes; return its exit code."""
    whole = [*words, *(() if "-b" in words else ("-n", group.fake.namesrv))]
    with trio.fail_after(60):
        return await trio.to_thread.run_sync(main, whole)


async def in_json(
    group: ToolGroup, capfd: pytest.CaptureFixture[str], *words: str
) -> tuple[int, dict[str, Any]]:
    """Run a command with --json; return its exit code and what it printed."""
    capfd.readouterr()
    code = await dledger_admin(group, *words, "--json")
    printed = capfd.readouterr().out
    found = json.loads(printed) if printed else {}
    assert not undocumented(found, row_of(words).fields), "a field that the help does not name"
    return code, found


def row_of(words: Sequence[str]) -> Command:
    """Return the row of the table of commands that a command line means."""
    first, *rest = spelled_out(words)
    row = next(each for each in COMMANDS if each.name == first)
    if isinstance(row, CommandGroup):
        return next(each for each in row.verbs if each.name == rest[0])
    return row


def undocumented(value: object, fields: str) -> set[str]:
    """Return the names in a JSON object that are not in a text of `Command.fields`, but for maps by others' names."""
    known, free = set(re.findall(r"\w+", fields)), set(re.findall(r"(\w+): \{", fields))
    if isinstance(value, list):
        return {name for each in value for name in undocumented(each, fields)}
    if not isinstance(value, dict):
        return set()
    inner = {name: each for name, each in value.items() if name not in free}
    return (value.keys() - known) | {
        name for each in inner.values() for name in undocumented(each, fields)
    }
