"""Signals that ask a program to stop: each is taken, and one that comes late does not kill it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

STOPS_AT_THE_FIRST = """
import signal, sys, trio
from dledger.runtime.stop_signals import handle_stop_signals

async def serve():
    scope = trio.CancelScope()
    taken = []
    def handle(number):
        taken.append(number.name)
        scope.cancel()
    handle_stop_signals(handle)
    with scope:
        print("ready", flush=True)
        await trio.sleep_forever()
    signal.raise_signal(signal.SIGHUP)
    signal.raise_signal(signal.SIGTERM)
    await trio.lowlevel.checkpoint()
    await trio.lowlevel.checkpoint()
    return taken

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # it is ignored if the tests run under nohup
taken = trio.run(serve)
signal.raise_signal(signal.SIGINT)
signal.raise_signal(signal.SIGTERM)
print("ended", *taken)
sys.exit(3)
"""


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_after_the_first_do_not_kill_a_program_that_is_stopping(
    first: signal.Signals,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STOPS_AT_THE_FIRST],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        program.send_signal(first)
        out, errors = program.communicate(timeout=120)
    assert out == f"ended {first.name} SIGTERM\n"
    assert errors == ""
    assert program.returncode == 3


HANGS_WHEN_IT_STOPS = """
import signal, sys, threading, trio
from dledger.runtime.stop_signals import handle_stop_signals

async def serve():
    signals, first_s, second_s = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    handle_stop_signals(lambda number: None, stop_s_max=first_s, second_stop_s_max=second_s)
    for _ in range(signals):
        signal.raise_signal(signal.SIGTERM)
    with trio.CancelScope(shield=True):
        await trio.to_thread.run_sync(threading.Event().wait)

trio.run(serve)
"""


@pytest.mark.parametrize(("signals", "first_s", "second_s"), [(1, 0.01, 900.0), (2, 900.0, 0.01)])
def test_a_program_ends_although_it_waits_for_what_never_comes(
    signals: int, first_s: float, second_s: float
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", HANGS_WHEN_IT_STOPS, str(signals), str(first_s), str(second_s)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 1
    assert "ended without waiting for the disk" in ended.stderr


IGNORES_ITS_TERMINAL = """
import signal, trio
from dledger.runtime.stop_signals import handle_stop_signals

async def serve():
    taken = trio.Event()
    handle_stop_signals(lambda number: taken.set())
    signal.raise_signal(signal.SIGHUP)
    await trio.lowlevel.checkpoint()
    await trio.lowlevel.checkpoint()
    return taken.is_set()

signal.signal(signal.SIGHUP, signal.SIG_IGN)
print(trio.run(serve))
"""


def test_a_program_under_nohup_outlives_its_terminal() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", IGNORES_ITS_TERMINAL],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "False\n", "")
