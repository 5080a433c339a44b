"""A growing set, element by element: what became of each one (Jepsen's set-full).

The model. A set to which elements are added and which is read as a whole. Elements are distinct and never taken out. An
element is *known* from the moment at which its add was acknowledged, or a read that holds it completed; every read
that begins later must hold it.

    add   invoke element          (a number or a text, never added twice by the workload)
    read  ok     [element, ...]   everything

    lost        known, and the last reads that began since do not hold it
    stale       known, missing in a read that began later, and in a still later one there again; judged unless
                `linearizable=False`, as for reads that a follower answers from what it has
    duplicate   twice in one read
    unexpected  read, and never added, or only ever refused

Counted: *stable* (known and held at last), *never-read* (acknowledged, and no read began since; the verdict is then
unknown), *recovered* (read though its add ended unknown), and how long stale elements stayed missing after they were
known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from jepsen.checkers.messages import operations
from jepsen.checkers.percentiles import percentile
from jepsen.checkers.results import Anomaly, CheckResult, judged
from jepsen.history.ops import Op, Pair
from jepsen.history.values import shaped

NAME = "set-full"

Element = int | str


@dataclass(slots=True)
class _Element:
    """One element, as the history shows it.

    Attributes:
        add: its operation, None when it was only read.
        known: the completion since which every read must hold it.
        absent: the last read without it that began once it was known.
        present: the last read that holds it, by invocation.
    """

    add: Pair | None = None
    known: Op | None = None
    absent: Pair | None = None
    present: Pair | None = None
    is_stale: bool = False


def check_set_full(ops: Sequence[Op], *, linearizable: bool = True) -> CheckResult:
    """Judge each element by the reads of the whole set after it was known."""
    found = operations(ops)
    reads = [pair for pair in found if pair.invoke.f == "read" and pair.type == "ok"]
    contents = [frozenset(_value(read)) for read in reads]
    adds = [pair for pair in found if pair.invoke.f == "add"]
    names = shaped([add.invoke.value for add in adds], list[Element])
    elements = {name: _Element(add) for name, add in zip(names, adds, strict=True)}
    _note_known(elements, reads, contents)
    for read, held in zip(reads, contents, strict=True):  # in order of invocation
        for name, element in elements.items():
            if name in held:
                element.present = read
            elif element.known is not None and element.known.index < read.invoke.index:
                element.absent = read
                element.is_stale = True
    anomalies = [one for read in reads for one in _duplicates(read)]
    tally: Counter[str] = Counter()
    stale_ms: list[float] = []
    for name, element in elements.items():
        anomalies += _judge(
            name, element, reads, tally=tally, stale_ms=stale_ms, linearizable=linearizable
        )
    counts: dict[str, object] = {
        "attempts": sum(element.add is not None for element in elements.values()),
        "acknowledged": sum(_is(element, "ok") for element in elements.values()),
        "reads": len(reads),
        **{kind: tally[kind] for kind in ("stable", "lost", "stale", "never-read", "recovered")},
        "stale_ms": {
            f"p{percent}": round(percentile(stale_ms, percent), 1) if stale_ms else None
            for percent in (50, 99, 100)
        },
    }
    why = ""
    if not counts["acknowledged"]:
        why = "no add was acknowledged"
    elif tally["never-read"]:
        why = f"{tally['never-read']} acknowledged elements were never looked for"
    return judged(NAME, anomalies, counts, why)


def _value(read: Pair) -> Sequence[Element]:
    assert read.completion is not None, f"{read.invoke} never ended, and is taken for a read"
    return shaped(read.completion.value, list[Element])


def _note_known(
    elements: dict[Element, _Element], reads: Sequence[Pair], contents: Sequence[frozenset[Element]]
) -> None:
    for element in elements.values():
        if element.add is not None and element.add.type == "ok":
            element.known = element.add.completion
    for read, held in zip(reads, contents, strict=True):
        for name in held:
            element = elements.setdefault(name, _Element())
            end = read.completion
            if element.known is None or (end is not None and end.index < element.known.index):
                element.known = end


def _is(element: _Element, type_: str) -> bool:
    return element.add is not None and element.add.type == type_


def _duplicates(read: Pair) -> list[Anomaly]:
    assert read.completion is not None, f"{read.invoke} never ended, and is taken for a read"
    twice = sorted(name for name, count in Counter(_value(read)).items() if count > 1)
    if not twice:
        return []
    text = f"a read holds more than once: {', '.join(map(str, twice[:10]))}"
    return [Anomaly("duplicate", text, (read.completion.index,))]


def _judge(
    name: Element,
    element: _Element,
    reads: Sequence[Pair],
    *,
    tally: Counter[str],
    stale_ms: list[float],
    linearizable: bool,
) -> list[Anomaly]:
    """Judge one element: lost if the last reads lack it, stale if a later read found it again; adds to the tallies."""
    present, absent, known = element.present, element.absent, element.known
    ops = tuple(
        op.index
        for pair in (element.add, present, absent)
        if pair is not None
        for op in (pair.invoke, pair.completion)
        if op is not None
    )
    if present is not None and (element.add is None or element.add.type == "fail"):
        how = "never added" if element.add is None else "refused"
        return [Anomaly("unexpected", f"{name} was {how} and read", ops)]
    if known is None:
        return []
    tally["recovered"] += _is(element, "info")
    if absent is None and present is None:
        tally["never-read"] += 1
        return []
    if absent is None or (present is not None and present.invoke.index > absent.invoke.index):
        tally["stable"] += 1
        if not element.is_stale or absent is None or absent.completion is None:
            return []
        tally["stale"] += 1
        missing_ms = (absent.completion.t_ns - known.t_ns) / 1e6
        stale_ms.append(missing_ms)
        text = f"{name} was known and missing in a read {missing_ms:.1f} ms later"
        return [Anomaly("stale", text, ops)] if linearizable else []
    tally["lost"] += 1
    return [Anomaly("lost", f"{name} was known and is missing in the last reads", ops)]
