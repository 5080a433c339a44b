"""The floor as processes: a group of members that write, sync and forward bytes, and read none of them.

`bench/bare_member.py` is the program of each, and says what it leaves out. What a group of brokers in Python does
beside that can be made cheaper; this cannot.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.load.native import RequestLoad, generator_command, write_plan
from bench.load.results import Round
from bench.load.running import ProcessMeter, RoundPlan, run_generator
from bench.remoting import Address
from jepsen.ports import free_ports


class BareGroup:
    """A running group.

    Attributes:
        leader_pid: the process that clients ask.
    """

    def __init__(self, leader: Address, pids: Sequence[int]) -> None:
        """Know where the leader listens, and the processes, the leader's first."""
        self._leader = leader
        self._pids = pids
        self.leader_pid = pids[0]

    def run(self, load: RequestLoad, pace: RoundPlan) -> list[Round]:
        """Run a load.

        Raises:
            LoadError: it did not come to its end.
        """
        with tempfile.TemporaryDirectory(prefix="dledger-bench-plan-") as folder:
            plan = Path(folder) / "plan"
            write_plan(plan, load.templates)
            command = generator_command(plan, self._leader, load, pace)
            meter = ProcessMeter(self._pids)
            return run_generator(command, pace, meter, per_request=load.per_request)


@contextlib.contextmanager
def running(folder: Path, *, nodes: int) -> Iterator[BareGroup]:
    """Start a group, the followers first; all of its processes end with the block.

    Raises:
        RuntimeError: a member does not start; what it said is in the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    leader_port, *follower_ports = free_ports(nodes)
    with contextlib.ExitStack() as stack:
        complaints = stack.enter_context((folder / "members.log").open("w"))

        def start(name: str, *arguments: str) -> int:
            command = [sys.executable, "-m", "bench.bare_member", name, *arguments]
            member = stack.enter_context(
                subprocess.Popen(
                    command,
                    stdout=subprocess.PIPE,
                    stderr=complaints,
                    text=True,
                    start_new_session=True,  # Ctrl-C reaches us alone; we end our children ourselves
                )
            )
            stack.callback(member.kill)
            assert member.stdout is not None, f"{command} has no pipe for stdout"
            if not member.stdout.readline():
                raise RuntimeError(f"the bare {name} did not start: see {complaints.name}")
            return member.pid

        followers = [
            start("follower", str(folder / str(port)), str(port)) for port in follower_ports
        ]
        where = str(folder / "leader"), str(leader_port)
        leader = start("leader", *where, ",".join(map(str, follower_ports)))
        yield BareGroup(("127.0.0.1", leader_port), [leader, *followers])
