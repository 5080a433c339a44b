"""What to do next: pure values that the interpreter asks, in the style of Jepsen's generators.

A generator is asked with the state of the run and answers with what to do and with the generator that
stands in its place from then on. It does no I/O, reads no clock and draws no chance but from its own
`random.Random`, so that a seed gives the same plan.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, Protocol


@dataclass(frozen=True, slots=True)
class Context:
    """The state of a run as generators see it.

    Attributes:
        t_ns: since the start of the run.
        free: processes that could take an operation now.
    """

    t_ns: int
    free: Collection[int]


@dataclass(frozen=True, slots=True)
class Invocation:
    """Do `f` with `value`; on that process, or on any free one when it is None."""

    f: str
    value: Any = None
    process: int | None = None


@dataclass(frozen=True, slots=True)
class Pending:
    """Nothing to do now; ask again at `until_ns`, or when something has changed when it is None."""

    until_ns: int | None = None


PENDING: Final = Pending()


class Generator(Protocol):
    """Asked again and again by the interpreter; None as the step means that it is exhausted."""

    def next(self, context: Context) -> tuple[Invocation | Pending | None, Generator]:
        """Return what to do now, and who is to be asked next."""
