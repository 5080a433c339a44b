"""Three machines and what is done to them: processes killed, whole machines silenced, planned stops.

Machines are addresses of loopback, or network namespaces joined by a bridge. In the first, a dead machine refuses
connections at once, as its kernel still runs; in the second its cable is out, and packets to it vanish, as with a
machine that has lost its power. It must not know who sends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import trio

from broker.admin.ask import NobodyAnsweredError, NodeAnswer, addresses_of_group, ask_all
from jepsen.group_secret import write_secret
from jepsen.nemeses.namespaces import NamespaceLinks
from jepsen.processes import poll
from tests.integration.node.test_node import MACHINES, Cluster, running, runs
from tests.interop.failover.judgement import Round

WHOLE_S: Final = 180.0
"""Bound on how long a cluster takes to be whole again."""

LAG_ENTRIES: Final = 100
"""A member that is behind by less has caught up: sends go on meanwhile."""

REACHES_S: Final = 0.1
"""Until the ends of connections, or the lack of answers, have reached the clients."""

LETTERS: Final = "abc"


class Machines:
    """The machines, and the faults."""

    def __init__(
        self, cluster: Cluster, groups: Sequence[str], links: NamespaceLinks | None
    ) -> None:
        self.cluster = cluster
        self.groups = groups
        self._links = links
        self._turn = 0

    def next_victim(self) -> str:
        """Return the next machine in turn that leads a group."""
        leading = self._leading()
        names = list(self.cluster.machines)
        for _ in names:
            name = names[self._turn % len(names)]
            self._turn += 1
            if name in leading:
                return name
        raise AssertionError(f"nobody leads: {leading}")

    def _leading(self) -> set[str]:
        hosts = {host: name for name, host in self.cluster.machines.items()}
        return {
            hosts[answer.address.rsplit(":", 1)[0]]
            for group in self.groups
            for answer in self._answers(group)
            if answer.table.get("raftRole") == "leader"
        }

    def _answers(self, group: str) -> list[NodeAnswer]:
        name_servers = self.cluster.name_servers.split(";")
        try:
            return trio.run(ask_all, trio.run(addresses_of_group, name_servers, group))
        except NobodyAnsweredError:
            return []

    def is_whole(self) -> bool:
        """True if every process runs, every group has one leader, and every member has caught up."""
        for machine in self.cluster.machines:
            pids = self.cluster.pids(machine)
            if not pids or not all(pids.values()):
                return False
        return all(self._is_whole(self._answers(group)) for group in self.groups)

    def _is_whole(self, answers: list[NodeAnswer]) -> bool:
        leaders = [each for each in answers if each.table.get("raftRole") == "leader"]
        if len(answers) < len(self.cluster.machines) or len(leaders) != 1:
            return False
        committed = int(leaders[0].table["raftCommitIndex"])
        return all(
            int(each.table.get("raftAppliedIndex", -1)) > committed - LAG_ENTRIES
            for each in answers
        )

    def wait_whole(self) -> None:
        assert poll(self.is_whole, WHOLE_S), f"not whole after {WHOLE_S} s"

    # Faults. Each returns when it was done, by `time.monotonic`, and leaves a cluster that can become whole.

    def kill(self, machine: str) -> float:
        """Kill the processes of a machine; its supervisor starts them again."""
        before = self._kill_children(machine)
        done_s = time.monotonic() + REACHES_S
        assert poll(
            lambda: all(
                pid not in (None, before[name]) for name, pid in self.cluster.pids(machine).items()
            ),
            WHOLE_S,
        )
        return done_s

    def _kill_children(self, machine: str) -> dict[str, int | None]:
        pids = self.cluster.pids(machine)
        for pid in pids.values():
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        # A process that is ended keeps its connections until the kernel has come to it.
        assert poll(lambda: not any(pid and runs(pid) for pid in pids.values()), WHOLE_S)
        return pids

    def die(self, machine: str, dead_s: float) -> float:
        """Take a machine away at once, with all that runs on it, for a time."""
        supervisor = self.cluster.supervisors[machine]
        if self._links is not None:
            self._links.set_plugged(machine, is_plugged=False)
        supervisor.kill()
        self._kill_children(machine)
        done_s = time.monotonic() + REACHES_S
        time.sleep(dead_s)
        if self._links is not None:
            self._links.set_plugged(machine, is_plugged=True)
        supervisor.start()
        return done_s

    def stop(self, machine: str) -> float:
        """Stop a machine in order, and start it again. It is done as soon as it has begun: nothing dies of it."""
        begun_s = time.monotonic()
        stopped = self.cluster.run(machine, "stop")
        assert stopped.returncode == 0, stopped
        self.cluster.supervisors[machine].start()
        return begun_s


def run_round(
    machines: Machines, disturb: Callable[[str], float], quiet: Callable[[], None]
) -> Round:
    """Disturb the machine whose turn it is, and wait until everything is as before.

    Args:
        disturb: the fault.
        quiet: returns when clients have sent for a while without trouble.
    """
    machine = machines.next_victim()
    begun_s = time.monotonic()
    done_s = disturb(machine)
    machines.wait_whole()
    quiet()
    return Round(machine, begun_s, done_s, time.monotonic())


@contextmanager
def running_machines(folder: Path, group_count: int, *, is_silent: bool) -> Iterator[Machines]:
    """Run three machines with so many groups.

    Args:
        is_silent: in network namespaces, which need root; else on loopback.
    """
    folder.mkdir(parents=True, exist_ok=True)
    groups = [f"broker-{letter}" for letter in LETTERS[:group_count]]
    head = f"groups = {groups}\n".replace("'", '"')
    with ExitStack() as stack:
        links = stack.enter_context(NamespaceLinks(list(MACHINES))) if is_silent else None
        hosts = {name: links.address(name) for name in MACHINES} if links else MACHINES
        if links:
            head += f'secret_file = "{write_secret(folder)}"\n'
        cluster = Cluster(folder, machines=hosts, head=head)
        for name, supervisor in cluster.supervisors.items():
            supervisor.prefix = links.prefix(name) if links else []
        stack.enter_context(running(cluster))
        yield Machines(cluster, groups, links)
