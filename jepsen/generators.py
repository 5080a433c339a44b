"""Generators: pure values that the interpreter asks what to do next, in the style of Jepsen's.

A generator is asked with the state of the run and answers with what to do and with the generator that
stands in its place from then on. It does no I/O, reads no clock and draws no chance but from its own
`random.Random`, so that a seed gives the same plan.

    Phases(
        TimeLimit(30 * SECOND_NS, Stagger(10 * MILLISECOND_NS, Mix([(3, sends), (1, polls)], chance), chance)),
        EachSlot({slot: Once(Invocation("poll")) for slot in range(4)}, 4),
    )
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

MILLISECOND_NS: Final = 1_000_000
SECOND_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Context:
    """The state of a run as generators see it.

    Attributes:
        t_ns: since the start of the run.
        free: processes that could take an operation now, the one that waits longest first.
        busy: how many processes are at work.
    """

    t_ns: int
    free: Sequence[int]
    busy: int = 0


@dataclass(frozen=True, slots=True)
class Invocation:
    """Do `f` with `value`; on that process, or on any free one when it is None."""

    f: str
    value: object = None
    process: int | None = None


@dataclass(frozen=True, slots=True)
class Pending:
    """Nothing to do now; ask again at `until_ns`, or when something has changed when it is None."""

    until_ns: int | None = None


PENDING: Final = Pending()

Step = Invocation | Pending | None


class Generator(Protocol):
    """A source of operations, asked repeatedly by the interpreter; the step None means that it is exhausted."""

    def next(self, context: Context) -> tuple[Step, Generator]:
        """Return the next step, and the generator to ask after it.

        A step that nobody can take (no process is free) is not to be given: `Pending` is.
        """


@dataclass(frozen=True, slots=True)
class Nothing:
    """Always exhausted."""

    def next(self, _context: Context) -> tuple[Step, Generator]:
        """Return None: there is never anything to do."""
        return None, self


@dataclass(frozen=True, slots=True)
class Once:
    """Does one thing, once."""

    invocation: Invocation

    def next(self, context: Context) -> tuple[Step, Generator]:
        """Return the invocation once a process that may do it is free."""
        wanted = self.invocation.process
        if not context.free or (wanted is not None and wanted not in context.free):
            return PENDING, self
        return self.invocation, Nothing()


@dataclass(frozen=True, slots=True)
class Endless:
    """An endless sequence of the invocations that `make` returns."""

    make: Callable[[], Invocation]

    def next(self, context: Context) -> tuple[Step, Generator]:
        """Return the next invocation once a process is free."""
        return (self.make(), self) if context.free else (PENDING, self)


@dataclass(frozen=True, slots=True)
class Limit:
    """The first `count` invocations of another generator."""

    count: int
    inner: Generator

    def next(self, context: Context) -> tuple[Step, Generator]:
        """Return the inner generator's step until the limit is reached."""
        if self.count <= 0:
            return None, Nothing()
        step, inner = self.inner.next(context)
        left = self.count - isinstance(step, Invocation)
        return step, Limit(left, inner)


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """Another generator for a limited time, counted from the first question."""

    duration_ns: int
    inner: Generator
    end_ns: int | None = None

    def next(self, context: Context) -> tuple[Step, Generator]:
        """Return the inner generator's step until the time is over."""
        end_ns = context.t_ns + self.duration_ns if self.end_ns is None else self.end_ns
        if context.t_ns >= end_ns:
            return None, Nothing()
        step, inner = self.inner.next(context)
        if isinstance(step, Pending):
            until_ns = end_ns if step.until_ns is None else min(step.until_ns, end_ns)
            step = Pending(until_ns)
        return step, TimeLimit(self.duration_ns, inner, end_ns)


@dataclass(frozen=True, slots=True)
class Stagger:
    """Another generator, spread in time: 0 to 2 x `interval_ns`, evenly drawn, between two invocations."""

    interval_ns: int
    inner: Generator
    chance: random.Random
    at_ns: int = 0

    def next(self, context: Context) -> tuple[Step, Generator]:
        """Return the inner generator's step, delayed to its drawn time."""
        if context.t_ns < self.at_ns:
            return Pending(self.at_ns), self
        step, inner = self.inner.next(context)
        if not isinstance(step, Invocation):
            return step, replace(self, inner=inner)
        # Counted from the time that was due, so that the rate is kept; but what was missed in a long
        # outage is not made up for in a burst.
        start_ns = max(self.at_ns, context.t_ns - self.interval_ns)
        at_ns = start_ns + self.chance.randint(0, 2 * self.interval_ns)
        return step, replace(self, inner=inner, at_ns=at_ns)


@dataclass(frozen=True, slots=True)
class Mix:
    """Draws each step from one of several generators, by weight, until all are exhausted."""

    parts: Sequence[tuple[int, Generator]]
    chance: random.Random

    def next(self, context: Context) -> tuple[Step, Generator]:
        """Return the step of a drawn generator; draw another one if it has to wait."""
        parts = list(self.parts)
        waiting: list[Pending] = []
        order = self._drawn(parts)
        for place in order:
            weight, part = parts[place]
            step, part = part.next(context)
            parts[place] = (weight if step is not None else 0, part)
            if isinstance(step, Invocation):
                return step, Mix([each for each in parts if each[0]], self.chance)
            if isinstance(step, Pending):
                waiting.append(step)
        left = Mix([each for each in parts if each[0]], self.chance)
        return (earliest(waiting) if waiting else None), left

    def _drawn(self, parts: Sequence[tuple[int, Generator]]) -> list[int]:
        left = list(range(len(parts)))
        order: list[int] = []
        while left:
            (place,) = self.chance.choices(left, [parts[each][0] for each in left])
            left.remove(place)
            order.append(place)
        return order


