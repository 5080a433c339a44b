"""Pops under all faults; and mistakes in them, planted and found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from broker.server.handlers import pop_acks
from broker.server.handlers.pop_reading import PopReading
from broker.server.handlers.pop_returns import PopReturns
from broker.server.requests.request import PendingRequest
from broker.server.requests.router import Router
from broker.store.pops import PoppedQueue, Pops
from broker.store.state import BrokerState
from broker.testing.broker_simulation import BrokerSimulation
from broker.testing.settings import BrokerSimSettings, draw_broker_settings
from dledger.testing.sim_draws import DRAWS_MEMBERS, DRAWS_POPS
from dledger.testing.simulation import SimVerdict
from dledger_mq.message.numbers import QueueOffset
from dledger_mq.remoting import pop_bodies
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.pop_bodies import PoppedBatch
from tests.simulation.searches import lately_first

SEEDS_MAX = 300
"""A planted mistake is found among so many of the first seeds, of which about every fourth pops."""

LATER_MS = 10**6
"""Longer than anything is invisible."""

POPPING = [seed for seed in range(1, SEEDS_MAX + 1) if draw_broker_settings(seed).popper_count]


def popping(seed: int, **changed: Any) -> BrokerSimSettings:
    return replace(draw_broker_settings(seed), **changed)


def first_finding(
    state_type: type[BrokerState] = BrokerState, *, lately: int = POPPING[0], **changed: Any
) -> str:
    """What the simulator says about the first seed that it finds wrong."""
    for seed in lately_first(POPPING, lately):
        result = BrokerSimulation(popping(seed, **changed), state_type=state_type).run()
        if result.verdict is not SimVerdict.FINE:
            return f"seed {seed}: {result.problem}"
    return ""


def test_older_seeds_pop_nothing_and_mean_what_they_meant() -> None:
    assert len(POPPING) > SEEDS_MAX // 8
    for seed in POPPING[:20]:
        before, now = (
            draw_broker_settings(seed, draws=each) for each in (DRAWS_MEMBERS, DRAWS_POPS)
        )
        assert before.popper_count == 0
        popped = [name for name in before.__slots__ if "pop" in name or "invisible" in name]
        assert before == replace(now, **{name: getattr(before, name) for name in popped})


@pytest.mark.slow
def test_groups_that_pop_are_fine_and_come_to_all_that_popping_leads_to() -> None:
    done: Counter[str] = Counter()
    for seed in POPPING[:7]:
        settings = popping(
            seed,
            popper_count=3,
            pop_ordered_permille=300,
            pop_batch_permille=300,
            pop_change_permille=200,
            pop_forget_permille=300,
            pop_retries_max=3,
            invisible_ms_max=300,
            pop_return_ms=300,
        )
        result = BrokerSimulation(settings).run()
        assert result.verdict is SimVerdict.FINE, f"seed {seed}: {result.problem}"
        done.update(result.work)
    for name in (
        "popped",
        "popped_again",
        "popped_in_order",
        "pops_acknowledged",
        "pops_answered",
        "pop_acks_answered",
        "pop_acks_late",
        "pop_times_changed",
        "pop_batches",
        "pops_dead",
        "pops_returned",
    ):
        assert done[name] > 0, name


class LosesWhatFlies(Pops):
    """A restored table lacks what is in flight of its last queue."""

    def load_steps(self, data: bytes) -> Iterator[None]:
        yield from super().load_steps(data)
        if self._queues:
            self.count -= self._queues.popitem()[1].count


class TakesAnyTime(Pops):
    """Hands out again what is in flight, due or not; what it notes is right."""

    def hand_out(self, *args: Any, **named: Any) -> Any:
        named["skipped_ms"] -= LATER_MS
        named["invisible_ms"] -= LATER_MS
        return super().hand_out(*args, **named)


class ForgetsCounts(Pops):
    """A restored table does not know how often a message was handed out."""

    def load_steps(self, data: bytes) -> Iterator[None]:
        yield from super().load_steps(data)
        for queue in self._queues.values():
            queue._times.clear()


def with_pops(kind: type[Pops]) -> type[BrokerState]:
    class Broken(BrokerState):
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            self.pops = kind()

    return Broken


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "lately"), [(LosesWhatFlies, 1), (ForgetsCounts, 15)])
def test_a_snapshot_that_lacks_some_of_what_flies_is_found(kind: type[Pops], lately: int) -> None:
    knobs = {"snapshot_interval_ms": 200, "pop_forget_permille": 400}
    found = first_finding(with_pops(kind), lately=lately, **knobs)
    assert "pops" in found or "what a replay gives" in found, found


@pytest.mark.slow
def test_an_invisible_time_that_the_fold_ignores_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    due = PoppedQueue.due
    monkeypatch.setattr(
        PoppedQueue, "due", lambda self, now_ms, limit: due(self, now_ms + LATER_MS, limit)
    )
    found = first_finding(with_pops(TakesAnyTime), pop_forget_permille=400)
    assert "before its time is over" in found, found


@pytest.mark.slow
def test_an_acknowledgement_that_a_change_of_leaders_forgets_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is answered before it is committed."""
    when_committed = Router.when_committed

    def when_staged(self: Router, request: PendingRequest, *how: Any, **more: Any) -> None:
        command = request.command
        is_ack = isinstance(command, RemotingCommand) and command.code == RequestCode.ACK_MESSAGE
        if is_ack:
            request.answer(ResponseCode.SUCCESS)
        when_committed(self, request, *how, **more)

    monkeypatch.setattr(Router, "when_committed", when_staged)
    found = first_finding()
    assert "answered as acknowledged; the log says no such thing" in found, found


@pytest.mark.slow
def test_a_batch_that_acknowledges_one_too_many_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_one_more(body: bytes) -> list[PoppedBatch]:
        return [
            pop._replace(offsets=[*pop.offsets, QueueOffset(pop.offsets[-1] + 1)])
            for pop in pop_bodies.decode_batch_ack(body)
        ]

    monkeypatch.setattr(pop_acks, "decode_batch_ack", with_one_more)
    assert "nobody asked for" in (found := first_finding()), found


@pytest.mark.slow
def test_what_is_returned_though_it_is_being_acknowledged_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The copy stands in the log, and the message was acknowledged just before."""
    monkeypatch.setattr(PopReturns, "changing", lambda _self, _key, _offsets: lambda _error: None)
    found = first_finding(pop_return_ms=0, pop_forget_permille=100, invisible_ms_max=100)
    assert "a copy of" in found, found


@pytest.mark.slow
def test_a_leader_whose_time_goes_on_before_its_first_record_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As it once was: copies were stored of what the fold, whose time stands still between terms, kept in flight."""

    def hasty(self: PopReading) -> int:
        return self._log_ms() - self._state.locks.skipped_ms

    monkeypatch.setattr(PopReading, "time_ms", hasty)
    found = first_finding(pop_return_ms=0, pop_forget_permille=400, invisible_ms_max=100)
    assert "is still in flight" in found, found


@pytest.mark.slow
def test_what_never_comes_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PoppedQueue, "due", lambda _self, _now_ms, _limit: [])
    found = first_finding(pop_forget_permille=400, pop_return_ms=60_000)
    assert "to be popped" in found, found
