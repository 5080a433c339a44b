"""The measurements of what hot traffic feels run, on logs that are small."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import catch_up, cold_readers, log_size
from jepsen.processes import SMALL_SEGMENTS

pytestmark = [pytest.mark.slow, pytest.mark.integration]


PACES_S = (1.5, 10.0, 30.0)
"""Of a part; the longer ones are for a machine on which nothing was acknowledged in the shorter."""

AGAIN = ("run it again", "measure for longer", "refused", "has ended")
"""Said of a run in which too little was sent, or another node began to lead: it refuses what the old one took."""


def in_the_end(measure: Callable[[float], Any], is_enough: Callable[[Any], object]) -> Any:
    """Measure in the shortest parts that show something; again where another node began to lead."""
    for seconds in PACES_S:
        try:
            found = measure(seconds)
        except (RuntimeError, ValueError) as error:
            if not any(text in str(error) for text in AGAIN) or seconds == PACES_S[-1]:
                raise
        else:
            if is_enough(found):
                break
    return found


def test_an_empty_member_catches_up_and_what_sends_took_is_known(tmp_path: Path) -> None:
    result = in_the_end(
        lambda seconds: catch_up.measure(
            tmp_path / f"{seconds}", mib=24, seconds=seconds, per_s=50, rate_mib=64
        ),
        lambda result: result.without.count,
    )
    assert result.log_mib >= 24
    assert result.mib_per_s > 0
    assert result.without.count > 0
    assert 0 < result.without.p50_us <= result.without.p99_us
    assert result.p99_ratio > 0


def test_readers_of_old_messages_get_them_and_what_sends_took_is_known(tmp_path: Path) -> None:
    result = in_the_end(
        lambda seconds: cold_readers.measure(
            tmp_path / f"{seconds}", mib=24, readers=3, seconds=seconds, per_s=50
        ),
        lambda result: result.with_it.count,
    )
    assert result.read_mib_per_s > 0
    assert result.with_it.count > 0
    assert 0 < result.with_it.p50_us <= result.with_it.p99_us


class Told:
    """Takes what a measurement tells of itself."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def stage(self, text: str, seconds: float) -> None:
        """Nothing is shown."""

    def line(self, text: str) -> None:
        self.lines.append(text)


def test_a_log_that_grows_is_opened_read_and_caught_up_with(tmp_path: Path) -> None:
    told = Told()

    def measure(seconds: float) -> Any:
        told.lines.clear()
        return log_size.measure(
            tmp_path / f"{seconds}",
            [24, 48],
            log_size.SizeLoad(readers=3, seconds=seconds, rates_per_s=(50, 100)),
            told,
            settings=SMALL_SEGMENTS + "snapshotLogBytes=16777216\n",
        )

    rows, caught_up = in_the_end(measure, lambda found: all(row.snapshot for row in found[0][-1:]))
    assert [row.log_mib >= wanted for row, wanted in zip(rows, (24, 48), strict=True)] == [True] * 2
    assert len(told.lines) == len(rows)
    for row in rows:
        assert min(row.opened_s, row.opened_own_mib) > 0
        assert [felt.per_s for felt in row.beside] == [50, 100]
        for felt in row.beside:
            assert felt.read_mib_per_s > 0
            assert 0 < felt.without.p50_us <= felt.without.p99_us
            assert felt.beside_readers.count > 0
    assert rows[-1].snapshot["bytes"] > 0
    assert caught_up.seconds > 0
    assert all(felt.count for felt in caught_up.without)
    assert len(caught_up.without) == 2
    assert all(column.header for column in log_size.reading_table(rows).columns)
    assert f"{caught_up.seconds:.0f} s" in log_size.catch_up_text(caught_up)


def test_a_log_that_does_not_fit_the_disk_is_not_begun() -> None:
    with (
        pytest.raises(RuntimeError, match="room for"),
        log_size.folder_with_room(1e9),
    ):
        raise AssertionError("there is no such disk")
