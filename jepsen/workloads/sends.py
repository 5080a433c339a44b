"""Sends as real clients make them when they are in a hurry or in trouble, written as raw frames.

The model. A message is everything that would be stored of it: topic, queue, body, tags, properties. Whoever is answered
a place finds exactly that message there (`checkers/places.py`), and it stands nowhere else: what is sent again,
because nobody was answered, stands once. Two messages that differ in anything are two, though they carry one
UNIQ_KEY, travel in one frame, or follow each other without an answer in between.

What is done. An operation is one of these plans, with a fresh UNIQ_KEY for each message:

    pipelined   several requests at once on one connection
    regrouped   the batches [A,B] and [A,C] and A alone, at once
    spread      one message to several queues, at once or one after the other's answer
    changed     one key with other tags and other bodies, at once or one after the other's answer
    elsewhere   to one node, and hung up; a moment later the same again to another one, with another born time
    in parts    a batch to one node, and hung up; a moment later its messages one by one to another one
    halves      two half messages with other bodies under one key, and the commits of both

The requests of one connection are made at one moment, so none of them is a second one on purpose (guarantee 9). What
was not answered is sent again from a new connection to the next node, as clients do: twice, each time with another born
time. Who gives up says so by closing the connection, and hears what was answered until then, so that what comes
again is never what was confirmed. A message that was confirmed in another request of the plan is not sent again: that
would be one more on purpose.

A message's name is its body, its tags and the queue that it is meant for: "s17.v1 paid > 3".
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import groupby
from typing import Final, NamedTuple, NotRequired, TypedDict, Unpack

import trio

from dledger_mq import ClientError, MessageQueue, PullConsumer, ReceivedMessage
from dledger_mq.client.credentials import chosen_credentials
from dledger_mq.client.send_frames import SendTemplates
from dledger_mq.message.batch import BatchItem, encode_batch
from dledger_mq.message.ids import parse_offset_msg_id
from dledger_mq.message.numbers import QueueOffset
from dledger_mq.message.properties import encode_properties
from dledger_mq.message.sys_flags import TRANSACTION_PREPARED
from dledger_mq.remoting.codes import RequestCode, ResponseCode, is_definite
from dledger_mq.remoting.header import RemotingCommand, encode_command, make_request
from jepsen.checkers.groups import group_of
from jepsen.checkers.places import check_places
from jepsen.checkers.queue_log import check_queue_log
from jepsen.checkers.results import Checker
from jepsen.checkers.total_queue import check_total_queue
from jepsen.clients.raw import RawConnection, raw_connection, signed
from jepsen.clients.topics import open_topics
from jepsen.generators import Generator, Invocation
from jepsen.history.outcomes import Outcome, ended
from jepsen.history.values import FrameAsked, FrameEnd, shaped
from jepsen.systems.api import System
from jepsen.systems.brokers import brokers
from jepsen.workloads.api import Workload, WorkloadClient
from jepsen.workloads.contents import STEP, body_of, content, content_read, key_of
from jepsen.workloads.reading import (
    READS,
    PollingReader,
    Reader,
    drain,
    mixed_with_polls,
    share_out,
)

TOPIC: Final = "ChaosSends"
GROUP: Final = "chaos-raw"
QUEUES: Final = 4
ANSWER_S: Final = 4.0
AGAIN_S: Final = (0.1, 0.5)
"""A client tries again after a moment. The first try is over by then, or still waits."""
READ_TIMEOUT_S: Final = 4.0
TRIES: Final = 3
SENDS_PER_POLL: Final = 2


class SentMessage(NamedTuple):
    """One message of a request."""

    uniq: str
    body: str
    tags: str | None


class FrameWay(TypedDict, total=False):
    """The way in which a request is sent.

    Attributes:
        node: number of the node that gets it.
        visit: requests of one visit share a connection.
        waits: those before it are answered first.
        hung_up: the connection is closed as soon as it is written.
        after_s: the client waits so long before it opens the connection.
        half: it is a half message, to be committed when it is stored.
    """

    node: int
    visit: int
    waits: bool
    hung_up: bool
    after_s: float
    half: bool


class PlannedFrame(FrameAsked):
    """One request of a plan, as the history has it: what `messages.py` says of frames, and the way it is sent."""

    sent: list[SentMessage]
    node: int
    visit: int
    waits: NotRequired[bool]
    hung_up: NotRequired[bool]
    after_s: NotRequired[float]


class FramePlan(TypedDict):
    """The requests of one operation."""

    frames: list[PlannedFrame]


class SendsWorkload(Workload):
    """The workload of hurried or troubled sends, written as raw frames."""

    name = "sends"

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._queues: dict[str, MessageQueue] = {}
        self._addresses: Mapping[str, Sequence[str]] = {}
        self._readers: list[Reader] = []
        self._numbers = itertools.count()

    @asynccontextmanager
    async def setup(self, system: System) -> AsyncIterator[None]:
        """Make the topic and share out its queues."""
        group = brokers(system)
        self._addresses = group.addresses
        self._queues = await open_topics(group, [TOPIC], queues=QUEUES)
        self._readers = share_out(list(self._queues), self._workers)
        yield

    @asynccontextmanager
    async def client(self, system: System, process: int) -> AsyncIterator[WorkloadClient]:
        """Open a consumer; connections for sends are opened when they are needed."""
        slot = process % self._workers
        namesrv = brokers(system).namesrv
        async with PullConsumer(namesrv, f"{GROUP}-{slot}", timeout_s=READ_TIMEOUT_S) as consumer:
            reader = PollingReader(self._readers[slot], consumer, self._queues, row=row_of)
            yield SendsClient(PlanSender(self._addresses, self._queues), reader)

    def generator(self, chance: random.Random, workers: int) -> Generator:
        """Generate plans, and polls beside them."""
        return mixed_with_polls(self._readers, partial(self._plan, chance), SENDS_PER_POLL, chance)

    def _plan(self, chance: random.Random) -> Invocation:
        name, make = chance.choice(sorted(PLANS.items()))
        number = next(self._numbers)
        # The requests of a plan share connections, and so a group; the groups have plans in turn.
        group, nodes = list(self._addresses.items())[number % len(self._addresses)]
        queues = [queue for queue in self._queues if group_of(queue) == group]
        planner = Planner(f"s{number}", queues, nodes, chance)
        return Invocation("frames", {"plan": name, "frames": make(planner)})

    def final(self, workers: int) -> Generator:
        """Read everything."""
        return drain(self._readers, list(self._queues))

    def checkers(self) -> Sequence[Checker]:
        """Return a bag, a log per queue, and what stands where answers say."""
        return (check_total_queue, check_queue_log, check_places)


class Planner:
    """Draws what the plans of one operation have in common. Pure but for `chance`."""

    def __init__(
        self, name: str, queues: Sequence[str], nodes: Sequence[str], chance: random.Random
    ) -> None:
        self.name = name
        self.chance = chance
        self.queue = chance.choice(queues)
        self.queues = chance.sample(queues, 2)
        node = chance.randrange(len(nodes))
        self.node, self.other = node, (node + chance.randrange(1, max(len(nodes), 2))) % len(nodes)
        self._uniq = itertools.count()

    def message(self, body: str, tags: str | None = None, uniq: str = "") -> SentMessage:
        """Build one message, under a key of its own where none is given."""
        return SentMessage(
            uniq or f"{self.name}-{next(self._uniq)}".upper(), f"{self.name}.{body}", tags
        )

    def frame(
        self, *messages: SentMessage, queue: str = "", **way: Unpack[FrameWay]
    ) -> PlannedFrame:
        """Build one request."""
        queue = queue or self.queue
        return {
            "queue": queue,
            "messages": [
                (name_of(body, tags, queue), content_of(body, tags)) for _, body, tags in messages
            ],
            "sent": list(messages),
            "node": self.node,
            "visit": 0,
            **way,
        }

    def again(self, message: SentMessage) -> PlannedFrame:
        """Build the request that sends the same message a moment later to another node."""
        after_s = round(self.chance.uniform(*AGAIN_S), 3)
        return self.frame(message, node=self.other, visit=1, after_s=after_s)


def pipelined(planner: Planner) -> list[PlannedFrame]:
    """Plan several requests at once."""
    return [planner.frame(planner.message(f"p{number}")) for number in range(4)]


def regrouped(planner: Planner) -> list[PlannedFrame]:
    """Plan [A,B], [A,C] and A, in any order."""
    a, b, c = (planner.message(body) for body in "abc")
    frames = [planner.frame(a, b), planner.frame(a, c), planner.frame(a)]
    planner.chance.shuffle(frames)
    return frames


def spread(planner: Planner) -> list[PlannedFrame]:
    """Plan one message to two queues."""
    message, waits = planner.message("m"), planner.chance.random() < 0.5
    one, other = planner.queues
    return [planner.frame(message, queue=one), planner.frame(message, queue=other, waits=waits)]


def changed(planner: Planner) -> list[PlannedFrame]:
    """Plan one key, and each time another message."""
    key = f"{planner.name}-K".upper()
    versions = [("v1", "created"), ("v1", "paid"), ("v2", "created"), ("v1", None)]
    waits = planner.chance.random() < 0.5
    return [planner.frame(planner.message(body, tags, key), waits=waits) for body, tags in versions]


def elsewhere(planner: Planner) -> list[PlannedFrame]:
    """Plan a send that is given up at once, and made again at another node."""
    message = planner.message("m")
    return [planner.frame(message, hung_up=True), planner.again(message)]


def in_parts(planner: Planner) -> list[PlannedFrame]:
    """Plan a batch that is given up at once, its messages made again one by one."""
    messages = [planner.message(body) for body in "abc"]
    return [planner.frame(*messages, hung_up=True), *map(planner.again, messages)]


def halves(planner: Planner) -> list[PlannedFrame]:
    """Plan half messages with other bodies under one key."""
    key = f"{planner.name}-H".upper()
    return [planner.frame(planner.message(body, uniq=key), half=True) for body in ("v1", "v2")]


PLANS: Final[Mapping[str, Callable[[Planner], list[PlannedFrame]]]] = {
    "pipelined": pipelined,
    "regrouped": regrouped,
    "spread": spread,
    "changed": changed,
    "elsewhere": elsewhere,
    "in parts": in_parts,
    "halves": halves,
}


def name_of(body: str, tags: str | None, queue: str) -> str:
    """Return the name of a message, which distinguishes it from all others."""
    return f"{body} {tags or '-'} > {queue.rpartition('/')[2]}"


def content_of(body: str, tags: str | None) -> str:
    """Return its content, as `contents.content` has it."""
    return content(body_of(body), tags, keys=(), properties={STEP: body}, flag=0)


def row_of(message: ReceivedMessage) -> list[object]:
    """Return the history's row for a message that was read."""
    name = name_of(key_of(message.body), message.tags, str(message.queue.queue_id))
    uniq, at = message.unique_key, message.physical_offset
    return [message.queue_offset, name, uniq, at, content_read(message)]


