"""CPU time of processes as the scheduler counts it."""

from __future__ import annotations

import os
from pathlib import Path


def process_cpu_seconds(pid: int) -> float:
    """Return CPU seconds of a process, of threads that have ended, too; in steps of a tick, 10 ms mostly."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def tree_cpu_seconds(pid: int) -> dict[int, float]:
    """Return CPU seconds of a process and of all that it started, by process; each with its children that have ended.

    Compare two of them process by process: what a Spark worker used is in no sum once it has ended.
    """
    used: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        children.setdefault(int(fields[1]), []).append(int(folder.name))
        used[int(folder.name)] = sum(map(int, fields[11:15]))
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    found: dict[int, float] = {}
    left = [pid]
    while left:
        one = left.pop()
        found[one] = used.get(one, 0) / ticks_per_s
        left += children.get(one, [])
    return found
