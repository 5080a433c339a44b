"""The phases of a run, as the history names them: {"process": "observer", "f": "phase", "value": "breaking"}."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from jepsen.history.ops import OBSERVER, Op
from jepsen.history.values import shaped

Phase = Literal["starting", "breaking", "healing", "reading", "comparing"]
PHASE: Final = "phase"


def phase_spans(ops: Sequence[Op]) -> list[tuple[str, int, int]]:
    """Return each phase with its first and last moment, in ns."""
    seen = [op for op in ops if op.process == OBSERVER and op.f == PHASE]
    ends = [op.t_ns for op in seen[1:]] + [op.t_ns for op in ops[-1:]]
    return [(shaped(op.value, str), op.t_ns, end) for op, end in zip(seen, ends, strict=False)]


def span_of(ops: Sequence[Op], phase: Phase) -> tuple[int, int]:
    """Return first and last moment of a phase; the whole history when it does not say."""
    for name, start_ns, end_ns in phase_spans(ops):
        if name == phase:
            return start_ns, end_ns
    return 0, ops[-1].t_ns if ops else 0


def phase_at_end(ops: Sequence[Op]) -> str:
    """Return the phase in which a history ends; before the first one it is "starting"."""
    return next((name for name, _, _ in reversed(phase_spans(ops))), "starting")
