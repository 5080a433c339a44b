"""How the measurements with foreign clients end, and that what was not measured is not taken for a good result."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.interop.failover import command
from tests.interop.failover.command import NotMeasuredError, clients_here, status_of


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def test_the_status_tells_lost_from_not_measured(caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> int:
        raise AssertionError("not whole after 180 s")

    assert [status_of(lambda: 0), status_of(lambda: 3), status_of(fails)] == [0, 1, 2]
    assert "not whole after 180 s" in caplog.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_measurement_in_order(number: signal.Signals) -> None:
    left: list[str] = []

    def measure() -> int:
        try:
            signal.raise_signal(number)
        finally:
            left.append("processes ended")
        return 0

    assert status_of(measure) == 2
    assert left == ["processes ended"]


def test_clients_that_a_machine_lacks_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        command, "lacking", lambda kind: None if kind == "ours" else f"no {kind} here"
    )
    assert clients_here(["go", "ours"]) == ["ours"]
    assert "no go here" in capsys.readouterr().err
    with pytest.raises(NotMeasuredError):
        clients_here(["go"])
