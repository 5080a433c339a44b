"""CPU time of processes as the scheduler counts it."""

from __future__ import annotations

from pathlib import Path


def cpu_seconds(pid: int) -> float:
    """On-CPU seconds of all threads of a process, kernel work included (sum of /proc/PID/task/*/schedstat)."""
    total_ns = 0
    for task in sorted(Path(f"/proc/{pid}/task").iterdir()):
        total_ns += int((task / "schedstat").read_text().split()[0])
    return total_ns / 1e9
