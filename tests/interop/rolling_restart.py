"""Unmodified clients send while three machines, which share three groups, are stopped and started one after the other.

    python -m tests.interop.rolling_restart [--kill]

starts everything by itself, with the defaults of all clients and of `dledger-node`, and prints for each client how many
sends were acknowledged and how many failed, and its longest time without an acknowledged one. With `--kill` every
process of the machine is killed instead, and started again by its supervisor. Two to four minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

from dledger_mq.blocking import Admin
from jepsen.processes import poll
from tests.integration.node.test_node import MACHINES, WAIT_S, Cluster, running
from tests.interop.conftest import JAVAS, ForeignClient, Listener, lacking

CLIENTS = ("cpp", "node", *JAVAS)
TOPIC = "Rolling"
GROUPS = ("broker-a", "broker-b", "broker-c")
QUIET_S = 5.0
"""Between two machines, so that it can be seen which one a client felt."""


class Timed(Listener):
    """A producer, and when each of its lines came."""

    def __init__(self, kind: str, name_servers: str) -> None:
        self.kind = kind
        self.came_s: list[float] = []
        self._stop = threading.Event()
        super().__init__(
            ForeignClient(kind, name_servers).start(
                *("produce", "--topic", TOPIC, "--count", "100000", "--interval-ms", "50"),
                *("--keep-going", "--send-timeout-ms", "3000", "--timeout", "900"),
            )
        )

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if line.endswith("\n"):
                self.came_s.append(time.monotonic())
                self.lines.append(json.loads(line))

    def summary(self) -> dict[str, Any]:
        """What the application saw."""
        sends = [
            (when, line)
            for when, line in zip(self.came_s, self.lines, strict=False)
            if "body_sha1" in line
        ]
        good = [when for when, line in sends if line.get("status") != "ERROR"]
        gaps = [later - earlier for earlier, later in pairwise(good)]
        return {
            "client": self.kind,
            "acknowledged": len(good),
            "failed": len(sends) - len(good),
            "longest_gap_s": round(max(gaps, default=0.0), 2),
        }


def restart(cluster: Cluster, machine: str) -> None:
    """Stop a machine in order, and start it again."""
    stopped = cluster.run(machine, "stop")
    assert stopped.returncode == 0, stopped
    cluster.supervisors[machine].start()
    assert poll(lambda: bool(cluster.pids(machine)) and all(cluster.pids(machine).values()), WAIT_S)


def kill(cluster: Cluster, machine: str) -> None:
    """Kill the processes of a machine; its supervisor starts them again."""
    before = cluster.pids(machine)
    for pid in before.values():
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
    assert poll(
        lambda: all(pid not in (None, before[name]) for name, pid in cluster.pids(machine).items()),
        WAIT_S,
    )


def main() -> int:
    """Run it, and return 0 if no send failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kill", action="store_true", help="kill the processes of each machine")
    disturb = kill if parser.parse_args().kill else restart
    kinds = [kind for kind in CLIENTS if lacking(kind) is None]
    with (
        tempfile.TemporaryDirectory() as folder,
        running(Path(folder)) as cluster,
        ExitStack() as stack,
    ):
        assert poll(lambda: all(cluster.is_known(group) for group in GROUPS), WAIT_S)
        with Admin(cluster.name_servers, timeout_s=WAIT_S) as admin:
            admin.create_topic(TOPIC, queues=4)
        clients = [stack.enter_context(Timed(kind, cluster.name_servers)) for kind in kinds]
        for client in clients:
            client.wait_lines(40)
        for machine in MACHINES:
            begun_s = time.monotonic()
            disturb(cluster, machine)
            sys.stdout.write(f"{machine}: {time.monotonic() - begun_s:.1f} s\n")
            time.sleep(QUIET_S)
        found = [client.summary() for client in clients]
    for row in found:
        sys.stdout.write(json.dumps(row) + "\n")
    return 1 if any(row["failed"] for row in found) else 0


if __name__ == "__main__":
    sys.exit(main())
