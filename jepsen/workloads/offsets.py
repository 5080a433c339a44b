"""Consumer offsets as a register: committed and asked for at any node; linearizable.

The model. Each consumer group has one offset in one queue. A commit below it changes nothing (docs/divergence.md),
so it is a register that keeps the highest value: a question is answered with the highest that was committed before.
Each commit and each question takes effect at one moment between question and answer (`checkers/linearizable.py`),
whatever nodes they were sent to. The queue is filled before: an offset beyond its end is refused.

What is done. Raw frames, each to a node of its own choice, with no routes and no retries: so that leaders of the
past, members that have just started and members that hear nobody are asked, too. A few groups are in use at a time;
each is given up after some operations and a new one begins. In the end each is asked for at every node.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, NamedTuple, TypedDict

from dledger_mq import Message, Producer
from dledger_mq.remoting.codes import RequestCode, ResponseCode, is_definite
from dledger_mq.remoting.header import RemotingCommand, encode_command
from jepsen.checkers.linearizable import check_linearizable
from jepsen.checkers.models import MAX_REGISTER
from jepsen.checkers.results import Checker
from jepsen.clients.raw import raw_connection, signed
from jepsen.clients.topics import open_topics
from jepsen.generators import Endless, Generator, Invocation, each_slot, sequence
from jepsen.history.outcomes import Outcome
from jepsen.history.values import shaped
from jepsen.systems.api import System
from jepsen.systems.brokers import brokers
from jepsen.workloads.api import Workload, WorkloadClient

TOPIC: Final = "offsets"
GROUPS: Final = 4
OPERATIONS: Final = 120
FILLED: Final = 400
"""Messages in the queue; no offset is committed beyond them."""

STEP_MAX: Final = 5
ANSWER_S: Final = 5.0
BATCH: Final = 100
ABSENT: Final = -1
"""The offset that a group without one reads."""


class _ClientVersion(TypedDict):
    """The fields of a request's header that say whose it is."""

    language: str
    version: int


JAVA_5: Final[_ClientVersion] = {"language": "JAVA", "version": 479}
"""A client that is refused with a code when nobody knows the offset."""


class OffsetQuestion(NamedTuple):
    """A question for a group's offset at a node, by its number."""

    group: str
    node: int


class CommitRequest(NamedTuple):
    """A commit of a group: the offset, and the number of the node that gets it."""

    group: str
    at: tuple[int, int]