class PlanSender:
    """Carries out plans."""

    def __init__(
        self, addresses: Mapping[str, Sequence[str]], queues: Mapping[str, MessageQueue]
    ) -> None:
        self._addresses = addresses
        self._queues = queues
        self._templates = SendTemplates(GROUP, credentials=chosen_credentials())
        self._opaques = itertools.count(1)

    async def carry_out(self, frames: Sequence[PlannedFrame]) -> list[FrameEnd]:
        """Send all frames of a plan, unanswered ones again, and return how each ended."""
        ends: list[FrameEnd] = [{"end": "info"} for _ in frames]
        # By place: a try of unknown outcome, which no later refusal undoes.
        perhaps_done: set[int] = set()
        left = list(range(len(frames)))
        for attempt in range(TRIES):
            for _, visit in groupby(left, key=lambda place: frames[place]["visit"]):
                found = await self._visit(frames, list(visit), attempt)
                if found is None:  # it may have been answered: what is made again may stand twice
                    return ends
                for place, end in found.items():
                    if end["end"] == "info":
                        perhaps_done.add(place)
                    elif end["end"] == "fail" and place in perhaps_done:
                        end["end"] = "info"
                    ends[place] = end
            left = [place for place in left if _may_come_again(frames, ends, place)]
        return ends

    async def _visit(
        self, frames: Sequence[PlannedFrame], places: list[int], attempt: int
    ) -> dict[int, FrameEnd] | None:
        """Send these frames on one connection; return how each of them ended, None if it was hung up too late."""
        nodes = self._addresses[group_of(frames[places[0]]["queue"])]
        node = (frames[places[0]]["node"] + attempt) % len(nodes)
        await trio.sleep(frames[places[0]].get("after_s", 0.0))
        async with raw_connection(nodes[node]) as connection:
            if connection is None:
                return {}
            opaques: dict[int, int] = {}  # by place
            born_ms = time.time_ns() // 1_000_000
            unsent = b""
            for place in places:
                if frames[place].get("waits") and opaques:
                    await connection.write(unsent)
                    await connection.wait_for(opaques.values(), ANSWER_S)
                    unsent = b""
                opaques[place] = next(self._opaques)
                unsent += self._encode(frames[place], opaques[place], born_ms)
            if frames[places[0]].get("hung_up"):
                is_unheard = await connection.write_and_hang_up(unsent)
                return {place: {"end": "info"} for place in opaques} if is_unheard else None
            await connection.write(unsent)
            if not await connection.wait_for(opaques.values(), ANSWER_S):
                await connection.give_up()
            return {
                place: await self._end(connection, frames[place], connection.answers.get(opaque))
                for place, opaque in opaques.items()
            }

    def _encode(self, frame: PlannedFrame, opaque: int, born_ms: int) -> bytes:
        """Encode one request; a single message carries its properties itself, a batch's stand inside its body."""
        queue = self._queues[frame["queue"]]
        items = [
            BatchItem(0, body_of(body), properties_of(uniq, body, tags, is_half=_is_half(frame)))
            for uniq, body, tags in frame["sent"]
        ]
        is_batch = len(items) > 1
        return self._templates.frame(
            queue,
            encode_batch(items) if is_batch else items[0].body,
            b"" if is_batch else items[0].properties,
            opaque=opaque,
            born_timestamp_ms=born_ms,
            sys_flag=TRANSACTION_PREPARED if _is_half(frame) else 0,
            is_batch=is_batch,
        )

    async def _end(
        self, connection: RawConnection, frame: PlannedFrame, answer: RemotingCommand | None
    ) -> FrameEnd:
        """Say how a request ended; a half message counts only once its commit was confirmed as well."""
        if answer is None:
            return {"end": "info"}
        if answer.code != ResponseCode.SUCCESS:
            is_fail = is_definite(answer.code)
            return {
                "end": "fail" if is_fail else "info",
                "error": f"{answer.code}: {answer.remark}",
            }
        if _is_half(frame) and not await self._commit(connection, frame, answer):
            return {"end": "info", "error": "the commit was not confirmed"}
        topic, broker_name, _ = frame["queue"].rsplit("/", 2)
        end: FrameEnd = {
            "end": "ok",
            "queue": f"{topic}/{broker_name}/{answer.ext['queueId']}",
            "ids": answer.ext["msgId"].split(","),
        }
        if not _is_half(frame):
            end["offset"] = QueueOffset(int(answer.ext["queueOffset"]))
        return end

    async def _commit(
        self, connection: RawConnection, frame: PlannedFrame, answer: RemotingCommand
    ) -> bool:
        """Commit a stored half message; return whether the commit was confirmed."""
        uniq = frame["sent"][0][0]
        ext = {
            "topic": TOPIC,
            "producerGroup": GROUP,
            "tranStateTableOffset": answer.ext["queueOffset"],
            "commitLogOffset": str(parse_offset_msg_id(answer.ext["msgId"])[2]),
            "msgId": uniq,
            "transactionId": answer.ext.get("transactionId", uniq),
            "commitOrRollback": "8",
        }
        opaque = next(self._opaques)
        await connection.write(
            encode_command(make_request(RequestCode.END_TRANSACTION, opaque, signed(ext)))
        )
        await connection.wait_for([opaque], ANSWER_S)
        ending = connection.answers.get(opaque)
        return ending is not None and ending.code == ResponseCode.SUCCESS


