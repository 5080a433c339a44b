"""A node that was started again and hears of no leader has applied nothing: it must not deny what there is."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from dledger_mq import Message, MessageQueue
from dledger_mq.client.errors import ClientError, RequestFailedError
from dledger_mq.client.producer import Producer
from dledger_mq.client.pull_consumer import PullConsumer
from dledger_mq.remoting.codes import ResponseCode
from jepsen.processes import Group, poll
from tests.integration.client.leaders import wait_for_queues
from tests.integration.client.test_real_group import PATIENCE_S, pulled_at

pytestmark = pytest.mark.integration

TIMEOUT_S = 20.0
"""A node holds a pull for 2.5 s before it says that nobody leads; asked until then, it must have said so at last."""


async def test_a_restarted_node_without_others_does_not_say_that_there_is_no_topic(
    tmp_path: Path,
) -> None:
    with Group(tmp_path) as group:
        group.start()
        group.wait_listening()
        queue = MessageQueue("Orders", group.group, 0)
        async with (
            Producer(group.namesrv, "p", timeout_s=PATIENCE_S) as producer,
            PullConsumer(group.namesrv, "g", timeout_s=TIMEOUT_S) as consumer,
        ):
            await wait_for_queues(producer, "Orders")
            await producer.send(Message("Orders", b"1"), queue=queue)
            await pulled_at(consumer, queue, 0)
            for node in group.nodes:
                node.kill()
            group.nodes[0].start()
            assert poll(group.nodes[0].is_listening, PATIENCE_S)
            told: ClientError | None = None
            with trio.fail_after(PATIENCE_S):
                while not isinstance(told, RequestFailedError):  # else it asked a dead one at last
                    with pytest.raises(ClientError) as caught:
                        await consumer.pull(queue, 0)
                    told = caught.value
        assert told.code == ResponseCode.SERVICE_NOT_AVAILABLE
