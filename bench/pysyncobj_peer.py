"""The peer: PySyncObj 0.3.17, one of its processes, journal on disk, the same append workload.

Its journal is a memory-mapped file without msync or fsync: it survives a process kill, not a power
cut. The client runs inside the leader, which spares it the client's connection that ours pays for.

Run as a process: `python -m bench.pysyncobj_peer SELF PEER,PEER FOLDER batch|single` answers lines on stdin:
`run IN_FLIGHT BODY_BYTES SECONDS` prints one JSON line with the result when this node leads.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf, replicated


class AppendLog(SyncObj):  # type: ignore[misc]  # pysyncobj has no types
    """Counts appended commands; the state is tiny, so compaction costs nothing."""

    def __init__(self, node: str, others: list[str], folder: Path, *, batch: bool) -> None:
        conf = SyncObjConf(
            journalFile=str(folder / "journal"),
            appendEntriesUseBatch=batch,
            appendEntriesPeriod=0.005,
            autoTickPeriod=0.001,
            commandsQueueSize=200_000,
            dynamicMembershipChange=False,
        )
        super().__init__(node, others, conf)
        self.appended = 0

    @replicated  # type: ignore[untyped-decorator]  # pysyncobj has no types
    def append(self, body: bytes) -> int:
        """Append one replicated command."""
        self.appended += 1
        return self.appended


class WindowedLoad:
    """Keeps IN_FLIGHT commands outstanding; each completion starts the next."""

    def __init__(self, log: AppendLog, body: bytes, in_flight: int, seconds: float) -> None:
        self._log = log
        self._in_flight = in_flight
        self._stop_at = time.perf_counter() + seconds
        self._body = body
        self._idle = threading.Event()
        self._outstanding = 0
        self.failed = 0
        self.latencies: list[float] = []

    def run(self) -> None:
        """Run until the last command is answered."""
        self._outstanding = self._in_flight
        for _ in range(self._in_flight):
            self._start()
        self._idle.wait(60)

    def _start(self) -> None:
        """Append one command whose completion starts the next, so that the number in flight stays constant."""
        began = time.perf_counter()

        def completed(_result: object, error: int) -> None:
            now = time.perf_counter()
            if error == FAIL_REASON.SUCCESS:
                self.latencies.append(now - began)
            else:
                self.failed += 1
            if now < self._stop_at:
                self._start()
            else:
                self._outstanding -= 1
                if self._outstanding == 0:
                    self._idle.set()

        self._log.append(self._body, callback=completed)


def serve(node: str, others: list[str], folder: Path, *, batch: bool) -> None:
    """Join the group and answer commands on standard input until it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    log = AppendLog(node, others, folder, batch=batch)
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "leader":
            leader = log._getLeader()  # noqa: SLF001  (the library has no public name for it)
            answer: dict[str, object] = {"ready": log.isReady(), "leads": str(leader) == node}
        elif command == "run":
            load = WindowedLoad(
                log, b"x" * int(arguments[1]), int(arguments[0]), float(arguments[2])
            )
            began = time.perf_counter()
            load.run()
            latencies = sorted(load.latencies)
            answer = {
                "commands": len(latencies),
                "failed": load.failed,
                "seconds": time.perf_counter() - began,
                "p50_us": 1e6 * latencies[len(latencies) // 2] if latencies else 0.0,
                "p99_us": 1e6 * latencies[len(latencies) * 99 // 100] if latencies else 0.0,
                "max_us": 1e6 * latencies[-1] if latencies else 0.0,
            }
        else:
            break
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    log.destroy()


if __name__ == "__main__":
    name, peers, home, mode = sys.argv[1:]
    serve(name, peers.split(","), Path(home), batch=mode == "batch")
