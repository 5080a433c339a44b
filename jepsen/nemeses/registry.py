"""Which faults there are, by the specifications that the command line has.

A specification is a word, or a word with a choice: `kill:leader`, `partition:ring`, `flap`. Without a choice
the first one listed is taken. docs/nemeses.md describes each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jepsen.nemeses.api import SCOPES, Fault, Scope
from jepsen.nemeses.network import CutLinks, Flap, HalfOpen, ReplayFrames, ShapeLinks
from jepsen.nemeses.partitions import PARTITIONS, Partition
from jepsen.nemeses.process import (
    CrashLoop,
    Kill,
    KillInElection,
    KillInRecovery,
    Pause,
    RollingRestart,
    SameIdTwice,
    Terminate,
)
from jepsen.system import Shape


class UnknownFaultError(ValueError):
    """No fault has this name, or not with this choice; the text lists those that there are."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Faults of one word.

    Attributes:
        choices: what may stand behind the colon; empty when nothing may.
        make: the fault of a whole specification and its choice.
    """

    choices: tuple[str, ...]
    make: Callable[[str, str], Fault]


def _partition(spec: str, choice: str) -> Fault:
    found: Partition = next(each for each in PARTITIONS if each == choice)
    return CutLinks(spec, found)


def _scope(choice: str) -> Scope:
    return next(each for each in SCOPES if each == choice)


def _shaped(shape: Shape, *, with_clients: bool) -> Kind:
    return Kind((), lambda spec, _: ShapeLinks(spec, shape, with_clients=with_clients))


_LOSSES = {"10": 0.1, "1": 0.01, "30": 0.3}

KINDS: dict[str, Kind] = {
    "kill": Kind(SCOPES, lambda spec, choice: Kill(spec, _scope(choice))),
    "term": Kind(SCOPES, lambda spec, choice: Terminate(spec, _scope(choice))),
    "pause": Kind(SCOPES, lambda spec, choice: Pause(spec, _scope(choice))),
    "crash-loop": Kind(("one", "leader"), lambda spec, choice: CrashLoop(spec, _scope(choice))),
    "kill-in-election": Kind((), lambda spec, _: KillInElection(spec)),
    "kill-in-recovery": Kind((), lambda spec, _: KillInRecovery(spec)),
    "rolling-restart": Kind((), lambda spec, _: RollingRestart(spec)),
    "same-id-twice": Kind((), lambda spec, _: SameIdTwice(spec)),
    "partition": Kind(PARTITIONS, _partition),
    "flap": Kind(("one", "leader"), lambda spec, choice: Flap(spec, _scope(choice))),
    "half-open": Kind(("one", "leader"), lambda spec, choice: HalfOpen(spec, _scope(choice))),
    "delay": _shaped(Shape(delay_ms=50, jitter_ms=450), with_clients=True),
    "loss": Kind(
        tuple(_LOSSES),
        lambda spec, choice: ShapeLinks(spec, Shape(retransmit=_LOSSES[choice]), with_clients=True),
    ),
    "lost-frames": _shaped(Shape(lose=0.1), with_clients=False),
    "duplicate": _shaped(Shape(duplicate=0.2), with_clients=False),
    "reorder": _shaped(Shape(reorder=0.2), with_clients=False),
    "corrupt": _shaped(Shape(corrupt=0.01), with_clients=False),
    "bandwidth": _shaped(Shape(bytes_per_s=125_000), with_clients=False),
    "replay": Kind((), lambda spec, _: ReplayFrames(spec)),
}


def named(spec: str) -> Fault:
    """Make the fault of a specification.

    Raises:
        UnknownFaultError: there is none.
    """
    word, colon, choice = spec.partition(":")
    kind = KINDS.get(word)
    if kind is None:
        raise UnknownFaultError(f"no fault is called {word!r}; there are {', '.join(KINDS)}")
    if not colon and kind.choices:
        choice = kind.choices[0]
    if choice not in (kind.choices or ("",)) or (colon and not kind.choices):
        offered = ", ".join(f"{word}:{each}" for each in kind.choices) or word
        raise UnknownFaultError(f"{spec!r} is no fault; there is {offered}")
    return kind.make(spec, choice)


def specifications() -> list[str]:
    """Every specification, with its choice."""
    return [
        f"{word}:{choice}" if choice else word
        for word, kind in KINDS.items()
        for choice in kind.choices or ("",)
    ]
