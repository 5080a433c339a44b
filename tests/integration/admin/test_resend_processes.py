"""Dead letters of a real group are sent again, over the death of a leader, and consumed."""

from __future__ import annotations

import json
import subprocess
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from dledger_mq import ConsumeResult, Message, NoRouteError, ReceivedMessage
from dledger_mq.blocking import Producer, PushConsumer
from jepsen.processes import Group, poll, program
from tests.integration.broker.test_processes import leader_of

pytestmark = [pytest.mark.slow, pytest.mark.integration]

PATIENCE_S = 180.0
COUNT = 20


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with Group(tmp_path) as running:
        running.start()
        running.wait_listening()
        yield running


def resend(group: Group, *more: str) -> tuple[int, dict[str, list[str]]]:
    command = [program("dledger-admin"), "resend-dlq", "-n", group.namesrv, "sick", "--json", *more]
    ended = subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=False)
    return ended.returncode, json.loads(ended.stdout) if ended.stdout else {}


def test_dead_letters_get_another_chance(group: Group) -> None:
    is_well = threading.Event()
    failed: Counter[bytes] = Counter()
    done: defaultdict[tuple[str, bytes], set[tuple[int, int]]] = defaultdict(set)

    def handle(message: ReceivedMessage) -> ConsumeResult:
        if not is_well.is_set():
            failed[message.body] += 1
            return ConsumeResult.LATER
        done[message.topic, message.body].add((message.queue.queue_id, message.queue_offset))
        return ConsumeResult.SUCCESS

    with Producer(group.namesrv, "p", timeout_s=PATIENCE_S) as producer:

        def is_sent() -> bool:
            try:
                producer.send(Message("Orders", b"0", keys="k"))
            except NoRouteError:
                return False
            return True

        assert poll(is_sent, PATIENCE_S)
        producer.send_many(Message("Orders", b"%d" % n) for n in range(1, COUNT))
    with PushConsumer(
        group.namesrv,
        "sick",
        handle,
        subscriptions={"Orders": "*"},
        start_from="first",
        max_reconsume_times=0,
    ):
        assert poll(lambda: len(failed) == COUNT, PATIENCE_S)
        assert poll(
            lambda: len(resend(group, "--dry-run")[1].get("resent", ())) == COUNT, PATIENCE_S, 0.5
        )
        is_well.set()
        code, half = resend(group, "--limit", str(COUNT // 2))
        assert (code, len(half["resent"])) == (0, COUNT // 2)
        leader_of(group).kill()
        rest: list[str] = []

        def are_all_resent() -> bool:
            """Asked again where the next leader took longer than the command has patience."""
            code, resent = resend(group)
            rest.extend(resent.get("resent", ()))
            return code == 0

        assert poll(are_all_resent, PATIENCE_S)
        assert len(rest) == len(set(rest)) == COUNT - COUNT // 2
        assert not {*half["resent"]} & {*rest}, "each once"
        assert poll(lambda: len(done) == COUNT, PATIENCE_S)
    assert {topic for topic, _ in done} == {"Orders"}, "L11"
    assert {len(places) for places in done.values()} == {1}, "stored again once, however delivered"
    assert resend(group) == (0, {"resent": [], "failed": {}, "examined": 0, "dryRun": False})
