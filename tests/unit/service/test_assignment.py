"""Queues as the broker shares them out (400)."""

from __future__ import annotations

import pytest

from broker.service.assignment import AVERAGE, BY_CIRCLE, popped, shared
from broker.store.pops import RequestMode
from dledger_mq.remoting.message_queue import WireQueue

QUEUES = [WireQueue(broker, number, "T") for broker in ("b", "a") for number in range(4)]


def names(queues: list[WireQueue]) -> list[str]:
    return [f"{queue.broker_name}{queue.queue_id}" for queue in queues]


@pytest.mark.parametrize("strategy", [AVERAGE, BY_CIRCLE])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 9])
def test_each_queue_is_one_clients(strategy: str, count: int) -> None:
    clients = [f"c{number}" for number in range(count)]
    shares = [shared(QUEUES, reversed(clients), each, strategy) for each in clients]
    together = [queue for share in shares for queue in share]
    assert sorted(names(together)) == sorted(names(QUEUES))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_shares_are_those_of_javas_strategies() -> None:
    clients = ["x", "y", "z"]
    assert names(shared(QUEUES, clients, "x", AVERAGE)) == ["a0", "a1", "a2"]
    assert names(shared(QUEUES, clients, "z", AVERAGE)) == ["b2", "b3"]
    assert names(shared(QUEUES, clients, "y", BY_CIRCLE)) == ["a1", "b0", "b3"]
    assert shared(QUEUES, clients, "stranger", AVERAGE) == []


@pytest.mark.parametrize("share", [0, 2, 9])
def test_all_pop_everything_unless_few_share(share: int) -> None:
    mode = RequestMode(is_pop=True, share_count=share)
    assert names(popped(QUEUES, ["x", "y", "z"], "x", strategy=AVERAGE, mode=mode)) == [
        "a-1",
        "b-1",
    ]


def test_a_client_pops_the_queues_of_some_after_it_as_well() -> None:
    mode = RequestMode(is_pop=True, share_count=1)
    clients = ["w", "x", "y", "z"]
    assert names(popped(QUEUES, clients, "z", strategy=AVERAGE, mode=mode)) == [
        "b2",
        "b3",
        "a0",
        "a1",
    ]
    assert popped(QUEUES, clients, "stranger", strategy=AVERAGE, mode=mode) == []
