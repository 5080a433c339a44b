"""A group that lost everything is found guilty: that nobody can read what was acknowledged is an answer, too.

Stores are wiped, or topics deleted, behind the back of the run, which ends there; then the group stands and
answers, and has nothing. In the cases in which a message must be lost that nobody has read, nobody reads before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
import trio

from dledger_mq.client.link import Link, Links, Opaques
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from jepsen import run
from jepsen.cli import EXIT_CODES, INVALID
from jepsen.generators import SECOND_NS, Endless, Generator, Invocation
from jepsen.nemeses.damaged import forget
from jepsen.reports.summary import summary_of
from jepsen.run import RunSettings, execute
from jepsen.systems.api import Subject
from jepsen.systems.brokers import brokers
from jepsen.workloads import queue, transactions
from jepsen.workloads.reading import Reader
from tests.integration.jepsen.breaking import PATIENCE_S, TIME_LIMIT_S, after_work

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ENOUGH = 60


async def wipe_everybody(system: Subject) -> None:
    for node in system.nodes:
        node.kill()
    for node in system.nodes:
        forget(system, node.name)
        node.start()
    await system.wait_ready(run.READY_S)


async def delete_topics(system: Subject) -> None:
    async with trio.open_nursery() as nursery:
        links = Links(nursery, Opaques(), lambda *_: None)
        link = links.get(brokers(system).nodes[0].address)
        with trio.fail_after(PATIENCE_S):
            for topic in queue.TOPICS:
                while not await _is_deleted(link, topic):
                    await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()


async def _is_deleted(link: Link, topic: str) -> bool:
    """Order it; nobody may lead just now."""
    code = RequestCode.DELETE_TOPIC_IN_BROKER
    answer = await link.call(code, {"topic": topic}, timeout_s=PATIENCE_S)
    return answer.code == ResponseCode.SUCCESS


def nobody_reads(
    _readers: Sequence[Reader], make: Callable[[], Invocation], _weight: int, _chance: object
) -> Generator:
    """In the place of `mixed_with_polls`."""
    return Endless(make)


CASES = [
    ("queue", "send", wipe_everybody, {"total-queue", "queue-log"}),
    ("queue", "send", delete_topics, {"queue-log"}),
    ("transactions", "txn", wipe_everybody, {"transactions"}),
    ("log-set", "add", wipe_everybody, {"set-full"}),
    ("log-append", "append", wipe_everybody, {"linearizable"}),
]


@pytest.mark.parametrize(
    ("workload", "f", "destroy", "finders"), CASES, ids=lambda each: getattr(each, "__name__", None)
)
def test_it_is_invalid_and_not_unknown(
    workload: str,
    f: str,
    destroy: Callable[[Subject], Awaitable[None]],
    finders: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run, "DIGESTS_S", 0.0)
    monkeypatch.setattr(transactions, "SETTLE_NS", 3 * SECOND_NS)
    monkeypatch.setattr(queue, "SHARES", {"send": 1})
    monkeypatch.setattr(transactions, "mixed_with_polls", nobody_reads)
    settings = RunSettings(workload, "none", TIME_LIMIT_S, rate=80)
    result = execute(settings, tmp_path / "run", break_it=after_work({f: ENOUGH}, destroy))
    assert result.problems == ()
    found = {check.name: check for check in result.checks}
    for name in finders:
        assert found[name].valid is False, found[name]
        assert found[name].why_unknown == ""
    assert result.valid is False
    assert EXIT_CODES[summary_of(result).verdict] == INVALID
