"""The pace of a disk: when it is slow, and what is said about it."""

from __future__ import annotations

from dledger.runtime.sync_pace import FAST_MS, SLOW_MS, SyncPace


def test_a_disk_is_slow_only_after_a_while_and_fast_only_after_a_while() -> None:
    pace = SyncPace(300)
    pace.add(SLOW_MS * 5)
    assert not pace.is_slow
    for _ in range(20):
        pace.add(SLOW_MS * 5)
    assert pace.is_slow
    for _ in range(3):
        pace.add(SLOW_MS * 0.75)
    assert pace.is_slow
    for _ in range(60):
        pace.add(FAST_MS / 2)
    assert not pace.is_slow


def test_trouble_with_a_disk_is_told_while_there_is_some() -> None:
    pace = SyncPace(300)
    for sync_ms in (400.0, 900.0, 5.0, 310.0, 5000.0):
        pace.add(sync_ms)
    assert pace.trouble(0) == ""
    pace.add(420.0)
    assert pace.trouble(0) == "slow: the last 3 syncs took 310 to 5000 ms"
    pace.add(1.0)
    assert pace.trouble(0) == ""
    pace.begin(1000)
    assert pace.trouble(3099) == ""
    assert pace.trouble(3100) == "slow: a sync has been running for 2100 ms"
    pace.failed()
    assert pace.trouble(9000) == ""
