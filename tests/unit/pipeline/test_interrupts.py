"""Ctrl-C while a session is made, and after that."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator

import pytest

from pipeline.jobs.interrupts import HELD, interrupts_held, is_no_interrupt


class Context:
    """As PySpark's: its handler talks to the JVM in the middle of another call, and raises."""

    def __init__(self) -> None:
        signal.signal(signal.SIGINT, self.handle)

    def handle(self, *_: object) -> None:
        self.cancelAllJobs()
        raise KeyboardInterrupt

    def cancelAllJobs(self) -> None:  # noqa: N802 - PySpark's name
        pytest.fail("a call in the middle of another one")


@pytest.fixture(autouse=True)
def _cleared() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    assert signal.getsignal(signal.SIGINT) is before
    logging.getLogger().removeFilter(is_no_interrupt)


def start(signals_before: int, signals_after: int) -> list[str]:
    steps: list[str] = []
    try:
        with interrupts_held(Context):
            for _ in range(signals_before):
                signal.raise_signal(signal.SIGINT)
            steps.append("JVM")
            Context()
            for _ in range(signals_after):
                signal.raise_signal(signal.SIGINT)
            steps.append("made")
    except KeyboardInterrupt:
        steps.append("interrupted")
    return steps


def test_ctrl_c_waits_until_the_jvm_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert start(0, 0) == ["JVM", "made"]
    assert capsys.readouterr().err == ""
    assert start(1, 0) == ["JVM", "made", "interrupted"]
    assert capsys.readouterr().err == HELD
    assert start(2, 0) == ["interrupted"], "who insists does not wait"
    assert start(0, 1) == ["JVM", "interrupted"]


def test_who_was_told_to_ignore_ctrl_c_does(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert start(2, 0) == ["JVM", "made"]
        signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == ""


def test_a_call_that_is_interrupted_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with interrupts_held(Context):
        pass
    for error in (KeyboardInterrupt(), OSError("a")):
        logging.error("while sending", exc_info=error)
    (record,) = caplog.records
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], OSError)
