"""Routes and the choice of the node to try next, with a name server that is a script and a clock in hand."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskGroup

from dledger_mq.client.errors import (
    ClientClosedError,
    NameServersUnreachableError,
    NoRouteError,
    RequestFailedError,
)
from dledger_mq.client.queues import MessageQueue
from dledger_mq.client.routes import (
    FAILED_FOR_S,
    FIRST_TRIES,
    TEMPLATE_REFRESH_S,
    Routes,
    publish_queues,
    read_queues,
)
from dledger_mq.message.names import AUTO_CREATE_TOPIC
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.header import RemotingCommand, make_response
from dledger_mq.remoting.route import BrokerData, QueueData, TopicRoute, encode_route

pytestmark = pytest.mark.anyio

A, B, C = "10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"


def route(*leader_first: str, perm: int = 6, leader: bool = True) -> TopicRoute:
    addresses = dict(enumerate(leader_first, start=0 if leader else 1))
    return TopicRoute(
        (QueueData("b", perm, 2, 0, 3),), (BrokerData(addresses, "b", "DefaultCluster"),)
    )


class ScriptedNameServer:
    """What the name server says, and the time."""

    def __init__(self, nursery: TaskGroup) -> None:
        self.routes: dict[str, TopicRoute] = {}
        self.code = ResponseCode.SUCCESS
        self.asked: list[str] = []
        self.silent_times = 0  # so many calls are not answered
        self.now = 100.0
        self.answers_in_s = 0.0
        self.client = Routes(self, nursery, clock=lambda: self.now)

    async def call(self, code: int, ext: dict[str, str]) -> RemotingCommand:
        self.asked.append(ext["topic"])
        await anyio.sleep(self.answers_in_s)
        if self.silent_times:
            self.silent_times -= 1
            raise NameServersUnreachableError("no name server answers: scripted")
        if self.code != ResponseCode.SUCCESS:
            return make_response(0, self.code, "scripted")
        found = self.routes.get(ext["topic"])
        if found is None:
            return make_response(0, ResponseCode.TOPIC_NOT_EXIST, "none")
        return make_response(0, ResponseCode.SUCCESS, body=encode_route(found, quote_numbers=True))


@pytest.fixture
async def world() -> AsyncIterator[ScriptedNameServer]:
    async with anyio.create_task_group() as nursery:
        yield ScriptedNameServer(nursery)
        nursery.cancel_scope.cancel()


def test_queues_need_the_permission_and_a_broker() -> None:
    assert publish_queues("T", route(A)) == tuple(MessageQueue("T", "b", n) for n in range(3))
    assert read_queues("T", route(A)) == tuple(MessageQueue("T", "b", n) for n in range(2))
    assert publish_queues("T", route(A, perm=4)) == ()
    assert read_queues("T", route(A, perm=2)) == ()
    assert publish_queues("T", TopicRoute(route(A).queues, ())) == ()


async def test_the_leader_is_tried_first_and_after_a_failure_last(
    world: ScriptedNameServer,
) -> None:
    world.routes["T"] = route(A, B, C)
    await world.client.refresh("T")
    find = world.client.find
    assert await find("b", ask=False) == A
    world.client.report_failure("b", A)
    world.now += 0.1
    assert await find("b", ask=False) == B
    world.client.report_failure("b", B)
    world.now += 0.1
    assert await find("b", ask=False) == C
    world.client.report_failure("b", C)
    assert await find("b", ask=False) == A  # all failed: the one whose failure is oldest
    world.now += FAILED_FOR_S + 1
    assert await find("b", ask=False) == A


async def test_a_new_leader_is_believed_although_it_failed_as_a_follower(
    world: ScriptedNameServer,
) -> None:
    world.routes["T"] = route(A, B, C)
    await world.client.refresh("T")
    world.client.report_failure("b", A)
    world.client.report_failure("b", B)
    world.routes["T"] = route(B, C)
    world.now += 0.1
    assert await world.client.find("b", ask=True) == B


async def test_without_a_leader_the_others_are_known(world: ScriptedNameServer) -> None:
    world.routes["T"] = route(B, C, leader=False)
    assert await world.client.publish_queues("T")
    assert world.client.leader("b") is None
    assert world.client.addresses("b") == [B, C]
    assert await world.client.find("unknown group", ask=True) is None


async def test_a_route_that_vanishes_is_kept(world: ScriptedNameServer) -> None:
    world.routes["T"] = route(A)
    queues = await world.client.publish_queues("T")
    del world.routes["T"]
    world.now += 1
    assert await world.client.find("b", ask=True) == A
    assert await world.client.publish_queues("T") == queues


async def test_a_topic_to_be_created_borrows_queues_until_it_exists(
    world: ScriptedNameServer,
) -> None:
    world.routes["TBW102"] = TopicRoute(
        (QueueData("b", 7, 8, 0, 8),), (BrokerData({0: A}, "b", "c"),)
    )
    assert len(await world.client.publish_queues("T")) == 4
    world.routes["T"] = route(A)
    assert len(await world.client.publish_queues("T")) == 4  # asked a moment ago
    world.now += 2
    assert len(await world.client.publish_queues("T")) == 3


async def test_borrowed_queues_are_kept_while_no_name_server_answers(
    world: ScriptedNameServer,
) -> None:
    world.routes["TBW102"] = route(A)
    queues = await world.client.publish_queues("T")
    for _ in range(2):
        world.now += 2
        world.silent_times = 1
        assert await world.client.publish_queues("T") == queues
        assert world.silent_times == 0, "it was asked"


async def test_a_name_server_may_be_slow_when_nothing_is_known_yet(
    world: ScriptedNameServer,
) -> None:
    world.routes["T"] = route(A)
    world.routes["U"] = route(A)
    for ask in (world.client.publish_queues("T"), world.client.read_queues("U")):
        world.silent_times = FIRST_TRIES - 1
        assert await ask
    world.silent_times = FIRST_TRIES
    with pytest.raises(NameServersUnreachableError):
        await world.client.publish_queues("V")
    assert world.silent_times == 0


async def test_tasks_that_ask_together_share_one_answer(world: ScriptedNameServer) -> None:
    world.routes["T"] = route(A)
    async with anyio.create_task_group() as nursery:
        for _ in range(5):
            nursery.start_soon(world.client.refresh, "T")
    assert world.asked == ["T"]


async def test_what_the_name_server_does_not_know_is_an_error(world: ScriptedNameServer) -> None:
    with pytest.raises(NoRouteError):
        await world.client.read_queues("T")
    world.code = ResponseCode.SYSTEM_ERROR
    with pytest.raises(RequestFailedError, match="scripted"):
        await world.client.refresh("T")


async def test_a_route_that_would_fill_the_memory_is_an_error(world: ScriptedNameServer) -> None:
    huge = QueueData("b", 6, 2, 0, 2**31 - 1)
    world.routes["T"] = TopicRoute((huge,), route(A).brokers)
    with pytest.raises(RequestFailedError, match="2147483647 queues"):
        await world.client.publish_queues("T")


async def test_a_task_that_asks_while_the_client_is_left_goes_by_what_it_knows(
    world: ScriptedNameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.routes["T"] = route(A, B)
    await world.client.refresh("T")
    world.now += 1

    async def left(code: int, ext: dict[str, str]) -> RemotingCommand:
        raise ClientClosedError("the client was left")

    monkeypatch.setattr(world, "call", left)
    assert await world.client.find("b", ask=True) == A


async def test_of_topics_that_are_not_there_nothing_is_remembered(
    world: ScriptedNameServer,
) -> None:
    for number in range(20):
        with pytest.raises(NoRouteError):
            await world.client.refresh(f"absent-{number}")
    assert not world.client._asked_at
    world.routes["T"] = route(A)
    await world.client.refresh("T")
    assert set(world.client._asked_at) == {"T"}


async def test_a_change_is_told_once(world: ScriptedNameServer) -> None:
    told: list[str] = []
    world.client.on_change = told.append
    for addresses in ((A, B), (A, B), (B, A)):
        world.routes["T"] = route(*addresses)
        await world.client.refresh("T")
    assert told == ["T", "T"]


async def test_tasks_that_ask_together_in_vain_share_the_failure(world: ScriptedNameServer) -> None:
    failures: list[NoRouteError] = []

    async def ask() -> None:
        try:
            await world.client.refresh("T")
        except NoRouteError as error:
            failures.append(error)

    async with anyio.create_task_group() as nursery:
        for _ in range(5):
            nursery.start_soon(ask)
    assert len(failures) == 5
    assert world.asked == ["T"]
    world.routes["T"] = route(A)
    assert (await world.client.refresh("T")) == route(A)


@pytest.mark.parametrize("is_created", [True, False])
async def test_an_answer_counts_that_comes_when_who_asked_has_given_up(
    world: ScriptedNameServer, *, is_created: bool
) -> None:
    world.routes["T" if is_created else AUTO_CREATE_TOPIC] = route(A)
    world.answers_in_s = 0.2

    async def ask() -> object:
        return await world.client.publish_queues("T")

    with anyio.fail_after(30):
        while True:
            try:
                assert await world.client.when_there(ask, 0.05)
                break
            except NameServersUnreachableError:
                pass
    assert len(world.asked) <= 2, "each question is asked once"


async def test_who_waits_for_a_route_is_told_that_the_client_is_left() -> None:
    async with anyio.create_task_group() as asking:
        async with anyio.create_task_group() as nursery:
            world = ScriptedNameServer(nursery)
            world.answers_in_s = 3600

            async def ask() -> None:
                with pytest.raises(ClientClosedError):
                    await world.client.read_queues("T")

            asking.start_soon(ask)
            while not world.asked:
                await anyio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        with pytest.raises(ClientClosedError):
            await world.client.read_queues("T")


async def test_a_route_that_comes_while_a_template_is_asked_for_is_kept(
    world: ScriptedNameServer,
) -> None:
    world.routes[AUTO_CREATE_TOPIC] = route(A)
    scripted = world.call

    async def call(code: int, ext: dict[str, str]) -> RemotingCommand:
        answer = await scripted(code, ext)
        if ext["topic"] == AUTO_CREATE_TOPIC:
            world.routes["T"] = TopicRoute((QueueData("b", 6, 1, 0, 1),), route(A).brokers)
            await world.client.refresh("T")
        return answer

    world.call = call  # type: ignore[method-assign]  # another task creates the topic meanwhile
    assert await world.client.publish_queues("T") == (MessageQueue("T", "b", 0),)
    world.now += TEMPLATE_REFRESH_S + 1
    assert await world.client.publish_queues("T") == (MessageQueue("T", "b", 0),)


async def test_a_mistake_in_what_a_change_calls_ends_the_question_and_not_the_client(
    world: ScriptedNameServer,
) -> None:
    world.routes["T"] = route(A)
    mistakes = [ZeroDivisionError("a mistake of ours")]

    def on_change(_topic: str) -> None:
        if mistakes:
            raise mistakes.pop()

    world.client.on_change = on_change
    with pytest.raises(ZeroDivisionError):
        await world.client.refresh("T")
    assert await world.client.refresh("T") == route(A)
