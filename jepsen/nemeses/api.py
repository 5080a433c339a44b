"""The interface of a fault, and the choice of members that it strikes."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, get_args

from jepsen.systems.api import System

Scope = Literal["one", "leader", "minority", "majority", "all"]
SCOPES: tuple[Scope, ...] = get_args(Scope)

LinkKind = Literal["none", "any", "proxies", "namespaces"]


class PromiseBrokenError(Exception):
    """The system did, before the fault's eyes, what it must never do: the run is invalid."""


class NothingStruckError(Exception):
    """The fault found nothing to strike: what it damages is not there yet. It is not counted as injected."""


class Fault(ABC):
    """One way to break a system, with its cure.

    The runner calls `lacking` and `prepare` before the system starts, then `inject` and `cure` in turn, and `cure`
    once more when things are healed; `cure` of a whole system does nothing. Whatever happened, an interrupt too, it
    calls `clean_up` once every process has ended.
    A fault that consists of many blows (a crash loop, a flapping link) deals them within `inject`, which may
    be cancelled between them.

    Attributes:
        name: its specification, as the command line has it: "kill:leader", "partition:ring", ...
        scope: whom it strikes, where that can be chosen.
        links: the links that the system must be started with: "any" kind, or just that one.
        may_end_nodes: whether a node is right to end by itself for it: its disk cannot be trusted any more.
    """

    name: str
    scope: Scope = "one"
    links: LinkKind = "none"
    may_end_nodes: bool = False

    def lacking(self) -> str | None:
        """Return what this machine lacks for the fault, or None when it can be injected."""
        return None

    def prepare(self, system: System, chance: random.Random) -> None:  # noqa: B027 - most need nothing
        """Set up what the fault needs before nodes start: an environment, a small disk."""

    @abstractmethod
    async def inject(self, system: System, chance: random.Random) -> str:
        """Inject the fault; return what was done, for the history, empty when nothing could be.

        Raises:
            NothingStruckError: there was nothing to strike; the text says what was looked for.
            PromiseBrokenError: the system's answer to the fault is wrong in itself.
        """

    @abstractmethod
    async def cure(self, system: System) -> str:
        """Undo the fault; return what was done, empty when there was nothing to undo."""

    def has_struck(self, system: System) -> bool:
        """Return whether anything has met the fault since it was injected; asked before the cure."""
        del system
        return True

    def clean_up(self) -> None:  # noqa: B027 - most leave nothing
        """Remove what the fault created outside of the run's folder and processes."""


def targets(
    scope: Scope, nodes: Sequence[str], leader: str | None, chance: random.Random
) -> list[str]:
    """Choose the members that a fault strikes. Pure.

    A minority and a majority hold the leader when there is one, since that is the harder case; "leader" strikes
    any node while nobody leads.
    """
    first = leader if leader is not None and leader in nodes else chance.choice(list(nodes))
    rest = [name for name in nodes if name != first]
    chance.shuffle(rest)
    minority = (len(nodes) - 1) // 2
    match scope:
        case "leader":
            return [first]
        case "one":
            return [chance.choice(list(nodes))]
        case "minority":
            return [first, *rest][: max(1, minority)]
        case "majority":
            return [first, *rest][: len(nodes) // 2 + 1]
        case "all":
            return list(nodes)
