"""The measurements of what hot traffic feels run, on logs that are small."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import catch_up, cold_readers

pytestmark = [pytest.mark.slow, pytest.mark.integration]


def test_an_empty_member_catches_up_and_what_sends_took_is_known(tmp_path: Path) -> None:
    result = catch_up.measure(tmp_path / "g", mib=24, seconds=1, per_s=50, rate_mib=64)
    assert result.log_mib >= 24
    assert result.mib_per_s > 0
    assert result.without.count > 0
    assert 0 < result.without.p50_us <= result.without.p99_us
    assert result.p99_ratio > 0


def test_readers_of_old_messages_get_them_and_what_sends_took_is_known(tmp_path: Path) -> None:
    result = cold_readers.measure(tmp_path / "g", mib=24, readers=3, seconds=1.5, per_s=50)
    assert result.read_mib_per_s > 0
    assert result.with_it.count > 0
    assert 0 < result.with_it.p50_us <= result.with_it.p99_us