def _is_half(frame: PlannedFrame) -> bool:
    return bool(frame.get("half"))


def _may_come_again(frames: Sequence[PlannedFrame], ends: Sequence[FrameEnd], place: int) -> bool:
    """Return whether it was not answered with success, and none of its messages was, in any frame. Pure."""
    frame = frames[place]
    if frame.get("hung_up") or _is_half(frame):  # the other half would be another one
        return False
    confirmed = {
        key
        for other, end in zip(frames, ends, strict=True)
        if end["end"] == "ok"
        for key, _ in other["messages"]
    }
    return not any(key in confirmed for key, _ in frame["messages"])


def properties_of(uniq: str, body: str, tags: str | None, *, is_half: bool) -> bytes:
    """Return the properties of a message as they travel."""
    properties = {"UNIQ_KEY": uniq, STEP: body}
    if tags is not None:
        properties["TAGS"] = tags
    if is_half:
        properties |= {"TRAN_MSG": "true", "PGROUP": GROUP}
    return encode_properties(properties)


class SendsClient:
    """A sender and a reader."""

    def __init__(self, sender: PlanSender, reader: PollingReader) -> None:
        self._sender = sender
        self._reader = reader

    async def invoke(self, f: str, value: object) -> Outcome:
        """Run one operation, and return its outcome."""
        try:
            if f in READS:
                return await self._reader.invoke(f, value)
        except ClientError as error:
            return ended(error, value, changes_nothing=True)
        ends = await self._sender.carry_out(shaped(value, FramePlan)["frames"])
        types = {each["end"] for each in ends}
        if "ok" in types:
            return Outcome("ok", {"frames": ends})
        errors = ", ".join(sorted({each.get("error", "no answer") for each in ends}))
        return Outcome("info" if "info" in types else "fail", None, errors)
