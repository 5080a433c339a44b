"""Percentiles by nearest rank, so that each is a value that occurred."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value that `percent` of all values do not exceed (nearest rank).

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)]
