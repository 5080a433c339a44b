"""Generators are values: what they say depends on what they are asked, and on their seed."""

from __future__ import annotations

import random
from collections.abc import Sequence

from jepsen.generators import (
    PENDING,
    Context,
    EachSlot,
    Endless,
    Generator,
    Invocation,
    Limit,
    Mix,
    Nothing,
    Once,
    Pending,
    Phases,
    Stagger,
    TimeLimit,
    Until,
    each_slot,
    earliest,
    sequence,
)

SEND, POLL = Invocation("send"), Invocation("poll")


def asked(
    generator: Generator, times: int, free: Sequence[int] = (0,), step_ns: int = 0
) -> list[object]:
    """Return the generator's answers to so many questions: names of invocations, None, or Pending."""
    said: list[object] = []
    for number in range(times):
        step, generator = generator.next(Context(number * step_ns, free))
        said.append(step.f if isinstance(step, Invocation) else step)
    return said


def test_once_is_over_after_one() -> None:
    assert asked(Once(SEND), 3) == ["send", None, None]


def test_nobody_gets_work_while_nobody_is_free() -> None:
    for generator in (Once(SEND), Endless(lambda: SEND), each_slot(2, lambda _: Once(SEND))):
        assert asked(generator, 2, free=()) == [PENDING, PENDING]


def test_once_waits_for_the_process_that_it_names() -> None:
    only = Once(Invocation("send", process=5))
    assert asked(only, 1, free=(1, 2)) == [PENDING]
    assert asked(only, 1, free=(1, 5)) == ["send"]


def test_a_limit_counts_invocations_and_not_questions() -> None:
    limited: Generator = Limit(2, Endless(lambda: SEND))
    step, limited = limited.next(Context(0, ()))
    assert step == PENDING
    assert asked(limited, 3) == ["send", "send", None]


def test_a_time_limit_counts_from_the_first_question() -> None:
    limited: Generator = TimeLimit(10, Endless(lambda: SEND))
    step, limited = limited.next(Context(100, (0,)))
    assert step == SEND
    step, limited = limited.next(Context(109, ()))
    assert step == Pending(110), "whoever waits must hear that the time is over"
    step, limited = limited.next(Context(110, (0,)))
    assert step is None


def test_stagger_keeps_the_rate_on_average() -> None:
    generator: Generator = Stagger(1000, Endless(lambda: SEND), random.Random(1))
    count, t_ns = 0, 0
    while t_ns < 1_000_000:
        step, generator = generator.next(Context(t_ns, (0,)))
        if isinstance(step, Pending):
            assert step.until_ns is not None
            t_ns = step.until_ns
        else:
            count += 1
    assert 900 < count < 1100


def test_stagger_makes_up_for_nothing_after_an_outage() -> None:
    generator: Generator = Stagger(1000, Endless(lambda: SEND), random.Random(1))
    _, generator = generator.next(Context(0, (0,)))
    burst = asked(generator, 50, free=(0,))
    assert isinstance(burst[-1], Pending)
    said = 0
    for _ in range(50):
        step, generator = generator.next(Context(10**9, (0,)))
        said += isinstance(step, Invocation)
    assert said <= 4


def test_a_mix_draws_by_weight_and_the_same_with_the_same_seed() -> None:
    def drawn(seed: int) -> list[object]:
        parts = [(3, Endless(lambda: SEND)), (1, Endless(lambda: POLL))]
        return asked(Mix(parts, random.Random(seed)), 400)

    assert drawn(1) == drawn(1) != drawn(2)
    assert 240 < drawn(1).count("send") < 360


def test_a_mix_leaves_out_who_is_exhausted_and_ends_with_the_last() -> None:
    mix = Mix([(1, Once(SEND)), (1, Once(POLL))], random.Random(3))
    assert sorted(map(str, asked(mix, 3))) == ["None", "poll", "send"]


def test_a_mix_asks_others_when_one_has_to_wait() -> None:
    waiting = Stagger(1000, Endless(lambda: POLL), random.Random(1), at_ns=10**9)
    mix = Mix([(9, waiting), (1, Endless(lambda: SEND))], random.Random(1))
    assert asked(mix, 5) == ["send"] * 5
    assert asked(Mix([(1, waiting)], random.Random(1)), 1) == [Pending(10**9)]


def test_a_phase_begins_when_all_work_of_the_one_before_has_ended() -> None:
    phases: Generator = Phases([Once(SEND), Once(POLL)])
    step, phases = phases.next(Context(0, (0, 1)))
    assert step == SEND
    step, phases = phases.next(Context(1, (1,), busy=1))
    assert step == PENDING
    step, phases = phases.next(Context(2, (0, 1), busy=0))
    assert step == POLL


def test_each_worker_has_its_own_and_keeps_it_under_a_new_number() -> None:
    generator: Generator = each_slot(2, lambda slot: sequence([Invocation(f"a{slot}")] * 2))
    step, generator = generator.next(Context(0, (1, 0)))
    assert step == Invocation("a1", process=1), "who waits longest comes first"
    step, generator = generator.next(Context(0, (3,)))
    assert step == Invocation("a1", process=3), "process 3 is worker 1 under another number"
    step, generator = generator.next(Context(0, (3,)))
    assert step == PENDING, "worker 0 is at work, or will be"
    assert asked(generator, 3, free=(0,)) == ["a0", "a0", None]


def test_until_ends_when_the_condition_holds() -> None:
    done: list[int] = []
    generator = Until(lambda: len(done) > 1, Endless(lambda: SEND))
    assert asked(generator, 2) == ["send", "send"]
    done += [1, 2]
    assert asked(generator, 1) == [None]


def test_the_earliest_of_several_waits() -> None:
    assert earliest([PENDING, Pending(7), Pending(3)]) == Pending(3)
    assert earliest([PENDING]) == PENDING
    assert Nothing().next(Context(0, (0,)))[0] is None
    assert EachSlot({}, 1).next(Context(0, (0,)))[0] is None
