"""A group that lost everything is found guilty: that nobody can read what was acknowledged is an answer, too.

Stores are wiped, or topics deleted, behind the back of the run, which ends there; then the group stands and
answers, and has nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
import trio

from broker.client.link import Link, Links, Opaques
from broker.remoting.codes import RequestCode, ResponseCode
from jepsen import run
from jepsen.broker_system import brokers
from jepsen.cli import EXIT_CODES, INVALID
from jepsen.nemeses.api import Fault
from jepsen.nemeses.damaged import forget
from jepsen.ops import OpLog
from jepsen.reports.summary import summary_of
from jepsen.run import RunSettings, execute
from jepsen.system import Subject
from jepsen.workloads import queue, transactions

pytestmark = [pytest.mark.integration, pytest.mark.slow]

WORK_S = 2.5


class Destroyer:
    """A `Breaker`: lets clients work, destroys what they have stored, and ends the breaking."""

    def __init__(self, destroy: Callable[[Subject], Awaitable[None]], system: Subject) -> None:
        self.injected = {"destroy": 1}
        self.crashes: list[str] = []
        self.may_end_nodes = False
        self._destroy = destroy
        self._system = system

    async def run(self) -> None:
        await trio.sleep(WORK_S)  # the clients' time, not a wait for anything
        await self._destroy(self._system)

    async def cure_all(self) -> None:
        """There is no cure."""


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
        for topic in queue.TOPICS:
            await _delete(link, topic)
        nursery.cancel_scope.cancel()


async def _delete(link: Link, topic: str) -> None:
    code = RequestCode.DELETE_TOPIC_IN_BROKER
    answer = await link.call(code, {"topic": topic}, timeout_s=5.0)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


CASES = [
    ("queue", wipe_everybody, {"total-queue", "queue-log"}),
    ("queue", delete_topics, {"queue-log"}),
    ("transactions", wipe_everybody, {"transactions"}),
    ("log-set", wipe_everybody, {"set-full"}),
    ("log-append", wipe_everybody, {"linearizable"}),
]


@pytest.mark.parametrize(
    ("workload", "destroy", "finders"), CASES, ids=lambda each: getattr(each, "__name__", None)
)
def test_it_is_invalid_and_not_unknown(
    workload: str,
    destroy: Callable[[Subject], Awaitable[None]],
    finders: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run, "DIGESTS_S", 0.0)
    monkeypatch.setattr(transactions, "SETTLE_NS", 3 * transactions.SECOND_NS)

    def destroyer(
        _settings: RunSettings, _faults: Sequence[Fault], system: Subject, _log: OpLog
    ) -> Destroyer:
        return Destroyer(destroy, system)

    settings = RunSettings(workload, "none", 60.0, rate=80)
    result = execute(settings, tmp_path / "run", break_it=destroyer)
    assert result.problems == ()
    found = {check.name: check for check in result.checks}
    for name in finders:
        assert found[name].valid is False, found[name]
        assert found[name].why_unknown == ""
    assert result.valid is False
    assert EXIT_CODES[summary_of(result).verdict] == INVALID
