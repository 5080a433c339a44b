"""Java's consumers start at once, share at once and take over at once, whatever order their requests come in."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from jepsen.processes import poll
from tests.interop.conftest import ForeignClient, RunningGroup, received, sent
from tests.interop.java_consumers import QUEUES, WAIT_S, Member, Stream, join_together, leave_to

pytestmark = [pytest.mark.integration, pytest.mark.slow]

TOLD = "changed, rebalance immediately"
"""In the log of a Java client that was told who is in its group; by itself it looks every 20 s only."""


def test_a_member_that_hangs_keeps_no_consumer_from_starting(
    group: RunningGroup, name: str, java: ForeignClient, tmp_path: Path
) -> None:
    """While its heartbeat to that member is under way it raises the version of its subscription, and can tell nobody.

    Its pulls name the new version, and the leader knows only the old one (adr/0165).
    """
    topic = group.create_topic(name)
    produced = sent(java.run("produce", "--topic", topic, "--count", "20"))
    leader = group.wait_leader(topic=topic)
    hanging = next(node for node in group.processes.nodes if node is not leader)
    with Member(java, topic, name, tmp_path / "log") as consumer:
        hanging.pause()
        try:
            consumer.go()
            consumer.wait_deliveries(20)
        finally:
            hanging.resume()
        assert Counter(received(consumer.deliveries())) == Counter(produced)
        assert consumer.count_in_log("not latest") == 0


def test_two_that_join_together_share_and_the_one_that_stays_takes_over(
    group: RunningGroup, name: str, java: ForeignClient, tmp_path: Path
) -> None:
    topic = group.create_topic(name, QUEUES)
    with (
        Member(java, topic, name, tmp_path / "staying") as staying,
        Member(java, topic, name, tmp_path / "leaving") as leaving,
        Stream(group.namesrv, topic) as stream,
    ):
        join_together([staying, leaving])
        assert poll(lambda: staying.count_in_log(TOLD) + leaving.count_in_log(TOLD) > 0, WAIT_S)
        before = staying.count_in_log(TOLD)
        leave_to(staying, leaving)
        assert poll(lambda: staying.count_in_log(TOLD) > before, WAIT_S)
        stream.end()

        def bodies() -> set[str]:
            return {line["body"] for member in (staying, leaving) for line in member.deliveries()}

        assert poll(lambda: bodies() >= set(stream.sent), WAIT_S), set(stream.sent) - bodies()
