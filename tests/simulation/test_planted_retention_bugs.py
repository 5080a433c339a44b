"""Groups of brokers that forget the beginning of their log, and brokers that forget too much, which must be found."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count, islice
from typing import Any

import pytest

from broker.store import commands
from broker.store.consume_queue import ConsumeQueue
from broker.store.group_settings import GroupSettings
from broker.store.needs import Need, oldest_need
from broker.store.refusals import RefusalKind
from broker.store.timers import Timers
from broker.testing import dropping
from broker.testing.broker_simulation import BrokerSimulation, silence
from broker.testing.settings import (
    BrokerSimSettings,
    draw_broker_settings,
    is_forgetful_run,
)
from dledger.raft.ids import Index, Position
from dledger.testing.simulation import SimResult, SimVerdict
from dledger_mq.message.numbers import StoreTimeMs
from tests.simulation.searches import lately_first

SEEDS_MAX = 300


def forgetful(first: int, number: int) -> list[BrokerSimSettings]:
    """The settings of so many seeds whose groups forget, from a seed on."""
    seeds = islice((seed for seed in count(first) if is_forgetful_run(seed)), number)
    return [draw_broker_settings(seed) for seed in seeds]


def run(settings: BrokerSimSettings) -> SimResult:
    with silence():
        return BrokerSimulation(settings).run()


def first_finding(lately: int = 7) -> str:
    """What the simulator says about the first run that it finds bad, among the seeds up to SEEDS_MAX."""
    seeds = filter(is_forgetful_run, range(1, SEEDS_MAX + 1))
    for seed in lately_first(seeds, lately):
        result = run(draw_broker_settings(seed))
        if result.verdict is not SimVerdict.FINE:
            return str(result)
    return "nothing"


def test_groups_that_forget_keep_their_promises() -> None:
    results = [run(settings) for settings in forgetful(5000, 4)]
    assert [str(each) for each in results if each.verdict is not SimVerdict.FINE] == []
    work = [each.work for each in results]
    assert sum(each.get("forgotten", 0) for each in work) > 10
    assert sum(each.get("pulled", 0) for each in work) > 10
    assert sum(each.get("set", 0) for each in work) > 10
    assert sum(each.get("dropped", 0) for each in work) > 10


def test_only_their_share_of_the_runs_forgets() -> None:
    forgetting = [seed for seed in range(1, 301) if is_forgetful_run(seed)]
    assert 10 < len(forgetting) < 60
    assert all(draw_broker_settings(seed).forget_bytes for seed in forgetting)
    others = [seed for seed in range(1, 31) if not is_forgetful_run(seed)]
    assert not any(draw_broker_settings(seed).forget_bytes for seed in others)


def test_a_group_that_forgets_what_waits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Timers, "oldest_pending", lambda _self: None)
    assert "waits at" in first_finding(17)


def test_a_queue_that_begins_a_message_too_late_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    trim = ConsumeQueue.trim

    def trim_more(
        self: ConsumeQueue, beginning: Position, *, without_waiting: bool = False
    ) -> None:
        trim(self, Position(beginning + 200), without_waiting=without_waiting)

    monkeypatch.setattr(ConsumeQueue, "trim", trim_more)
    assert " begins at " in first_finding()


def test_replicas_that_judge_needs_by_their_own_past_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever asks at the fold what was looked up at another time decides other than its peers."""
    asked: dict[int, Need | None] = {}

    def first_answer(tables: Any, now_ms: Any, *, end: Any) -> Need | None:
        return asked.setdefault(id(tables), oldest_need(tables, now_ms, end=end))

    monkeypatch.setattr(commands, "oldest_need", first_answer)
    assert first_finding(17) != "nothing"


def test_a_setting_that_is_acknowledged_and_not_kept_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put = GroupSettings.put

    def put_sometimes(
        self: GroupSettings, values: Mapping[str, str], by: str, now_ms: StoreTimeMs
    ) -> RefusalKind | None:
        kept = {key: value for key, value in values.items() if now_ms % 2}
        return put(self, kept, by, now_ms)

    monkeypatch.setattr(GroupSettings, "put", put_sometimes)
    assert "retentionBytes is " in first_finding(17)


def test_a_member_that_drops_what_its_clients_may_still_read_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def first_covered(engine: Any, keep_from: Any, *, covered: Index, **_: Any) -> Index:
        return Index(covered + 1)

    monkeypatch.setattr(dropping, "first_to_keep", first_covered)
    assert ", and shows what stands from " in first_finding()
