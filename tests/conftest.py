"""Options of the whole suite."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from tests.stages import EACH, stage

pytest_plugins = ["tests.hangs"]

SPARK, SECOND_HALF = "tests/integration/pipeline/", "test_live_s"
"""The folder whose tests share a Spark session. A worker starts it once and runs half of the files, by their names: one
after the other they would take longer than all else together, and each further session is a further Java."""

SOURCES = "tests/architecture/"
"""The folder whose tests read all our sources, which are parsed once: one worker runs it."""

# Tests of properties draw the same examples in every run, and nothing fails for being slow: neither an example nor the
# drawing of the first ones, of which the first of a process also reads the sources of all modules that are loaded.
settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
# Where Python is slow, as under the sanitizers of a compiler, a quarter of them (tests/unit/message/test_compiled.py).
settings.register_profile("fewer", settings.get_profile("repeatable"), max_examples=25)
settings.load_profile("repeatable")

# What Python has compiled is kept, also where the environment forbids it (images of containers do): a test run starts
# thousands of processes of ours, and a broker that compiles all its modules anew takes more than half as long again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

SEEDS = "seeds"
"""Property of a test: a line that tells which seeds it drew."""

TOLD = "told"
"""Property of a test: a line that is to be read, also when it passed."""


def pytest_configure() -> None:
    """Let Ctrl-C interrupt, as in a terminal, whoever started the suite.

    What runs in the background ignores it, and so does all that it starts: tests of interrupts then depended on whether
    an earlier one in their process had set a handler.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    """Show the seed that varied tests draw from, so that a failure can be replayed."""
    return f"SEED={os.environ.get('SEED', 'unset: each test names its own')}"


class ByFile(LoadFileScheduling):
    """Where several processes run the tests: those of one file share their groups of brokers."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(SOURCES):
            return SOURCES
        if nodeid.startswith(SPARK):
            return f"{SPARK}{nodeid.removeprefix(SPARK) < SECOND_HALF}"
        scope: str = super()._split_scope(nodeid)
        return scope

    def remove_node(self, node: Any) -> str | None:
        """Hand on what is left of a process that ended, but the test that ended it: it would end the next one, too."""
        work: dict[str, dict[str, bool]] = self.assigned_work[node]
        for tests in work.values():
            for fatal, is_done in tests.items():
                if not is_done:
                    tests[fatal] = True
                    super().remove_node(node)
                    return fatal
        super().remove_node(node)
        return None


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the fresh seeds and what else is to be read, also of tests that passed."""
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, value in getattr(report, "user_properties", ()):
                if name in (SEEDS, TOLD):
                    terminalreporter.write_line(str(value))


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """What tests marked `anyio` run on: one after the other."""
    return str(request.param)


@pytest.fixture(params=EACH, scope="module")
def each_stage(request: pytest.FixtureRequest) -> Iterator[None]:
    """The tests of a module go one of the ways after the other; of a module, so that it goes with `@given`."""
    with stage(is_compiled=request.param):
        yield


@pytest.fixture
def only_new_garbage() -> Iterator[None]:
    """Have `gc.collect` look at what the test makes, and at nothing older.

    All modules and tests of the suite take it more than two seconds, and what earlier tests have left goes in between.
    """
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest parts first, and leave tests marked `anyio` to AnyIO: trio's plugin takes every async test."""
    items.sort(key=lambda item: not item.nodeid.startswith((SPARK, SOURCES)))
    for item in items:
        if item.get_closest_marker("anyio") is not None:
            item.own_markers[:] = [mark for mark in item.own_markers if mark.name != "trio"]
