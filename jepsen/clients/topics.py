"""Makes topics and groups before a run, so that no message creates them; and asks for the ends of queues."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

import trio

from dledger_mq import ClientError, MessageQueue, NoRouteError, Producer, PullConsumer
from dledger_mq.client.link import Link, Links, Opaques
from dledger_mq.message.names import AUTO_CREATE_TOPIC
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand
from jepsen.systems.brokers import Brokers

RETRY_S: Final = 0.1
CALL_TIMEOUT_S: Final = 3.0


async def open_topics(
    system: Brokers, topics: Sequence[str], *, queues: int
) -> dict[str, MessageQueue]:
    """Create topics of so many queues in each group; returns these by their names, once clients find all of them."""
    await _send_to_all(
        system,
        [
            (RequestCode.UPDATE_AND_CREATE_TOPIC, _topic_fields(topic, queues), b"")
            for topic in topics
        ],
    )
    async with Producer(system.namesrv, "chaos-setup") as producer:
        return await _all_found(producer, topics, queues * len(system.addresses))


def queue_name(queue: MessageQueue) -> str:
    """Return the name of a queue in histories."""
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"


async def end_of(consumer: PullConsumer, queue: MessageQueue) -> int:
    """Return the max offset of a queue as its leader reports it; 0 when there is no such queue any more.

    Name servers do not know the brokers of a topic that is gone. The brokers are found by the topic that all
    of them have, so that a group which lost its topics says so, and is not taken for one that cannot be reached.

    Raises:
        ClientError: nobody who leads has answered.
    """
    try:
        return await consumer.max_offset(queue)
    except NoRouteError:
        await consumer.queues(AUTO_CREATE_TOPIC)
        return await consumer.max_offset(queue)


async def make_groups(system: Brokers, groups: Sequence[str], *, deliveries_max: int) -> None:
    """Create consumer groups whose messages are dead letters after so many deliveries."""
    bodies = [{"groupName": group, "retryMaxTimes": deliveries_max} for group in groups]
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    await _send_to_all(system, [(code, {}, json.dumps(body).encode()) for body in bodies])


_Told = tuple[RequestCode, Mapping[str, str], bytes]


async def _send_to_all(system: Brokers, requests: Sequence[_Told]) -> None:
    """Send requests to each broker group, to any node that answers, until they are done."""
    async with trio.open_nursery() as nursery:
        links = Links(nursery, Opaques(), _ignore)
        for addresses in system.addresses.values():
            for request in requests:
                tries = 0
                while not await _is_told(links.get(addresses[tries % len(addresses)]), request):
                    tries += 1
                    await trio.sleep(RETRY_S)
        nursery.cancel_scope.cancel()


async def _all_found(
    producer: Producer, topics: Sequence[str], queues: int
) -> dict[str, MessageQueue]:
    """Wait for all queues of the topics and return them by name, once the name server has them."""
    found: dict[str, MessageQueue] = {}
    for topic in topics:
        while True:
            try:
                known = await producer.queues(topic)
            except ClientError:
                known = ()
            if len(known) == queues:
                found |= {queue_name(queue): queue for queue in known}
                break
            await trio.sleep(RETRY_S)
    return found


def _topic_fields(topic: str, queues: int) -> dict[str, str]:
    return {
        "topic": topic,
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
    }


async def _is_told(link: Link, request: _Told) -> bool:
    """Ask one node; return False also when the answer is lost: doing it again changes nothing."""
    code, fields, body = request
    try:
        answer = await link.call(code, fields, body, timeout_s=CALL_TIMEOUT_S)
    except ClientError:
        return False
    return bool(answer.code == ResponseCode.SUCCESS)


def _ignore(_link: Link, _command: RemotingCommand) -> None:
    """Ignore the broker's news of rebalances; nobody consumes here."""
