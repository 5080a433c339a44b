"""Arrow's arrays of numpy's are what pyarrow's own conversions give, and pandas is not imported for them."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `spark`)")

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.scan.arrays import flags, numbers, numpy_of, repeated, texts

READ = """
import sys
import pyarrow as pa
from pipeline.scan.columns import LABEL_COLUMNS, MESSAGE_COLUMNS, METADATA_COLUMNS, record_batches
from pipeline.scan.records import read_records
from tests.property.store.test_record_shapes_twin import record_of
schema = pa.unify_schemas([MESSAGE_COLUMNS, LABEL_COLUMNS, METADATA_COLUMNS])
(batch,) = record_batches(read_records(record_of(b"TAGS\\x01t\\x02")), schema, {"brokerName": "b"})
assert batch["tags"].to_pylist() == ["t"]
assert "pandas" not in sys.modules
"""


@pytest.mark.parametrize("count", [0, 1, 8, 9])
def test_arrays_are_those_of_pyarrow(count: int) -> None:
    for kind in (np.int32, np.int64, np.uint32, np.uint64):
        values: NDArray[np.generic] = np.arange(count).astype(kind)
        assert numbers(values).equals(pa.array(values))
        assert numpy_of(numbers(values)).tolist() == values.tolist()
        assert numpy_of(numbers(values)[1:]).tolist() == values[1:].tolist()
    odd = np.arange(2 * count)[::2]
    assert numbers(odd).equals(pa.array(odd))
    assert flags(odd % 3 == 0).equals(pa.array(odd % 3 == 0))
    given = ["é" * number for number in range(count)]
    assert texts(given).equals(pa.array(given, pa.string()))
    assert repeated("né", count).equals(pa.array(["né"] * count, pa.string()))
    assert numpy_of(pa.array([], pa.int64())).tolist() == []


def test_a_source_reads_without_pandas() -> None:
    done = subprocess.run([sys.executable, "-c", READ], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
