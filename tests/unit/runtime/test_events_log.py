"""Log lines: one event with its fields, and a bound on what outsiders cause."""

from __future__ import annotations

import logging

import pytest

from dledger.runtime import events_log
from dledger.runtime.events_log import LimitedLog, format_event


def test_a_log_line_is_one_event_with_its_fields() -> None:
    line = format_event("role-changed", {"node": "n0", "term": 3, "reason": "a b\nc"})
    assert line == "role-changed node=n0 term=3 reason='a b\\nc'"


def test_outsiders_cannot_fill_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed_s = 0.0
    monkeypatch.setattr(events_log, "now_s", lambda: passed_s)
    log = LimitedLog(per_s=3)
    with caplog.at_level(logging.WARNING, logger="dledger"):
        for _ in range(1000):
            passed_s += 0.001
            log.log_event(logging.WARNING, "connection-refused")
    assert 3 <= len(caplog.messages) <= 6
