"""Raw commits of offsets where nothing is yet, by anybody, at any node, and with pulls: none counts."""

from __future__ import annotations

import pytest

from dledger_mq.remoting.header import RemotingCommand, encode_command
from tests.integration.broker.conftest import ClusterMaker, Wire, pull_ext
from tests.integration.broker.test_three_nodes import same_everywhere

pytestmark = pytest.mark.usefixtures("patient")

PLACE = {"consumerGroup": "G", "topic": "T", "queueId": "0"}
ASKED = PLACE | {"setZeroIfNotFound": "false"}
BEYOND = 29


async def commit(wire: Wire, offset: int, **more: str) -> RemotingCommand:
    return await wire.ask(15, PLACE | {"commitOffset": str(offset)} | more)


@pytest.mark.slow
async def test_a_stranger_cannot_make_a_group_skip_what_is_yet_to_come(
    make_cluster: ClusterMaker,
) -> None:
    cluster = await make_cluster(3)
    follower, _ = await cluster.followers()
    async with (
        cluster.wire(await cluster.leader()) as leading,
        cluster.wire(follower) as following,
    ):
        for _ in range(3):
            assert (await leading.send("T")).code == 0
        for wire in (leading, following):
            for offset in (4, 2**31, 2**63 - 1):
                refused = await commit(wire, offset)
                assert (refused.code, "the queue ends at 3" in str(refused.remark)) == (
                    BEYOND,
                    True,
                )
            assert (await commit(wire, 1, topic="nowhere")).code == BEYOND
            assert (await commit(wire, 1, queueId="3")).code == BEYOND
            assert (await commit(wire, 2**63)).code == 1, "no number of 64 bits"
            # A tool's way of a reset goes back only.
            assert (await wire.ask(208, {"consumerGroup": "G"})).code == 0
            assert (await commit(wire, 4)).code == BEYOND
            # Nobody waits for these; what is asked over the same connection comes after them.
            oneway = RemotingCommand(
                code=15, opaque=5, flag=2, ext=PLACE | {"commitOffset": "9"}, body=b""
            )
            wire.connection.send_nowait(encode_command(oneway))
            pull = pull_ext("T") | {"queueOffset": "3", "commitOffset": "9", "sysFlag": "5"}
            await wire.ask(11, pull)
            assert (await wire.ask(14, ASKED)).code == 22
            assert not wire.has_answer(5)
        await cluster.wait(lambda: same_everywhere(cluster))
        for wire, offset in ((following, 0), (leading, 2), (following, 3)):
            assert (await commit(wire, offset)).code == 0
            assert (await wire.ask(14, ASKED)).ext == {"offset": str(offset)}
        assert (await leading.send("T")).code == 0
        assert (await commit(following, 4)).code == 0, "its message was committed before"
        assert (await leading.ask(14, ASKED)).ext == {"offset": "4"}
    await cluster.wait(lambda: same_everywhere(cluster))
