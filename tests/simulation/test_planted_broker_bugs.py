"""The simulator of brokers is tested with brokers that are broken on purpose: it must find each of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count, islice
from typing import Any

import pytest

from broker.server.controller import BrokerController
from broker.server.deliveries.timers import TimerDeliveries
from broker.server.handlers import transactions as server_transactions
from broker.server.handlers.locks import Locks
from broker.server.handlers.pull_request import Pull
from broker.server.handlers.transactions import TransactionEnds
from broker.server.requests import router
from broker.server.requests.commits import Commits
from broker.server.requests.linear import LinearReads
from broker.server.requests.read_points import ReadPoints
from broker.server.requests.request import PendingRequest
from broker.server.requests.router import Router
from broker.server.watches.clock import SteadyWallClock
from broker.service.conclusions import RequestKind
from broker.service.pull import PullOutcome
from broker.service.refusal import Refusal
from broker.service.transactions import CommitPlan
from broker.store.offsets import ConsumerOffsets
from broker.store.queue_gathering import QueueGathering
from broker.store.reading import GetResult
from broker.store.recent_sends import RecentSends
from broker.store.refusals import RefusalKind
from broker.store.staging import Staging
from broker.store.state import BrokerState
from broker.store.timers import Timers
from broker.testing.broker_simulation import BrokerSimulation, run_broker_seed
from broker.testing.settings import (
    BrokerSimSettings,
    draw_broker_settings,
    is_register_run,
)
from dledger.engine import Engine
from dledger.errors import DLedgerError
from dledger.state_machine import StoredPart
from dledger.storage.snapshot_parts import PartWriter
from dledger.storage.snapshots import SnapshotStore
from dledger.testing.sim_purposes import Purpose
from dledger.testing.simulation import SimVerdict
from dledger_mq.message.numbers import QueueOffset
from dledger_mq.message.record import StoredMessage
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.group_bodies import decode_lock_request, encode_lock_reply
from dledger_mq.remoting.header import RemotingCommand
from tests.simulation.searches import lately_first
from tests.simulation.test_planted_bugs import (
    AcksBeforeSync,
    ForgetsItsVote,
    among_the_first,
    seeds_of,
)


def busy(seed: int) -> BrokerSimSettings:
    """A run with everything in it that brokers do."""
    return replace(
        draw_broker_settings(seed),
        node_count=3,
        snapshot_interval_ms=200,
        producer_count=2,
        transaction_count=1,
        consumer_count=1,
        delayed_permille=200,
        timed_permille=200,
        pause_ms_max=20,
        undecided_permille=200,
    )


def first_finding(seeds: Iterable[int], *, jumps: bool = False, **broken: Any) -> str:
    """What the simulator says about the first seed that it finds bad; `jumps`: wall clocks jump in all of them."""
    for seed in seeds:
        settings = busy(seed)
        if jumps:
            weights = {**settings.fault_weights, "jump-wall-clock": 10}
            settings = replace(settings, fault_weights=weights)
        result = BrokerSimulation(settings, **broken).run()
        if result.verdict is not SimVerdict.FINE:
            return result.problem
    return ""


class ShortWindow(RecentSends):
    """A restored window of recent sends lacks its last entry."""

    def load_steps(self, data: bytes) -> Iterator[None]:
        yield from super().load_steps(data)
        if self._entries:
            self._entries.pop()


class RewoundOffsets(ConsumerOffsets):
    """A restored table of offsets is one behind."""

    def load_steps(self, data: bytes) -> Iterator[None]:
        yield from super().load_steps(data)
        self._table = {
            key: {queue: QueueOffset(max(0, offset - 1)) for queue, offset in queues.items()}
            for key, queues in self._table.items()
        }


class LastingTimers(Timers):
    """A timer that was delivered stays pending."""

    def deliver(self, places: Any) -> RefusalKind | None:
        return None


def with_part(name: str, kind: type) -> type[BrokerState]:
    """A state one of whose components is broken."""

    class Broken(BrokerState):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            part = getattr(self, name)
            part.__class__ = kind

    return Broken


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind", "told"),
    [
        ("recent_sends", ShortWindow, "not what a replay gives: recent_sends"),
        ("offsets", RewoundOffsets, "not what a replay gives: offsets"),
        ("timers", LastingTimers, "stored twice"),
    ],
)
def test_a_broken_component_is_found(name: str, kind: type, told: str) -> None:
    assert told in first_finding(range(1, 12), state_type=with_part(name, kind))


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "lately"), [(AcksBeforeSync, 4), (ForgetsItsVote, 1)])
def test_a_broken_engine_is_found_here_too(engine: type[Engine], lately: int) -> None:
    assert first_finding(lately_first(range(1, 40), lately), engine_type=engine)


@pytest.mark.slow
def test_a_commit_of_a_transaction_in_two_entries_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stage_message_only(staging: Staging, plan: CommitPlan, now_ms: int) -> int:
        half: StoredMessage = plan.half
        return staging.stage(
            plan.topic,
            plan.queue_id,
            half.body,
            plan.properties,
            born_timestamp_ms=half.born_timestamp_ms,
            born_host=half.born_host,
            sys_flag=plan.sys_flag,
        )

    whole = server_transactions.stage_end

    def stage_end(staging: Staging, plan: Any, now_ms: int) -> int:
        if isinstance(plan, CommitPlan):
            return stage_message_only(staging, plan, now_ms)
        return whole(staging, plan, now_ms)

    monkeypatch.setattr(server_transactions, "stage_end", stage_end)
    assert "without the end of its transaction" in first_finding(range(1, 8))


class Unaware(BrokerController):
    """Recognises no repeated send."""

    def __init__(self, config: Any, *args: Any, **named: Any) -> None:
        super().__init__(replace(config, recognise_repeats=False), *args, **named)


@pytest.mark.slow
def test_a_broker_that_stores_repeats_is_found() -> None:
    assert "stored twice" in first_finding(range(1, 8), controller_type=Unaware)


@pytest.mark.slow
def test_a_timer_that_is_delivered_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    tick = TimerDeliveries.tick

    def early(timers: TimerDeliveries) -> None:
        """Deliver by a clock that is ahead: by one that is right, the node itself would notice."""
        right = timers._now_ms
        timers._now_ms = lambda: right() + 40
        try:
            tick(timers)
        finally:
            timers._now_ms = right

    monkeypatch.setattr(TimerDeliveries, "tick", early)
    assert "early" in first_finding(range(1, 8))


@pytest.mark.slow
def test_offsets_that_no_majority_confirms_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LinearReads, "read", lambda _self, act, _failed: act())
    seeds = lately_first(seeds_of(Purpose.LEASES, 30), 129)
    results = (run_broker_seed(seed) for seed in seeds)
    assert any("was known before" in result.problem for result in results)


class MovesWhoFindsNothing(BrokerController):
    """A node that sends its client to the leader, at once, names the end of its own queue as the place to go on."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        pulls = self.services.pulls
        answers = pulls._answers
        answer = answers.give

        def answer_with_own_end(pull: Pull, result: GetResult, outcome: PullOutcome) -> None:
            if outcome.code == ResponseCode.PULL_NOT_FOUND and not pull.is_confirmed:
                end = self._state.queues.min_max(*pull.place)[1]
                outcome = outcome._replace(next_offset=end)
            answer(pull, result, outcome)

        answers.give = answer_with_own_end  # type: ignore[method-assign]
        pulls._try_later = lambda pull: False  # type: ignore[method-assign]


