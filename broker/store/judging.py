"""Looking at records whose places units of a consume queue say, by what a filter asks of their properties. Pure.

Records are looked at where they lie in memory, many at a time, and only those that are wanted are cut out. How many one
read looks at and gives is decided by whoever asks (`reading`).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, takewhile
from typing import NamedTuple

from broker.store.record_reader import PulledLog
from broker.store.unit_stores import UNIT_BYTES
from dledger.raft.ids import Position
from dledger_mq.filters import PropertyFilter
from dledger_mq.message import compiled
from dledger_mq.message.record import record_properties


class Judged(NamedTuple):
    """Some records that were looked at.

    Attributes:
        records: those that match, each with its number.
        sizes: of all that were looked at, in bytes.
    """

    records: Sequence[tuple[int, memoryview]]
    sizes: Sequence[int]


def judge(
    log: PulledLog,
    units: memoryview,
    property_filter: PropertyFilter,
    *,
    bytes_max: int,
    log_end: Position,
) -> Judged:
    """Look at the records of some units, up to the first that is not in memory, or with which there are `bytes_max`.

    What compiled code leaves, all of them where there is none, is judged by the filter's values.
    """
    starts, sizes = _places(units)
    if sum(sizes) > bytes_max:
        count = 1 + sum(total < bytes_max for total in accumulate(sizes[:-1]))
        units, starts, sizes = units[: count * UNIT_BYTES], starts[:count], sizes[:count]
    positions, data = log.stretches(starts, sizes, log_end)

    def record(number: int) -> memoryview | None:
        """Return one of them, if it is in memory."""
        place = bisect_right(positions, starts[number]) - 1
        if place < 0:
            return None
        first = starts[number] - positions[place]
        found = memoryview(data[place])[first : first + sizes[number]]
        return found if len(found) == sizes[number] else None

    marks = property_filter.marks
    verdicts = compiled.judged_records(units, positions, data, marks, property_filter.layout)
    wanted: list[int] = []
    if verdicts is None:
        left = [*takewhile(lambda number: record(number) is not None, range(len(starts)))]
        count = len(left)
    else:
        count, wanted, left = verdicts
    if left:
        rows: Sequence[Sequence[bytes | None]] | None
        rows = compiled.asked_values(_units_of(units, left), positions, data, marks)
        if rows is None:
            each_left = [each for each in map(record, left) if each is not None]
            rows = [property_filter.values(record_properties(each)) for each in each_left]
        wanted = sorted((*wanted, *(left[place] for place in property_filter.matching(rows))))
    given = ((number, record(number)) for number in wanted)
    return Judged([(number, each) for number, each in given if each is not None], sizes[:count])


def _units_of(units: memoryview, numbers: Sequence[int]) -> memoryview:
    """Return some of the units."""
    if len(numbers) * UNIT_BYTES == len(units):
        return units
    places = (number * UNIT_BYTES for number in numbers)
    return memoryview(b"".join(units[at : at + UNIT_BYTES] for at in places))


def _places(units: memoryview) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the physical offsets and the sizes that units say."""
    # In one step: a tuple for each unit would take longer than to look at its record.
    count = len(units) // UNIT_BYTES
    return struct.unpack(">" + "q12x" * count, units), struct.unpack(">" + "8xi8x" * count, units)