class OffsetsWorkload(Workload):
    """The workload of consumer offsets as registers, at any node."""

    name = "offsets"

    def __init__(self, _workers: int = 1) -> None:
        self._numbers = itertools.count()
        self._left: dict[str, int] = {}
        self._highest: dict[str, int] = {}
        self._addresses: dict[str, Sequence[str]] = {}  # by what names of groups begin with
        self._nodes = 0

    @asynccontextmanager
    async def setup(self, system: System) -> AsyncIterator[None]:
        """Make the topic, of one queue, and fill it."""
        group = brokers(system)
        self._addresses = _by_beginning(group.addresses)
        self._nodes = len(group.nodes)
        queues = (await open_topics(group, [TOPIC], queues=1)).values()
        async with Producer(group.namesrv, "chaos-setup") as producer:
            for queue in queues:
                for _ in range(FILLED // BATCH):
                    batch = [Message(TOPIC, b"x") for _ in range(BATCH)]
                    await producer.send_batch(batch, queue=queue)
        yield

    @asynccontextmanager
    async def client(self, system: System, process: int) -> AsyncIterator[WorkloadClient]:
        """Open the client of a process, which opens a connection for each operation."""
        yield OffsetsClient(self._addresses)

    def generator(self, chance: random.Random, workers: int) -> Generator:
        """Generate commits and questions, as many of the one as of the other."""
        return Endless(lambda: self._next(chance))

    def _name(self, number: int) -> str:
        """Return the name of a consumer group; the broker groups have them in turn."""
        return f"{list(self._addresses)[number % len(self._addresses)]}g{number}"

    def _next(self, chance: random.Random) -> Invocation:
        """Draw a commit or a read; a commit may go back by up to two, so that rewinding is tested as well."""
        while len(self._left) < GROUPS:
            name = self._name(next(self._numbers))
            self._left[name], self._highest[name] = OPERATIONS, 0
        name = chance.choice(sorted(self._left))
        self._left[name] -= 1
        if not self._left[name]:
            del self._left[name]
        node = chance.randrange(self._nodes)
        if chance.random() < 0.5:
            return Invocation("read", [name, node])
        offset = min(max(0, self._highest[name] + chance.randint(-2, STEP_MAX)), FILLED)
        self._highest[name] = max(offset, self._highest[name])
        return Invocation("commit", [name, [offset, node]])

    def final(self, workers: int) -> Generator:
        """Ask for every group at every node."""
        wanted = [[name, node] for name in self._highest for node in range(self._nodes)]
        return each_slot(
            workers,
            lambda slot: sequence([Invocation("read", value) for value in wanted[slot::workers]]),
        )

    def checkers(self) -> Sequence[Checker]:
        """Return linearizability, group by group."""
        return (partial(check_linearizable, model=MAX_REGISTER),)


class OffsetsClient:
    """Commits and asks as one process."""

    def __init__(self, addresses: Mapping[str, Sequence[str]]) -> None:
        self._addresses = addresses

    async def invoke(self, f: str, value: object) -> Outcome:
        """Run one operation at the node that it names, and return its outcome."""
        if f == "read":
            question = shaped(value, OffsetQuestion)
            name = question.group
            ext = {**_place(name), "setZeroIfNotFound": "false"}
            return _read(name, await self._ask(question, RequestCode.QUERY_CONSUMER_OFFSET, ext))
        name, (offset, node) = shaped(value, CommitRequest)
        ext = {**_place(name), "commitOffset": str(offset)}
        place = OffsetQuestion(name, node)
        return _committed(name, await self._ask(place, RequestCode.UPDATE_CONSUMER_OFFSET, ext))

    async def _ask(
        self, at: OffsetQuestion, code: int, ext: dict[str, str]
    ) -> RemotingCommand | str | None:
        """Return the answer; a text when it surely was not asked, None when there is no answer."""
        beginning = at.group[: at.group.rindex("g")]
        async with raw_connection(self._addresses[beginning][at.node]) as connection:
            if connection is None:
                return "no connection"
            request = RemotingCommand(code=code, opaque=1, ext=signed(ext), **JAVA_5)
            await connection.write(encode_command(request))
            await connection.wait_for([1], ANSWER_S)
            return connection.answers.get(1)


def _by_beginning(addresses: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """Return addresses by what the names of consumer groups begin with: nothing where there is one broker group."""
    if len(addresses) == 1:
        return {"": next(iter(addresses.values()))}
    return {f"{group}-": members for group, members in addresses.items()}


def _place(group: str) -> dict[str, str]:
    return {"consumerGroup": group, "topic": TOPIC, "queueId": "0"}


def _read(name: str, answer: RemotingCommand | str | None) -> Outcome:
    """Read an offset. A question changes nothing: without an answer it failed."""
    if isinstance(answer, RemotingCommand):
        if answer.code == ResponseCode.SUCCESS:
            return Outcome("ok", [name, int(answer.ext["offset"])])
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return Outcome("ok", [name, ABSENT])
    return Outcome("fail", error=_text(answer))


def _committed(name: str, answer: RemotingCommand | str | None) -> Outcome:
    if isinstance(answer, RemotingCommand) and answer.code == ResponseCode.SUCCESS:
        return Outcome("ok", [name, None])
    is_fail = isinstance(answer, str) or (answer is not None and is_definite(answer.code))
    return Outcome("fail" if is_fail else "info", error=_text(answer))


def _text(answer: RemotingCommand | str | None) -> str:
    if isinstance(answer, RemotingCommand):
        return f"{answer.code}: {answer.remark}"
    return answer or "no answer"
