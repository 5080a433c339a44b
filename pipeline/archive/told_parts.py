"""The parts of a stretch as tasks of Spark's, each told about when it is done, while others still run.

A result comes back when all tasks are done. An accumulator comes back with each of them, into a thread of the driver,
and this one hands on what it gets; it needs nothing of Spark but the session, so that tests can do without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pipeline.archive.parts import Part, StagedPart, stage_part

if TYPE_CHECKING:
    from pipeline.spark.names import SparkSession

Told = Callable[[int], None]
"""Called with the bytes of the log that a part has, when it is done; from another thread than the caller's."""


def stage_parts(spark: SparkSession, parts: Sequence[Part], told: Told) -> list[StagedPart]:
    """Write and verify parts, side by side.

    Args:
        spark: the session.
        parts: the parts; a task for each.
        told: of each that is done; a part that is done again is told again.

    Raises:
        Exception: Spark's own, when a part failed.
    """
    done = spark.sparkContext.accumulator(0, _HandedOn(told))

    def carry_out(part: Part) -> StagedPart:
        staged = stage_part(part)
        done.add(sum(each.size_bytes for each in part.ranges))
        return staged

    return list(spark.sparkContext.parallelize(parts, len(parts)).map(carry_out).collect())


class _HandedOn:
    """Adds numbers up as Spark's `AccumulatorParam` does, and hands each on; in tasks nothing is handed on."""

    def __init__(self, told: Told | None = None) -> None:
        self._told = told

    def __reduce__(self) -> tuple[type[_HandedOn], tuple[()]]:
        return _HandedOn, ()

    def zero(self, _value: int) -> int:
        """Return what a task begins with."""
        return 0

    def addInPlace(self, value: int, more: int) -> int:
        """Return the sum."""
        if self._told is not None:
            self._told(more)
        return value + more
