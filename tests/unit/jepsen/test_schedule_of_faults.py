"""The schedule of faults: drawn from the seed, each with its cure, and none left when the run ends."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import trio
import trio.testing

from jepsen.checkers.answers import check_answers
from jepsen.history.ops import Op, OpLog
from jepsen.history.values import Strike, shaped
from jepsen.nemeses.api import Fault, NothingStruckError, PromiseBrokenError
from jepsen.nemeses.schedule import MISSES_MAX, FaultSchedule, Pace
from jepsen.reports.timeline import fault_spans
from jepsen.systems.api import Subject, System

PACE = Pace(hold_s=(1.0, 2.0), quiet_s=(1.0, 3.0))


class Switch(Fault):
    """Breaks nothing but its own flag."""

    def __init__(self, name: str, error: Exception | None = None) -> None:
        self.name = name
        self.is_on = False
        self._error = error

    async def inject(self, system: System, chance: random.Random) -> str:
        if self._error is not None:
            raise self._error
        self.is_on = True
        return f"on {chance.random():.3f}"

    async def cure(self, system: System) -> str:
        told = "off" if self.is_on else ""
        self.is_on = False
        return told


class Whole:
    """A system that is always together."""

    folder = Path()

    async def wait_whole(self, _timeout_s: float) -> bool:
        return True


async def struck(
    faults: Sequence[Switch], seconds: float = 60, seed: int = 1, rounds: int | None = None
) -> tuple[FaultSchedule, list[Op]]:
    log = OpLog(clock_ns=lambda: round(trio.current_time() * 1e9))
    system = cast("Subject", Whole())
    schedule = FaultSchedule(faults, system, log, seed=seed, pace=PACE, rounds=rounds)
    with trio.move_on_after(seconds):
        await schedule.run()
    await schedule.cure_all()
    return schedule, log.ops


async def test_each_fault_is_followed_by_its_cure(autojump_clock: trio.testing.MockClock) -> None:
    fault = Switch("kill")
    schedule, ops = await struck([fault])
    spans = fault_spans(ops)
    assert len(spans) == schedule.injected["kill"] > 8
    assert all(span.cured == "off" for span in spans)
    assert not fault.is_on
    lengths = [(span.end_ns - span.start_ns) / 1e9 for span in spans]
    assert all(0 < length <= 2.001 for length in lengths)


async def test_one_seed_gives_one_plan(autojump_clock: trio.testing.MockClock) -> None:
    def plan(ops: list[Op]) -> list[tuple[int, object]]:
        return [(op.t_ns - ops[0].t_ns, op.value) for op in ops]

    plans = [plan((await struck([Switch("kill")], seed=seed))[1]) for seed in (3, 3, 4)]
    assert plans[0] == plans[1] != plans[2]


async def test_several_faults_overlap(autojump_clock: trio.testing.MockClock) -> None:
    _, ops = await struck([Switch("kill"), Switch("pause")], seconds=120)
    kills = [span for span in fault_spans(ops) if span.name == "kill"]
    pauses = [span for span in fault_spans(ops) if span.name == "pause"]
    assert any(a.start_ns < b.end_ns and b.start_ns < a.end_ns for a in kills for b in pauses)


async def test_leaving_one_out_changes_no_other(autojump_clock: trio.testing.MockClock) -> None:
    def done(ops: list[Op]) -> list[Strike]:
        steps = [shaped(op.value, Strike) for op in ops if op.f == "kill"]
        return [step for step in steps if "done" in step]

    alone = done((await struck([Switch("kill")]))[1])
    beside = done((await struck([Switch("kill"), Switch("pause")]))[1])
    shorter = min(len(alone), len(beside))
    assert [v for v in alone if v["do"] == "inject"][:3] == [
        v for v in beside if v["do"] == "inject"
    ][:3]
    assert shorter > 5


async def test_rounds_end_by_themselves(autojump_clock: trio.testing.MockClock) -> None:
    schedule, ops = await struck([Switch("kill")], seconds=1000, rounds=3)
    assert trio.current_time() < 100
    assert schedule.injected == {"kill": 3}
    assert len(fault_spans(ops)) == 3


async def test_a_fault_that_crashes_is_told_and_not_repeated(
    autojump_clock: trio.testing.MockClock,
) -> None:
    schedule, ops = await struck([Switch("kill", OSError("no such process"))])
    assert schedule.crashes == ["kill, inject: OSError: no such process"]
    assert [op.error for op in ops if op.error] == schedule.crashes


class Blow(Switch):
    """Is over when it was injected; there is nothing to cure."""

    async def cure(self, system: System) -> str:
        return ""


async def test_a_fault_that_leaves_nothing_to_undo_ends_all_the_same(
    autojump_clock: trio.testing.MockClock,
) -> None:
    schedule, ops = await struck([Blow("rolling-restart")])
    spans = fault_spans(ops)
    assert len(spans) == schedule.injected["rolling-restart"] > 8
    assert all(span.cured == "nothing was left to undo" for span in spans)
    assert all(span.end_ns - span.start_ns <= 2.001e9 for span in spans)


class Unmet(Switch):
    """Is in force until its cure, and nobody comes across it."""

    def has_struck(self, system: System) -> bool:
        return False


async def test_a_fault_that_nobody_met_is_not_counted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    schedule, ops = await struck([Unmet("disk-full")])
    assert schedule.injected == {"disk-full": 0}
    assert {span.name for span in fault_spans(ops)} == {"disk-full (struck nothing)"}


async def test_a_fault_that_found_nothing_to_strike_is_told_and_not_counted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    fault = Switch("bit-flip", NothingStruckError("no snapshot"))
    schedule, ops = await struck([fault], seconds=20)
    assert schedule.injected == {"bit-flip": 0}
    assert schedule.crashes == []
    assert check_answers(ops).counts == {"faults": 0}
    spans = fault_spans(ops)
    assert {(span.name, span.done) for span in spans} == {
        ("bit-flip (struck nothing)", "no snapshot")
    }


async def test_rounds_that_strike_nothing_are_given_up_and_say_why(
    autojump_clock: trio.testing.MockClock,
) -> None:
    refused = NothingStruckError("n0 did not hand over: nobody is there")
    begun_s = trio.current_time()
    schedule, ops = await struck([Switch("transfer", refused)], seconds=600, rounds=20)
    assert trio.current_time() - begun_s < 60
    assert sum("missing" in shaped(op.value, Strike) for op in ops) == MISSES_MAX
    assert schedule.injected == {"transfer": 0}
    assert schedule.crashes == [
        f"transfer struck nothing {MISSES_MAX} times in a row, the last time because: {refused}"
    ]


class Seldom(Switch):
    """Strikes something each third time."""

    tries = 0

    async def inject(self, system: System, chance: random.Random) -> str:
        self.tries += 1
        if self.tries % 3:
            raise NothingStruckError("not yet")
        return await super().inject(system, chance)


async def test_misses_between_strikes_end_no_rounds(autojump_clock: trio.testing.MockClock) -> None:
    schedule, _ = await struck([Seldom("transfer")], seconds=600, rounds=MISSES_MAX)
    assert (schedule.injected, schedule.crashes) == ({"transfer": MISSES_MAX}, [])


async def test_a_broken_promise_makes_the_run_invalid(
    autojump_clock: trio.testing.MockClock,
) -> None:
    _, ops = await struck([Switch("twin", PromiseBrokenError("it was not refused"))], seconds=5)
    result = check_answers(ops)
    assert result.valid is False
    assert "it was not refused" in result.anomalies[0].text
