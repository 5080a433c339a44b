"""How long does a producer wait when the leader dies? The same kill, many times, under load.

    python -m jepsen.failover [--rounds 20] [--all] [--seed N] [--keep DIR] [--json]

One producer object sends to every queue as fast as answers come; the leader is killed with SIGKILL,
started again a second later, and the next round waits until all nodes are together. A round's time
runs from the kill to the first acknowledgement of a send that began after it, seen by the same client
object. Nothing acknowledged may be lost, and no committed offset may go back. With --all transactions,
messages with due times and an ordered stream run beside it and are judged too (`promises.py`); the
producer then sends at an even pace, which leaves them room.

Exit status as `python -m jepsen.demo`: 0 valid, 1 broken, 2 unknown.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console

from jepsen import workload
from jepsen.checker import Verdict
from jepsen.demo import (
    INTERRUPTED,
    QUIET_END_S,
    STARTUP_ERRORS,
    UNKNOWN,
    Settings,
    conclude,
    execute,
)
from jepsen.processes import sigterm_as_interrupt
from jepsen.progress import failover_gaps_ms, percentile
from jepsen.promises import Promises

SECONDS_PER_ROUND: Final = 3.0
PACE_S: Final = 0.02


def times(
    verdict: Verdict, gaps_ms: Sequence[float | None], promises: Promises
) -> dict[str, object]:
    """Return what was measured."""
    known = [gap for gap in gaps_ms if gap is not None]
    return {
        "rounds": len(gaps_ms),
        "overcome": len(known),
        **{f"p{p}_ms": round(percentile(known, p)) if known else None for p in (50, 99)},
        "max_ms": round(max(known)) if known else None,
        "acknowledged": verdict.total("acknowledged"),
        "lost": verdict.total("lost"),
        "duplicated": verdict.total("duplicated"),
        "unknown": verdict.total("unknown"),
        "rewinds": sum(anomaly.check == "rewind" for anomaly in verdict.anomalies),
        **promises.counts,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m jepsen.failover", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--all", action="store_true", help="with transactions, timers, order")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--keep", type=Path, metavar="DIR")
    parser.add_argument("--json", action="store_true", help="one line of results on stdout")
    read = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    if read.rounds < 1:
        parser.error("--rounds must be at least 1")
    settings = Settings(
        kills=read.rounds,
        seconds=read.rounds * SECONDS_PER_ROUND + QUIET_END_S,
        with_cpp=False,
        seed=random.randrange(1_000_000) if read.seed is None else read.seed,
        keep=read.keep,
        as_json=read.json,
        write_pause_s=PACE_S if read.all else 0.0,
        with_streams=read.all,
    )
    sigterm_as_interrupt()
    console = Console(stderr=True) if settings.as_json else Console()
    try:
        run = execute(settings, None, console)
    except STARTUP_ERRORS as error:
        console.print(f"[bold yellow]UNKNOWN[/bold yellow]: the group did not start: {error}")
        return UNKNOWN
    except KeyboardInterrupt:
        console.print("interrupted; every process was ended")
        return INTERRUPTED
    found = times(run.verdict, failover_gaps_ms(run.events, workload.PRODUCER), run.promises)
    status = conclude(settings, run, console)
    line = msgspec.json.encode(found).decode()
    if settings.as_json:
        sys.stdout.write(line + "\n")
    else:
        console.print(line, highlight=False, soft_wrap=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
