"""PySyncObj as processes: the group, its leader, and commands that its inner client keeps in flight.

`bench/pysyncobj_peer.py` is the program of each process, and says what its journal survives.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bench.load.results import Round
from bench.load.running import ProcessMeter, RoundPlan, per_message_us
from jepsen.ports import free_ports
from jepsen.processes import poll

START_PATIENCE_S: Final = 60.0


class PySyncObjGroup:
    """A running group."""

    def __init__(self, children: list[subprocess.Popen[str]]) -> None:
        """Wait for its leader.

        Raises:
            TimeoutError: there is none.
        """
        found: list[subprocess.Popen[str]] = []

        def has_leader() -> bool:
            answers = [_ask(child, "leader") for child in children]
            pairs = zip(children, answers, strict=True)
            found[:] = [child for child, answer in pairs if answer["leads"]]
            return bool(found) and all(answer["ready"] for answer in answers)

        if not poll(has_leader, START_PATIENCE_S, 0.1):
            raise TimeoutError(f"PySyncObj elected no leader within {START_PATIENCE_S:.0f} s")
        self._leader = found[0]
        self._pids = [self._leader.pid, *(each.pid for each in children if each is not found[0])]

    @property
    def leader_pid(self) -> int:
        """The process id of the leader."""
        return self._leader.pid

    def measure(self, in_flight: int, body_bytes: int, pace: RoundPlan) -> list[Round]:
        """Keep so many commands of this size in flight."""
        load = f"run {in_flight} {body_bytes}"
        _ask(self._leader, f"{load} {pace.warm_up_s}")
        return [self._round(f"{load} {pace.seconds}") for _ in range(pace.rounds)]

    def _round(self, line: str) -> Round:
        """Run one round; its client is started anew, inside the leader."""
        meter = ProcessMeter(self._pids)
        answer = _ask(self._leader, line)
        leader_us, follower_us = per_message_us(meter.lap(), answer["commands"])
        return Round(
            seconds=answer["seconds"],
            requests=answer["commands"] + answer["failed"],
            messages=answer["commands"],
            refused=answer["failed"],
            p50_us=answer["p50_us"],
            p99_us=answer["p99_us"],
            max_us=answer["max_us"],
            leader_us=leader_us,
            follower_us=follower_us,
        )


def _ask(child: subprocess.Popen[str], line: str) -> dict[str, Any]:
    """Send one command to a process, and return its JSON answer."""
    assert child.stdin is not None, f"{child.args!r} has no pipe for stdin"
    assert child.stdout is not None, f"{child.args!r} has no pipe for stdout"
    child.stdin.write(line + "\n")
    child.stdin.flush()
    return dict(json.loads(child.stdout.readline()))


@contextlib.contextmanager
def running(folder: Path, *, nodes: int, is_batched: bool) -> Iterator[PySyncObjGroup]:
    """Start a group; all of its processes end with the block.

    Raises:
        TimeoutError: nobody leads.
    """
    names = [f"127.0.0.1:{port}" for port in free_ports(nodes)]
    folder.mkdir(parents=True, exist_ok=True)
    children: list[subprocess.Popen[str]] = []
    with contextlib.ExitStack() as stack:
        complaints = stack.enter_context((folder / "pysyncobj.log").open("w"))
        for number, name in enumerate(names):
            others = ",".join(other for other in names if other != name)
            mode = "batch" if is_batched else "single"
            command = [sys.executable, "-m", "bench.pysyncobj_peer", name, others]
            command += [str(folder / f"n{number}"), mode]
            child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
                start_new_session=True,  # Ctrl-C reaches us alone; we end our children ourselves
            )
            children.append(child)
            stack.callback(child.wait)
            stack.callback(child.kill)
        yield PySyncObjGroup(children)
