"""The counts of a batch: added up, said where not all was stored now, and kept for programs."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pipeline.sink.counts import BatchCounts, read_counts, report, summed


def test_a_batch_is_told_to_people_and_to_programs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "counts"
    assert list(read_counts(file)) == []
    with caplog.at_level(logging.WARNING):
        report(BatchCounts(5, 5), "s", 6, file)
        assert not caplog.records, "all of it was stored: nothing to say"
        both = summed([BatchCounts(10, 2, already=8), BatchCounts(5, 1, already=1, older=3)])
        report(both, "s", 7, file)
    assert [record.getMessage() for record in caplog.records] == [
        "sink s, batch 7: of 15 rows 3 were stored now, 9 were there already, and 3 are of a batch that is over"
    ]
    assert list(read_counts(file)) == [BatchCounts(5, 5), BatchCounts(15, 3, 9, 3)]


def test_a_file_that_cannot_be_written_fails_no_write(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    report(BatchCounts(5, 5), "s", 6, tmp_path / "nowhere" / "counts")
    (record,) = caplog.records
    assert "batch 6 is stored, its counts are not in" in record.getMessage()