@dataclass(frozen=True, slots=True)
class Phases:
    """Generators one after another; each begins when all operations of the one before have ended."""

    parts: Sequence[Generator]

    def next(self, context: Context) -> tuple[Step, Generator]:
        """Return the step of the first generator that is not exhausted."""
        if not self.parts:
            return None, self
        step, first = self.parts[0].next(context)
        if step is not None:
            return step, Phases([first, *self.parts[1:]])
        if context.busy:
            return PENDING, Phases([Nothing(), *self.parts[1:]])
        return Phases(self.parts[1:]).next(context)


@dataclass(frozen=True, slots=True)
class EachSlot:
    """A generator for each worker; worker `slot` has the processes slot, slot + slots, slot + 2 x slots, ...

    What a worker has left to do stays its own when its process gets a new number.
    """

    parts: Mapping[int, Generator]
    slots: int

    def next(self, context: Context) -> tuple[Step, Generator]:
        """Return the step of a free worker's generator."""
        parts = dict(self.parts)
        waiting: list[Pending] = []
        for process in context.free:
            slot = process % self.slots
            part = parts.get(slot)
            if part is None:
                continue
            step, part = part.next(Context(context.t_ns, (process,), context.busy))
            parts[slot] = part
            if isinstance(step, Invocation):
                return replace(step, process=process), EachSlot(parts, self.slots)
            if step is None:
                del parts[slot]
            else:
                waiting.append(step)
        rest = EachSlot(parts, self.slots)
        if not parts:
            return None, rest
        return earliest(waiting), rest


@dataclass(frozen=True, slots=True)
class Share:
    """A subset of the workers, numbered from 0 for the generator that they belong to.

    Attributes:
        first: the first of their slots.
        workers: how many they are.
        total: of all workers.

    Invariant: 0 <= first and first + workers <= total.
    """

    first: int
    workers: int
    total: int

    def __post_init__(self) -> None:
        is_inside = self.first >= 0 and self.first + self.workers <= self.total
        assert is_inside, f"{self.workers} workers from {self.first} on, of {self.total}"

    def owns(self, process: int) -> bool:
        """Return whether a process belongs to this subset of workers."""
        return 0 <= process % self.total - self.first < self.workers

    def inner(self, process: int) -> int:
        """Translate the number of a process among all workers to its number in this subset."""
        return process // self.total * self.workers + process % self.total - self.first

    def outer(self, inner: int) -> int:
        """Translate the number of a process in this subset to its number among all workers."""
        return inner // self.workers * self.total + self.first + inner % self.workers


@dataclass(frozen=True, slots=True)
class Reserve:
    """Several generators at once, each with workers of its own (as Jepsen's `reserve`); it is over when all are."""

    parts: Sequence[tuple[Share, Generator]]

    def __post_init__(self) -> None:
        # Two parts with one worker would stand in the history as one process that does two things at a time.
        ends = [0]
        for share, _ in sorted(self.parts, key=lambda part: part[0].first):
            assert share.first >= ends[-1], f"worker {share.first} belongs to two parts"
            ends.append(share.first + share.workers)

    def next(self, context: Context) -> tuple[Step, Generator]:
        """Return the step of the part whose worker has waited longest, or of another part if that one has to wait."""
        parts: list[tuple[Share, Generator] | None] = list(self.parts)
        waiting: list[Pending] = []
        for place in self._order(context.free):
            share, part = self.parts[place]
            free = [share.inner(process) for process in context.free if share.owns(process)]
            step, part = part.next(Context(context.t_ns, free, share.workers - len(free)))
            parts[place] = None if step is None else (share, part)
            if isinstance(step, Invocation):
                process = share.outer(free[0] if step.process is None else step.process)
                return replace(step, process=process), _without_ended(parts)
            if isinstance(step, Pending):
                waiting.append(step)
        return (earliest(waiting) if waiting else None), _without_ended(parts)

    def _order(self, free: Sequence[int]) -> list[int]:
        owners = [
            place
            for process in free
            for place, (share, _) in enumerate(self.parts)
            if share.owns(process)
        ]
        return list(dict.fromkeys([*owners, *range(len(self.parts))]))


@dataclass(frozen=True, slots=True)
class Until:
    """Another generator until a condition holds that clients bring about, such as "everything was read"."""

    is_over: Callable[[], bool]
    inner: Generator

    def next(self, context: Context) -> tuple[Step, Generator]:
        """Return the inner generator's step while the condition does not hold."""
        if self.is_over():
            return None, Nothing()
        step, inner = self.inner.next(context)
        return step, Until(self.is_over, inner)


def _without_ended(parts: Sequence[tuple[Share, Generator] | None]) -> Reserve:
    return Reserve([part for part in parts if part is not None])


def each_slot(slots: int, make: Callable[[int], Generator]) -> EachSlot:
    """Give every worker the generator that `make` makes for its slot."""
    return EachSlot({slot: make(slot) for slot in range(slots)}, slots)


def sequence(invocations: Sequence[Invocation]) -> Phases:
    """Return a generator that does these one after another."""
    return Phases([Once(invocation) for invocation in invocations])


def earliest(waiting: Sequence[Pending]) -> Pending:
    """Return the earliest of several waits; one without a time if none has a time."""
    times = [each.until_ns for each in waiting if each.until_ns is not None]
    return Pending(min(times)) if times else PENDING
