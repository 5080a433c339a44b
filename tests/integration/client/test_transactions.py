"""Transactions over the deaths of leaders, with real processes (rules O)."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from dledger_mq import (
    Message,
    PullConsumer,
    ReceivedMessage,
    TransactionProducer,
    TransactionState,
)
from jepsen.processes import SMALL_SEGMENTS, Group
from jepsen.systems.observer import Observer
from tests.integration.client.leaders import a_moment, wait_for_queues
from tests.integration.client.test_real_group import PATIENCE_S

pytestmark = [pytest.mark.integration, pytest.mark.slow]

COMMIT, ROLLBACK, UNKNOWN = (
    TransactionState.COMMIT,
    TransactionState.ROLLBACK,
    TransactionState.UNKNOWN,
)


@pytest.fixture(scope="module")
def quick_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    folder: Path = tmp_path_factory.mktemp("transactions")
    checks_soon = "transactionTimeOut=1000\ntransactionCheckInterval=300\n"
    # None is given up, however long a failover takes.
    checks_soon += "transactionCheckMax=1000000\n"
    with Group(folder, settings=SMALL_SEGMENTS + checks_soon) as running:
        running.start()
        running.wait_listening()
        yield running


class Leaders:
    """Kills whoever leads, and starts it again."""

    def __init__(self, group: Group, observer: Observer) -> None:
        self._group = group
        self._observer = observer

    async def name(self) -> str:
        await self._observer.wait_whole(PATIENCE_S)
        name = await self._observer.wait_leader(PATIENCE_S)
        assert name is not None
        return name

    def kill(self, name: str) -> None:
        self._group.node(name).kill()

    def start(self, name: str) -> None:
        self._group.node(name).start()


@asynccontextmanager
async def leaders_of(group: Group) -> AsyncIterator[Leaders]:
    async with trio.open_nursery() as nursery:
        observer = Observer(group, lambda _node, _term: None)
        nursery.start_soon(observer.run)
        yield Leaders(group, observer)
        nursery.cancel_scope.cancel()


async def seen(group: Group, topic: str) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    async with PullConsumer(group.namesrv, "reader", timeout_s=PATIENCE_S) as reader:
        for queue in await reader.queues(topic):
            offset = await reader.min_offset(queue)
            while not (pulled := await reader.pull(queue, offset)).is_empty:
                found.update(message.body for message in pulled.messages)
                offset = pulled.next_offset
    return found


async def seen_in_the_end(group: Group, topic: str, count: int) -> Counter[bytes]:
    """As `seen`, once there are so many: while nobody leads, a follower shows what it knows to be committed."""
    with trio.fail_after(PATIENCE_S):
        while (found := await seen(group, topic)).total() < count:
            await a_moment()
    return found


async def no_check(message: ReceivedMessage) -> TransactionState:
    return UNKNOWN


async def test_the_leader_dies_between_half_message_and_end(quick_group: Group) -> None:
    async with (
        leaders_of(quick_group) as leaders,
        TransactionProducer(
            quick_group.namesrv, "p1", checker=no_check, timeout_s=PATIENCE_S
        ) as producer,
    ):
        await wait_for_queues(producer, "Between")
        for wanted in (COMMIT, ROLLBACK):
            name = await leaders.name()

            def local(name: str, wanted: TransactionState) -> Callable[[Message, str], object]:
                async def kill(message: Message, transaction_id: str) -> TransactionState:
                    leaders.kill(name)
                    return wanted

                return kill

            body = wanted.name.encode()
            result = await producer.send_in_transaction(
                Message("Between", body),
                local(name, wanted),  # type: ignore[arg-type]  # what a closure is
            )
            assert (result.state, result.is_confirmed) == (wanted, True)
            leaders.start(name)
        assert await seen_in_the_end(quick_group, "Between", 1) == {b"COMMIT": 1}


async def test_the_leader_dies_between_end_and_answer(quick_group: Group) -> None:
    delays_s = (0.0, 0.0005, 0.001, 0.002, 0.004)
    async with (
        leaders_of(quick_group) as leaders,
        TransactionProducer(
            quick_group.namesrv, "p2", checker=no_check, timeout_s=PATIENCE_S
        ) as producer,
    ):
        await wait_for_queues(producer, "Answer")
        for delay_s in delays_s:
            name = await leaders.name()
            ended = trio.Event()

            async def local(
                message: Message, transaction_id: str, ended: trio.Event = ended
            ) -> TransactionState:
                ended.set()
                return COMMIT

            async def kill(
                name: str = name, ended: trio.Event = ended, delay_s: float = delay_s
            ) -> None:
                await ended.wait()
                with trio.move_on_after(delay_s):  # the end is on its way, done, or answered
                    await trio.sleep_forever()
                leaders.kill(name)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(kill)
                message = Message("Answer", str(delay_s).encode())
                result = await producer.send_in_transaction(message, local)
            assert (result.state, result.is_confirmed) == (COMMIT, True)
            leaders.start(name)
        expected = {str(delay_s).encode(): 1 for delay_s in delays_s}
        assert await seen_in_the_end(quick_group, "Answer", len(expected)) == expected


async def test_the_next_leader_asks_about_what_is_open(quick_group: Group) -> None:
    asked: list[str] = []

    async def check(message: ReceivedMessage) -> TransactionState:
        asked.append(message.unique_key)
        return COMMIT if message.body == b"yes" else ROLLBACK

    async def unknown(message: Message, transaction_id: str) -> TransactionState:
        return UNKNOWN

    async with (
        leaders_of(quick_group) as leaders,
        TransactionProducer(
            quick_group.namesrv, "p3", checker=check, timeout_s=PATIENCE_S
        ) as producer,
    ):
        await wait_for_queues(producer, "Asked")
        name = await leaders.name()
        results = [
            await producer.send_in_transaction(Message("Asked", body), unknown)
            for body in (b"yes", b"no")
        ]
        leaders.kill(name)
        with trio.fail_after(PATIENCE_S):
            while not {result.transaction_id for result in results} <= set(asked) or not (
                await seen(quick_group, "Asked")
            ):
                await a_moment()
        leaders.start(name)
        await leaders.name()
        assert await seen_in_the_end(quick_group, "Asked", 1) == {b"yes": 1}