PULLS_ANYWHERE = {"consumer_count": 3, "pull_anywhere_permille": 900, "lock_permille": 0}


def pulls_find(seeds: Iterable[int], **broken: Any) -> str:
    """What the first seed that is not fine says, when consumers pull from any node."""
    for seed in seeds:
        settings = replace(busy(seed), **PULLS_ANYWHERE, back_permille=0, delay_max_ms=40)
        result = BrokerSimulation(settings, **broken).run()
        if result.verdict is not SimVerdict.FINE:
            return result.problem
    return ""


@pytest.mark.slow
def test_a_follower_that_takes_its_own_end_for_the_queues_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ReadPoints, "read", lambda _self, act, _failed: act())
    assert "is sent elsewhere" in pulls_find(lately_first(range(1, 20), 6))


@pytest.mark.slow
def test_a_follower_that_moves_whom_it_sends_to_the_leader_is_found() -> None:
    assert "finds nothing and goes on" in pulls_find(
        range(1, 20), controller_type=MovesWhoFindsNothing
    )


@pytest.mark.slow
def test_pulls_from_any_node_are_fine() -> None:
    assert pulls_find((1, 2, 6)) == ""


class TellsWhatIsHere(BrokerController):
    """Without a leader a node tells the offset that it has applied."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        offsets, fail = self._offsets, self._router._fail

        def notify(request: PendingRequest, code: ResponseCode, remark: str) -> None:
            command = request.command
            if isinstance(command, RemotingCommand) and request.kind is RequestKind.QUESTION:
                offsets._query(request, command)[1]()
            else:
                fail(request, code, remark)

        self._router._fail = notify  # type: ignore[method-assign]


@pytest.mark.slow
def test_an_offset_that_is_told_without_a_leader_is_found() -> None:
    seeds = lately_first(islice(filter(is_register_run, count(1)), 40), 54)
    runs = (
        BrokerSimulation(draw_broker_settings(seed), controller_type=TellsWhatIsHere).run()
        for seed in seeds
    )
    assert any("was known before" in result.problem for result in runs)


@pytest.mark.slow
def test_a_send_back_that_is_told_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    when_committed = Router.when_committed

    def when_staged(self: Router, request: PendingRequest, *how: Any, **more: Any) -> None:
        if request.kind is RequestKind.SEND_BACK:
            request.answer(ResponseCode.SUCCESS)
        else:
            when_committed(self, request, *how, **more)

    monkeypatch.setattr(Router, "when_committed", when_staged)
    assert "answered as given back" in first_finding(lately_first(range(1, 20), 3))


@pytest.mark.slow
def test_a_lock_that_is_told_and_not_granted_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def lock(self: Locks, request: PendingRequest, command: RemotingCommand) -> None:
        held = decode_lock_request(command.body).mq_set
        request.answer(ResponseCode.SUCCESS, body=encode_lock_reply(held))

    monkeypatch.setattr(Locks, "lock", lock)
    assert "says no such thing" in first_finding(range(1, 20))


@pytest.mark.slow
def test_a_half_message_that_is_told_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    when_committed, wait, flush = Router.when_committed, Commits.wait, Commits.flush
    halves: list[Any] = []
    is_half = False

    def when_half_committed(
        self: Router, request: PendingRequest, place: int, act: Any, **more: Any
    ) -> None:
        nonlocal is_half
        told = getattr(getattr(act, "func", None), "__func__", None)
        is_half = told is TransactionEnds._half_stored
        when_committed(self, request, place, act, **more)
        is_half = False

    def wait_and_note(self: Commits, place: int, waiter: Any, *more: Any) -> None:
        if is_half:
            halves.append(waiter)
        wait(self, place, waiter, *more)

    def is_of_half(waiter: Any) -> bool:
        return any(waiter is half for half in halves)

    def flush_and_notify(self: Commits) -> None:
        before = len(self._flights)
        flush(self)
        for flight in self._flights[before:]:
            early = [each for each in flight.waiters if is_of_half(each[1])]
            flight.waiters[:] = [each for each in flight.waiters if each not in early]
            for place, waiter, *_ in early:
                waiter.committed(flight.staged, place)

    monkeypatch.setattr(Router, "when_committed", when_half_committed)
    monkeypatch.setattr(Commits, "wait", wait_and_note)
    monkeypatch.setattr(Commits, "flush", flush_and_notify)
    assert "but nothing is stored there" in first_finding(range(1, 20))
    assert halves


@pytest.mark.slow
def test_a_wall_clock_that_is_taken_as_it_is_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SteadyWallClock, "__call__", lambda self: self.wall_ms())
    # An hour that passes at once also ends the 60 s for which sends are remembered.
    found = ("any clock", "wait", "is stored twice")
    problem = first_finding(lately_first(range(1, 20), 2), jumps=True)
    assert any(words in problem for words in found), problem


def stops_find() -> str:
    """What the first runs with nothing but planned stops say, up to the first that is not fine."""
    for seed in among_the_first(Purpose.STOPS, 300):
        result = run_broker_seed(seed)
        if result.verdict is not SimVerdict.FINE:
            return result.problem
    return ""


@pytest.mark.slow
def test_a_node_that_ends_before_clients_have_moved_is_found() -> None:
    """It hands over, and ends at once: clients that have yet to learn who leads are cut off."""
    settings = map(draw_broker_settings, among_the_first(Purpose.STOPS, 300))
    hasty = (replace(each, forward_ms_min=0, forward_ms_max=0) for each in settings)
    problems = (BrokerSimulation(each).run().problem for each in hasty)
    assert any("failed though members are only stopped" in problem for problem in problems)


@pytest.mark.slow
def test_a_leader_that_refuses_sends_while_it_hands_over_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_kind: RequestKind, error: DLedgerError) -> Refusal:
        return Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, str(error))

    monkeypatch.setattr(router, "unconfirmed", refuse)
    assert "failed though members are only stopped" in stops_find()


@pytest.mark.slow
def test_a_follower_that_does_not_pass_sends_on_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Router, "_pass_on", lambda _self, _request: False)
    assert "failed though members are only stopped" in stops_find()


@pytest.mark.slow
def test_the_brokers_as_they_are_pass_the_same_seeds() -> None:
    assert first_finding(range(1, 5)) == ""


@pytest.mark.slow
def test_a_snapshot_whose_rows_are_of_several_moments_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(QueueGathering, "at_the_moment", lambda _self: iter(()))
    assert "has written" in first_finding(range(1, 12))


@pytest.mark.slow
def test_a_snapshot_that_names_a_part_before_it_is_synced_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PartWriter, "finish", finished_unsynced)
    assert "has not what a snapshot names" in first_finding(lately_first(range(1, 30), 4))


def finished_unsynced(self: PartWriter) -> StoredPart:
    self._write([self._chain.end()])
    self._close()
    return StoredPart(self.number, self._size_bytes, self._state_bytes, self._chain.crc)


@pytest.mark.slow
def test_a_part_that_is_removed_though_a_snapshot_names_it_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named_in = SnapshotStore._parts_named_in

    def all_but_one(self: SnapshotStore, path: str) -> frozenset[int]:
        return frozenset(sorted(named_in(self, path))[1:])

    monkeypatch.setattr(SnapshotStore, "_parts_named_in", all_but_one)
    assert "has not what a snapshot names" in first_finding(range(1, 12))
