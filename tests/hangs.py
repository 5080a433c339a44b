"""What becomes of a test that hangs: its process ends, another runs what is left, and the report shows where it stood.

An exception in the test would not do: what it has opened may hang as it is closed, and nothing would end that. What it
has started ends with it. Where each thread stands is written down while no other runs; faulthandler looks at threads
that do, and has crashed the process of a test that was only slow.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Generator
from pathlib import Path
from time import monotonic, sleep  # tests replace what `time` has
from typing import Any

import pytest

from jepsen.keeper import keeper_pids

LOOK_S = 0.5


def _stacks_path(run_id: str, worker_id: str) -> Path:
    return Path(tempfile.gettempdir()) / f"dledger-tests-{run_id}-{worker_id}.stacks"


def stacks() -> str:
    """Where every thread of this process stands."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"{names.get(number, number)}:\n{''.join(traceback.format_stack(frame))}"
        for number, frame in sys._current_frames().items()
    )


def _end(name: str, limit_s: float, stderr: int) -> None:
    text = f"{name} did not end within {limit_s:g} s\n{stacks()}"
    run_id = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run_id is None:
        os.write(stderr, text.encode())
    else:
        _stacks_path(run_id, os.environ["PYTEST_XDIST_WORKER"]).write_text(text)
    for children in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended meanwhile
            for pid in map(int, children.read_text().split()):
                if pid not in keeper_pids():  # it ends what the children leave
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)


class Watch:
    """Ends this process once a test has taken its time: one thread for all tests, which some feel as it starts."""

    def __init__(self, stderr: int) -> None:
        self._stderr = stderr
        self._test: tuple[float, str, float] | None = None
        self._thread: threading.Thread | None = None

    def begin(self, name: str, limit_s: float) -> None:
        self._test = (monotonic() + limit_s, name, limit_s)
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name="watch of tests", daemon=True)
            self._thread.start()

    def end(self) -> None:
        self._test = None

    def _look(self) -> None:
        while True:
            sleep(LOOK_S)
            test = self._test
            if test is not None and monotonic() > test[0]:
                try:
                    _end(*test[1:], self._stderr)
                finally:  # also where nothing can be written: it would hang, and all after it unwatched
                    os._exit(1)


_WATCH = pytest.StashKey[Watch]()


def pytest_configure(config: pytest.Config) -> None:
    """Keep standard error, which is captured later on."""
    config.stash[_WATCH] = Watch(os.dup(2))


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: Any, settings: Any) -> bool:
    """Stands for the timer of pytest-timeout, whose stacks go where xdist shows nothing."""
    item.config.stash[_WATCH].begin(item.nodeid, settings.timeout)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Watch a test to its end: pytest-timeout does so until it fails, and what it has opened is closed after that."""
    try:
        return (yield)
    finally:
        item.config.stash[_WATCH].end()


def pytest_enter_pdb(config: pytest.Config) -> None:
    """Watch no more: who looks at a test with a debugger takes the time that it takes."""
    config.stash[_WATCH].end()


def pytest_handlecrashitem(report: Any) -> None:
    """Show where the threads of a process stood as it ended."""
    of_worker = report.node.workerinput
    path = _stacks_path(of_worker["testrunuid"], of_worker["workerid"])
    if path.exists():
        report.longrepr = path.read_text()
        path.unlink()
