from __future__ import annotations

import pytest

from jepsen.checkers.percentiles import percentile


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(n) for n in range(1, 21)]
    assert (percentile(values, 50), percentile(values, 99), percentile(values, 5)) == (10, 20, 1)
    assert percentile([7.0], 50) == 7
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)
