"""What does hot traffic feel while an empty member catches up, and how fast does that go?

    python -m bench.catch_up [--mib 1024] [--seconds 20] [--per-second 200] [--rate-mib 64] [--json]

A group of three loses one follower's store, and gets a log of so many MiB. A producer sends at a steady rate; then the
empty member starts, and takes the log. Snapshots are off: the member gets every entry. The first part of the run says
what the sends take without that. Both are of one run, on one machine: trust the ratio.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from bench.filling import fill, mib_of
from bench.hot_traffic import HotResult, make_parser, run_once, sends_beside
from bench.loadgen import FrameTemplate
from bench.real_group import made_topic
from bench.remoting import call
from jepsen.processes import Group, Process, poll

TOPIC: Final = "CatchUp"
PATIENCE_S: Final = 3600.0
START_PATIENCE_S: Final = 300.0
LOOK_S: Final = 0.2
"""Between two looks whether a member is level: what a leader does to answer, sends beside it feel."""

RATIO_GOAL: Final = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUpResult(HotResult):
    """The outcome of one run; `seconds` and `mib_per_s` are what the member took for the log."""

    seconds: float
    mib_per_s: float

    def headline(self) -> str:
        """See `HotResult`."""
        return f"log of {self.log_mib:,.0f} MiB: caught up in {self.seconds:.1f} s, {self.mib_per_s:.1f} MiB/s"


def runtime_table(node: Process) -> dict[str, str]:
    """Return what a node says of itself (28); nothing while it does not answer."""
    with contextlib.suppress(OSError, LookupError, ValueError):
        header, body = call(("127.0.0.1", node.port), FrameTemplate(28, {}))
        if header["code"] == 0:
            table: dict[str, str] = json.loads(body)["table"]
            return table
    return {}


def applied_index(node: Process) -> int:
    """Return the last entry that a node has applied; 0 while it does not answer."""
    return int(runtime_table(node).get("raftAppliedIndex", "0"))


def is_level(node: Process, leader: Process) -> bool:
    """Return whether a node has applied what the leader has, but for what is under way."""
    return applied_index(node) >= applied_index(leader) - 5 > 0


def measure(
    folder: Path, *, mib: int, seconds: float, per_s: float, rate_mib: int
) -> CatchUpResult:
    """Run a group through it.

    Raises:
        TimeoutError: the group or the member did not get there.
        RuntimeError: a send was refused.
    """
    settings = f"snapshotLogBytes=0\ncatchUpBytesPerSecond={rate_mib << 20}\n"
    with Group(folder, settings=settings) as group:
        group.start()
        group.wait_listening()
        leader = made_topic(group, TOPIC)
        empty = next(node for node in group.nodes if node is not leader)
        empty.stop()
        shutil.rmtree(folder / empty.name)
        log_mib = mib_of(fill(leader, TOPIC, mib))
        with sends_beside(group, leader, TOPIC, per_s=per_s, seconds=seconds) as (hot, without):
            empty.start()
            if not poll(lambda: applied_index(empty) > 0, START_PATIENCE_S):
                raise TimeoutError(f"{empty.name} takes nothing: {empty.log_tail(3)}")
            hot.forget()  # a process that starts takes a core for itself
            began_s = time.monotonic()
            first, last = applied_index(empty), applied_index(leader)
            if not poll(partial(is_level, empty, leader), PATIENCE_S, LOOK_S):
                raise TimeoutError(f"{empty.name} has not caught up after {PATIENCE_S:g} s")
            took_s = time.monotonic() - began_s
            with_it = hot.take()
        moved_mib = log_mib * (last - first) / last
        return CatchUpResult(
            log_mib=log_mib,
            seconds=took_s,
            mib_per_s=moved_mib / took_s,
            without=without,
            with_it=with_it,
        )


def main() -> int:
    """Measure once, and print it."""
    parser = make_parser(
        "bench.catch_up", "what hot traffic feels while a member catches up", mib=1024
    )
    parser.add_argument(
        "--rate-mib", type=int, default=64, help="catchUpBytesPerSecond in MiB; 0: no bound"
    )
    options = parser.parse_args()
    return run_once(options, partial(measure, rate_mib=options.rate_mib), ratio_goal=RATIO_GOAL)


if __name__ == "__main__":
    sys.exit(main())
