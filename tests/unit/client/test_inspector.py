"""Questions and changes of tools: what may be concluded when nobody answers."""

from __future__ import annotations

import pytest

from dledger_mq import ClientError, NameServersUnreachableError, RequestTimeoutError
from dledger_mq.client.errors import RequestFailedError
from dledger_mq.client.inspector import Inspector
from dledger_mq.remoting.codes import RequestCode
from dledger_mq.testing import open_fake_group

pytestmark = pytest.mark.anyio

CODE = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP


async def test_a_change_that_was_sent_and_not_answered_may_have_been_made() -> None:
    async with open_fake_group(nodes=1) as group, Inspector(group.namesrv, timeout_s=60) as one:
        await one.ask("broker-a", CODE, {}, b'{"groupName":"g"}')
        group.nodes[0].is_paused = True
        for one.timeout_s in (0.1, 5.0, 30.0):  # in which it has to be sent
            with pytest.raises(ClientError) as raised:
                await one.ask("broker-a", CODE, {}, b'{"groupName":"g"}')
            if not isinstance(raised.value, NameServersUnreachableError):
                break
        assert isinstance(raised.value, RequestTimeoutError)
        assert not raised.value.definite


async def test_a_change_that_every_node_refused_was_not_made() -> None:
    async with open_fake_group(nodes=1) as group, Inspector(group.namesrv, timeout_s=60) as one:
        group.leader = None
        for one.timeout_s in (0.1, 5.0, 30.0):  # in which a refusal has to come
            with pytest.raises(ClientError) as raised:
                await one.ask("broker-a", CODE, {}, b'{"groupName":"g"}')
            if isinstance(raised.value, RequestFailedError):
                break
        assert isinstance(raised.value, RequestFailedError)
        assert raised.value.definite
        assert group.groups == set()
