"""A group that is switched from pulling to popping and back (401), against a real group of three nodes.

Our push consumer always pulls and our simple consumer always pops. So whoever switches a group over stops the ones and
starts the others, as Java's push consumer does by itself when the broker tells it the new mode (400).
"""

from __future__ import annotations

import json
from collections import Counter

import pytest
import trio

from dledger_mq import Admin, Message, Producer, PushConsumer, ReceivedMessage, SimpleConsumer
from dledger_mq.client.inspector import Inspector
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from jepsen.processes import Group
from tests.integration.client.test_real_group import PATIENCE_S, until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TOPIC = NAME = "switched"
STEP = 20
LEFT = b"39"
"""A message that is popped and not acknowledged when its group goes back to pulling."""


class Switched:
    """A group that is switched over while messages are sent to it; it counts what was handled."""

    def __init__(self, group: Group, tools: Inspector, producer: Producer) -> None:
        self.namesrv = group.namesrv
        self.tools = tools
        self.producer = producer
        self.sent = 0
        self.handled: Counter[bytes] = Counter()
        self.left: set[bytes] = set()

    async def send(self) -> None:
        """Send so many more, in turn to all queues."""
        for number in range(self.sent, self.sent + STEP):
            await self.producer.send(Message(TOPIC, b"%d" % number))
        self.sent += STEP

    async def ask(self, code: RequestCode, **fields: object) -> bytes:
        (name,) = await self.tools.broker_names()
        body = {"topic": TOPIC, "consumerGroup": NAME, **fields}
        answer = await self.tools.ask(name, code, {}, json.dumps(body).encode())
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return answer.body

    async def switch(self, mode: str) -> None:
        await self.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, mode=mode, popShareQueueNum=0)

    async def modes(self, client_id: str) -> set[str]:
        """What a client that asks for its queues is told to do with them; waits until it is known."""
        fields = {"clientId": client_id, "strategyName": "AVG"}
        rows: list[dict[str, str]] | None = None
        with trio.fail_after(PATIENCE_S):
            while not rows:
                said = json.loads(await self.ask(RequestCode.QUERY_ASSIGNMENT, **fields))
                rows = said["messageQueueAssignments"]
        assert rows
        return {row["mode"] for row in rows}

    async def _handle(self, message: ReceivedMessage) -> None:
        self.handled[message.body] += 1

    async def pull(self) -> None:
        """Consume by pulls, while more is sent, until nothing is left but what is in flight."""
        await self.switch("PULL")
        async with (
            Admin(self.namesrv, timeout_s=PATIENCE_S) as admin,
            PushConsumer(
                self.namesrv, NAME, self._handle, subscriptions={TOPIC: "*"}, start_from="first"
            ) as consumer,
        ):
            await self.send()
            await until(lambda: not self._missing())
            assert await self.modes(await member_of(admin)) == {"PULL"}
            await consumer.commit()

    async def pop(self, *, leave: bytes | None = None) -> None:
        """Consume by pops, while more is sent; leave one message in flight, which comes again soon."""
        await self.switch("POP")
        self.left.clear()
        async with (
            Admin(self.namesrv, timeout_s=PATIENCE_S) as admin,
            SimpleConsumer(
                self.namesrv,
                NAME,
                subscriptions={TOPIC: "*"},
                start_from="first",
                timeout_s=PATIENCE_S,
            ) as consumer,
        ):
            await self.send()
            with trio.fail_after(PATIENCE_S):
                while self._missing():
                    for message in await consumer.receive(invisible_s=3600, wait_s=1):
                        if message.body == leave:
                            await consumer.change_invisible_time(message, 0.5)
                            self.left.add(message.body)
                            continue
                        await consumer.ack(message)
                        self.handled[message.body] += 1
            assert await self.modes(await member_of(admin)) == {"POP"}

    def _missing(self) -> set[bytes]:
        return {b"%d" % number for number in range(self.sent)} - self.handled.keys() - self.left


async def member_of(admin: Admin) -> str:
    """The only client of the group; waits until the node that is asked has heard of it."""
    with trio.fail_after(PATIENCE_S):
        while True:
            members = (await admin.describe_group(NAME)).members
            if members:
                (member,) = members
                return member
            await trio.sleep(0.05)


async def test_a_group_that_pulls_then_pops_then_pulls_loses_nothing_and_gets_nothing_twice(
    group: Group,
) -> None:
    async with (
        Inspector(group.namesrv, timeout_s=PATIENCE_S) as tools,
        Admin(group.namesrv, timeout_s=PATIENCE_S) as admin,
        Producer(group.namesrv, "p", timeout_s=PATIENCE_S) as producer,
    ):
        await admin.create_topic(TOPIC, queues=4)
        await admin.create_group(NAME)
        switched = Switched(group, tools, producer)
        await switched.pull()
        await switched.pop(leave=LEFT)
        await switched.pull()
        await switched.pop()
    assert set(switched.handled) == {b"%d" % number for number in range(4 * STEP)}, "none is lost"
    assert max(switched.handled.values()) == 1, "what was acknowledged does not come again"
