"""Linearizability: can the operations be put in one order that explains every answer?

The model. Each key is an object of its own (`models.py`), and each operation on it takes effect at one moment between
its invocation and its completion. One of unknown outcome takes effect at any moment after its invocation, or never; one
that failed never does. A history is linearizable when there is an order of the operations that keeps to these
spans and in which the object answers as it was seen to answer. Linearizability is local: each key is judged apart.

    nonlinearizable   no such order exists for a key; the text shows the longest beginning that could be explained, the
                      state after it, and the operations of which none can come next

Shapes: the value of an invocation is [key, argument], that of an `ok` is [key, result], as Jepsen's independent keys.

The search is Wing and Gong's with Lowe's memory, as in Porcupine. It builds the order from the front. Candidates for
the next place are the operations invoked before the first completion of those that are not placed yet. Placing
one gives a configuration, the set of placed operations and the state; a configuration that was met before leads nowhere
new. Two things keep it small: a read that fits is placed at once, without looking at alternatives (an order that has it
later can have it here as well), and operations of unknown outcome are tried last.

The problem is NP-complete, so the search is bounded: by configurations, and by time. What was not decided is unknown.
A hard key must not use up what would have decided the others: keys are searched in rounds, small ones first, each for
as many configurations as every other, four times as many in the next round. A search goes on where it stopped. A round
in which a key was refuted is the last one, since no other key can save the history.

Source: Wing and Gong, "Testing and Verifying Concurrent Objects" (1993); Lowe, "Testing for Linearizability" (2017).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic

from jepsen.checkers.messages import operations
from jepsen.checkers.models import Call, Model, S
from jepsen.checkers.results import Anomaly, CheckResult, judged
from jepsen.history.ops import Op, Pair
from jepsen.history.values import Keyed, shaped

NAME: Final = "linearizable"
CONFIGURATIONS_MAX: Final = 2_000_000
SECONDS_MAX: Final = 60.0
FIRST_SHARE: Final = 10_000
"""Configurations of each key in the first round."""
SHARE_GROWTH: Final = 4
Key = str | int
_SHOWN_MAX: Final = 5
_CLOCK_EVERY: Final = 1024  # configurations between two looks at the clock


def check_linearizable(
    ops: Sequence[Op],
    *,
    model: Model[S],
    configurations_max: int = CONFIGURATIONS_MAX,
    seconds_max: float = SECONDS_MAX,
    clock_s: Callable[[], float] = time.monotonic,
) -> CheckResult:
    """Judge each key's operations on their own, all within one budget of configurations.

    Args:
        ops: the history; operations that are not the model's must not stand in it.
        model: of each key.
        configurations_max: bound of the search, for all keys together.
        seconds_max: the same in time.
        clock_s: for `seconds_max`.
    """
    budget = _Budget(configurations_max, clock_s() + seconds_max, clock_s)
    by_key: dict[Key, list[Pair]] = defaultdict(list)
    for pair in operations(ops):
        if pair.type != "fail":
            by_key[shaped(pair.invoke.value, Keyed).key].append(pair)
    searches = {key: _Search(row, model) for key, row in by_key.items()}
    stuck = _search_all(searches, budget)
    undecided = [key for key, search in searches.items() if not search.is_decided]
    known = sum(pair.type == "ok" for row in by_key.values() for pair in row)
    counts: dict[str, object] = {
        "keys": len(by_key),
        "operations": known,
        "unknown_operations": sum(map(len, by_key.values())) - known,
        "configurations": configurations_max - budget.left,
        "undecided_keys": len(undecided),
    }
    why = ""
    if not known:
        why = "no operation succeeded"
    elif undecided:
        keys = ", ".join(map(str, undecided[:_SHOWN_MAX]))
        more = f" and {len(undecided) - _SHOWN_MAX} more" if len(undecided) > _SHOWN_MAX else ""
        why = f"the search met its bound of {budget.what_is_spent} at key {keys}{more}"
    return judged(NAME, [_anomaly(key, where) for key, where in stuck.items()], counts, why)


def _search_all(searches: Mapping[Key, _Search[S]], budget: _Budget) -> dict[Key, Stuck[S]]:
    """Search round by round until all keys are decided, one is refuted, or the budget is spent."""
    found: dict[Key, Stuck[S]] = {}
    left = sorted(searches, key=lambda key: searches[key].size)
    share = FIRST_SHARE
    while left and not found and not budget.what_is_spent:
        for key in left:
            stuck = searches[key].run(budget, share)
            if stuck is not None:
                found[key] = stuck
        left = [key for key in left if not searches[key].is_decided]
        share *= SHARE_GROWTH
    return found


@dataclass(slots=True)
class _Budget:
    """The remaining bounds, for all keys together.

    Attributes:
        what_is_spent: "configurations" or "time" once that bound is reached.
    """

    left: int
    deadline_s: float
    clock_s: Callable[[], float]
    what_is_spent: str = ""

    def spend(self) -> None:
        """Spend one configuration."""
        self.left -= 1
        if self.left <= 0:
            self.what_is_spent = "configurations"
        elif self.left % _CLOCK_EVERY == 0 and self.clock_s() > self.deadline_s:
            self.what_is_spent = "time"


@dataclass(frozen=True, slots=True)
class Stuck(Generic[S]):
    """The place at which a search ended that found no order.

    Attributes:
        placed: the longest order that explains a beginning.
        total: how many known calls there are.
        state: after it.
        next: the calls of which none can come next.
    """

    placed: Sequence[Call]
    total: int
    state: S
    next: Sequence[Call]


@dataclass(slots=True)
class _Frame(Generic[S]):
    """One place in the order: the candidates for it, and the state before it."""

    candidates: Iterator[int]
    state: S
    placed: int = -1


class _Events:
    """Calls and returns of the known operations that are not placed yet, in the order of the history.

    A doubly linked list of event numbers, 0 and the last being its ends; a call number is a place in `calls`.
    """

    def __init__(self, calls: Sequence[Call], ends: Sequence[int]) -> None:
        """Chain the calls and returns of known operations in the order of the history.

        Args:
            calls: all of them; those of unknown outcome take no part.
            ends: where in the history each returned.
        """
        known = [number for number, call in enumerate(calls) if call.is_known]
        events = [(calls[number].index, number, False) for number in known]
        events += [(ends[number], number, True) for number in known]
        events.sort()
        size = len(events) + 2
        self._before, self._after = [at - 1 for at in range(size)], [at + 1 for at in range(size)]
        self._place = [0, *(place for place, _, _ in events), 0]
        self._number = [-1, *(number for _, number, _ in events), -1]
        self._is_return = [True, *(is_return for _, _, is_return in events), True]
        self._call_at, self._return_at = [0] * len(calls), [0] * len(calls)
        for at, (_, number, is_return) in enumerate(events, start=1):
            (self._return_at if is_return else self._call_at)[number] = at

    def up_to_first_return(self) -> Generator[int, None, int]:
        """Yield the calls before the first return; returns the place of that in the history.

        The list may change between two steps, but must be as it was whenever the next one is asked for.
        """
        at = self._after[0]
        while not self._is_return[at]:
            yield self._number[at]
            at = self._after[at]
        return self._place[at]

    def take_out(self, number: int) -> None:
        """Remove an operation that was placed."""
        before, after = self._before, self._after
        for at in (self._call_at[number], self._return_at[number]):
            after[before[at]] = after[at]
            before[after[at]] = before[at]

    def put_back(self, number: int) -> None:
        """Undo the latest `take_out`, which must have been of this operation."""
        before, after = self._before, self._after
        for at in (self._return_at[number], self._call_at[number]):
            after[before[at]] = at
            before[after[at]] = at


class _Search(Generic[S]):
    """The search for one key: a stack of frames, one for each place of the order that is filled.

    Attributes:
        size: how many calls are to be put in order.
        is_decided: whether the search has come to its end.
    """

    def __init__(self, pairs: Sequence[Pair], model: Model[S]) -> None:
        self.is_decided = False
        self._model = model
        ends = {pair.invoke.index: pair.completion.index for pair in pairs if pair.completion}
        self._calls = model.needed([_call(pair) for pair in pairs])
        self.size = len(self._calls)
        self._events = _Events(self._calls, [ends.get(call.index, 0) for call in self._calls])
        self._known_count = sum(call.is_known for call in self._calls)
        self._unknown = [number for number, call in enumerate(self._calls) if not call.is_known]
        self._frames = [_Frame(self._candidates(0), model.initial)]
        self._bits = 0  # of the placed calls
        self._met: set[tuple[int, S]] = set()
        self._left = self._known_count
        self._longest: tuple[int, list[int], S] = (self._left + 1, [], model.initial)

    def run(self, budget: _Budget, share: int) -> Stuck[S] | None:
        """Search on, for at most `share` configurations and as long as the budget lasts.

        Returns where it stuck when there is no order. None: there is one, or nobody knows yet (`is_decided`).
        """
        while self._left:
            if not share or budget.what_is_spent:
                return None
            frame = self._frames[-1]
            following = self._first_that_fits(frame)
            if following is not None:
                share -= 1
                budget.spend()
                self._place(frame, *following)
                continue
            if self._left < self._longest[0]:
                order = [each.placed for each in self._frames[:-1]]
                self._longest = (self._left, order, frame.state)
            self._frames.pop()
            if not self._back_to_a_choice():
                self.is_decided = True
                return self._stuck()
        self.is_decided = True
        return None

    def _candidates(self, bits: int) -> Iterator[int]:
        """Yield known calls before the first return, then the unknown ones that had begun by then."""
        first_return = yield from self._events.up_to_first_return()
        for number in self._unknown:
            if self._calls[number].index < first_return and not bits >> number & 1:
                yield number

    def _first_that_fits(self, frame: _Frame[S]) -> tuple[int, S] | None:
        """Return the next candidate that can stand here and leads to where the search has not been."""
        for number in frame.candidates:
            state = self._model.step(frame.state, self._calls[number])
            if state is None:
                continue
            configuration = (self._bits | 1 << number, state)
            if configuration not in self._met:
                self._met.add(configuration)
                return number, state
        return None

    def _place(self, frame: _Frame[S], number: int, state: S) -> None:
        frame.placed = number
        self._bits |= 1 << number
        if self._calls[number].is_known:
            self._events.take_out(number)
            self._left -= 1
            assert self._left >= 0, f"more calls are placed than the {self._known_count} known ones"
        self._frames.append(_Frame(self._candidates(self._bits), state))

    def _back_to_a_choice(self) -> bool:
        """Backtrack to the last place with another candidate (a read was no choice); False when there is none."""
        while self._frames:
            number = self._frames[-1].placed
            call = self._calls[number]
            self._bits &= ~(1 << number)
            if call.is_known:
                self._events.put_back(number)
                self._left += 1
                assert self._left <= self._known_count, f"call {number} was put back twice"
            if not (call.is_known and self._model.is_read(call)):
                return True
            self._frames.pop()
        return False

    def _stuck(self) -> Stuck[S]:
        _, order, state = self._longest
        for number in order:
            if self._calls[number].is_known:
                self._events.take_out(number)
        bits = sum(1 << number for number in order)
        return Stuck(
            [self._calls[number] for number in order],
            self._known_count,
            state,
            [self._calls[number] for number in self._candidates(bits)],
        )


def _call(pair: Pair) -> Call:
    is_known = pair.completion is not None and pair.type == "ok"
    argument = shaped(pair.invoke.value, Keyed).what
    result: object = None
    if pair.completion is not None and is_known:
        result = shaped(pair.completion.value, Keyed).what
    return Call(pair.invoke.f, argument, result, is_known, pair.invoke.index)


def _anomaly(key: Key, stuck: Stuck[S]) -> Anomaly:
    done = sum(call.is_known for call in stuck.placed)
    tail = ", ".join(map(_shown, stuck.placed[-_SHOWN_MAX:]))
    blocked = ", ".join(map(_shown, stuck.next[:_SHOWN_MAX]))
    text = (
        f"key {key}: {done} of {stuck.total} operations can be explained"
        f"{f', the last as {tail}' if tail else ''}; then the state is {_cut(stuck.state)} "
        f"and none of these can come next: {blocked}"
    )
    return Anomaly("nonlinearizable", text, tuple(call.index for call in stuck.next))


def _shown(call: Call) -> str:
    argument = "" if call.argument is None else f" {_cut(call.argument)}"
    result = (
        "" if call.result is None and call.f not in ("read", "get") else f" -> {_cut(call.result)}"
    )
    return f"#{call.index} {call.f}{argument}{result if call.is_known else ' -> ?'}"


def _cut(value: object) -> str:
    """Return a value as text; of a long one its end, which is where things happen."""
    text = repr(value)
    return text if len(text) <= 60 else f"...{text[-57:]}"
