"""A history that is noted is well formed, and one that is read is refused where it is not."""

from __future__ import annotations

import pytest

from jepsen.history.ops import FIRST_LISTENER, RECEIVE, Op, OpLog, pairs


def test_an_operation_is_noted_with_its_completion() -> None:
    log = OpLog(clock_ns=lambda: 7)
    log.add(0, "invoke", "send", {"key": "a"})
    log.add(0, "ok", "send", {"key": "a"})
    (pair,) = pairs(log.ops)
    assert (pair.invoke.index, pair.type) == (0, "ok")


def test_a_worker_does_one_thing_at_a_time() -> None:
    log = OpLog()
    log.add(3, "invoke", "send")
    with pytest.raises(AssertionError, match="op 1: process 3 is still at send"):
        log.add(3, "invoke", "poll")
    assert len(log.ops) == 1


def test_a_worker_ends_what_it_has_begun() -> None:
    log = OpLog()
    with pytest.raises(AssertionError, match="process 3 ends send, it was at nothing"):
        log.add(3, "ok", "send")
    log.add(3, "invoke", "poll")
    with pytest.raises(AssertionError, match="process 3 ends send, it was at poll"):
        log.add(3, "ok", "send")


def test_a_listener_may_be_handed_several_messages_at_once() -> None:
    log = OpLog()
    log.add(FIRST_LISTENER, "invoke", "process")
    log.add(FIRST_LISTENER, "invoke", "process")
    log.add(FIRST_LISTENER, "ok", RECEIVE, {})
    assert len(log.ops) == 3


def test_time_does_not_go_back() -> None:
    times = iter([0, 9, 5])
    log = OpLog(clock_ns=lambda: next(times))
    log.add(0, "invoke", "send")
    with pytest.raises(AssertionError, match="op 1 is seen at 5 ns, after 9 ns"):
        log.add(0, "ok", "send")


def test_a_history_whose_completion_ends_another_thing_is_refused() -> None:
    ops = [Op(0, 0, 1, "invoke", "send"), Op(1, 1, 1, "ok", "poll")]
    with pytest.raises(ValueError, match="op 1: process 1 ends poll, not send"):
        pairs(ops)
