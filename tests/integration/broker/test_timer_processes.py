"""Real processes: leaders are killed while messages fall due, and each is delivered exactly once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from broker.admin.cli import main as dledger_admin
from dledger_mq import Message, NoRouteError
from dledger_mq.blocking import Producer, PullConsumer
from jepsen.processes import Group, Process, poll
from tests.integration.broker.reading import everything, has_as_many
from tests.integration.broker.test_processes import brokers_of, leader_of
from tests.integration.commands import run_here

pytestmark = [pytest.mark.slow, pytest.mark.integration]

TOPIC = "Due"
COUNT = 600
SPAN_MS = 6000
PATIENCE_S = 120.0


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def kill_leader(group: Group) -> Process:
    leader = leader_of(group)
    leader.kill()
    others = {node.address for node in group.nodes if node is not leader}
    assert poll(lambda: brokers_of(group).get(0) in others, PATIENCE_S)
    return leader


def first_send(producer: Producer) -> None:
    def is_sent() -> bool:
        try:
            producer.send(Message(TOPIC, b"first"))
        except NoRouteError:
            return False
        return True

    assert poll(is_sent, PATIENCE_S)


def test_leaders_die_while_messages_fall_due(tmp_path: Path) -> None:
    begun_s = time.monotonic()
    with (
        Group(tmp_path) as group,
        Producer(group.namesrv, "due", timeout_s=PATIENCE_S) as producer,
        PullConsumer(group.namesrv, "due", timeout_s=PATIENCE_S) as consumer,
    ):
        group.start()
        group.wait_listening()
        first_send(producer)
        # What is recalled must be so before it falls due, on a slow machine too.
        lead_s = max(2.0, time.monotonic() - begun_s)
        start_ms = now_ms() + round(1000 * lead_s)
        wanted = [
            Message(TOPIC, b"%d" % n, deliver_at_ms=start_ms + n * SPAN_MS // COUNT)
            for n in range(COUNT)
        ] + [Message(TOPIC, b"level", delay_level=2) for _ in range(20)]
        sent = producer.send_many(wanted)
        handles = [one.recall_handle for one in sent if not isinstance(one, Exception)]
        assert len(handles) == COUNT + 20
        recalled = set(range(COUNT - 50, COUNT - 40))  # the last ones: there is time for it
        for number in recalled:
            handle = handles[number]
            assert handle is not None
            assert producer.recall(handle) is True
        assert poll(lambda: now_ms() > start_ms + SPAN_MS // 4, lead_s + PATIENCE_S)
        first = kill_leader(group)
        first.start()
        assert poll(lambda: has_as_many(consumer, TOPIC, COUNT // 2 + 1), PATIENCE_S)
        kill_leader(group).start()
        count = COUNT - len(recalled) + 20
        assert poll(lambda: has_as_many(consumer, TOPIC, count), PATIENCE_S)
        again = handles[min(recalled)]
        assert again is not None
        assert producer.recall(again) is True, "remembered over two failovers"
        assert poll(lambda: now_ms() > start_ms + SPAN_MS + 500, PATIENCE_S)
        found = everything(consumer, TOPIC)
        assert poll(lambda: verified(group), PATIENCE_S, 0.5)
    timed = sorted(int(message.body) for message in found if message.body != b"level")
    assert timed == [n for n in range(COUNT) if n not in recalled], "each exactly once"
    assert len(found) == count
    for message in found:
        due_ms = message.properties.get("TIMER_OUT_MS")
        assert due_ms is None or message.store_timestamp_ms >= int(due_ms), "never early"


def verified(group: Group) -> bool:
    ended = run_here(dledger_admin, "verify", "-n", group.namesrv, "--json")
    assert ended.returncode != 1, ended.stdout
    return ended.returncode == 0
