"""Faults that limit processes by a control group of their own. Needs writable cgroups.

Only done where nobody else manages that resource of ours: our own cgroup must be the root of its hierarchy. Names
carry the process id of the harness; what an earlier run left, because it was killed, is removed by the next.
"""

from __future__ import annotations

import os
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jepsen.nemeses.api import Fault, Scope
from jepsen.nemeses.process import revive, struck
from jepsen.processes import is_running
from jepsen.systems.api import System

CGROUPS: Final = Path("/sys/fs/cgroup")
OWN: Final = Path("/proc/self/cgroup")
_NAMES: Final = re.compile(r"jepsen-(\d+)-\w+")


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource that a cgroup may limit.

    Attributes:
        controller: who does it.
        limit_v1, limit_v2: file and text, in the first and the second version of cgroups.
        text: the limit in words.
    """

    controller: str
    limit_v1: tuple[str, str]
    limit_v2: tuple[str, str]
    text: str


CPU: Final = Resource(
    "cpu", ("cpu.cfs_quota_us", "5000"), ("cpu.max", "5000 100000"), "5 % of a processor"
)
MEMORY: Final = Resource(
    "memory",
    ("memory.limit_in_bytes", str(200 * 1024 * 1024)),
    ("memory.max", str(200 * 1024 * 1024)),
    "200 MiB of memory",
)


class CgroupError(Exception):
    """There is no cgroup that we may use; the text says why."""


def hierarchy(resource: Resource, cgroups: Path, own: Path) -> tuple[Path, tuple[str, str]]:
    """Find where a cgroup for a resource can be made, and the limit to write there.

    Raises:
        CgroupError: nowhere.
    """
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError as error:
        raise CgroupError(f"no cgroups: {error}") from error
    of_controller = {name: path for _, names, path in lines for name in names.split(",")}
    if resource.controller in of_controller:
        folder, limit = cgroups / resource.controller, resource.limit_v1
        path = of_controller[resource.controller]
    else:
        folder, limit, path = cgroups, resource.limit_v2, of_controller.get("", "/")
        enabled = folder / "cgroup.subtree_control"
        if not enabled.exists() or resource.controller not in enabled.read_text().split():
            raise CgroupError(f"no cgroup controller {resource.controller}")
    if path != "/":
        raise CgroupError(
            f"the {resource.controller} of this process is managed already: cgroup {path}"
        )
    if not os.access(folder, os.W_OK):
        raise CgroupError(f"no right to make a cgroup in {folder}")
    return folder, limit


def remove_left_over(folder: Path) -> list[str]:
    """Remove cgroups of runs whose process has ended, with nobody in them; returns their names."""
    left = [
        each
        for each in sorted(folder.iterdir())
        if (match := _NAMES.fullmatch(each.name)) and not is_running(int(match[1]))
    ]
    empty = [each for each in left if not (each / "cgroup.procs").read_text()]
    for each in empty:
        each.rmdir()
    return [each.name for each in empty]


class Limited(Fault):
    """Nodes share a cgroup that has little of one resource, until the cure; the kernel ends who wants more memory."""

    may_end_nodes = True

    def __init__(
        self,
        name: str,
        scope: Scope,
        resource: Resource,
        *,
        cgroups: Path = CGROUPS,
        own: Path = OWN,
    ) -> None:
        self.name = name
        self.scope = scope
        self._resource = resource
        self._cgroups = cgroups
        self._own = own
        self._group: Path | None = None

    def lacking(self) -> str | None:
        """Return what this machine lacks: it needs a cgroup that may be used."""
        try:
            hierarchy(self._resource, self._cgroups, self._own)
        except CgroupError as error:
            return str(error)
        return None

    async def inject(self, system: System, chance: random.Random) -> str:
        """Move the processes into the cgroup; nothing when those that it would strike are down."""
        names = struck(system, self.scope, chance)
        if not names:
            return ""
        folder, (file, limit) = hierarchy(self._resource, self._cgroups, self._own)
        remove_left_over(folder)
        self._group = folder / f"jepsen-{os.getpid()}-{self._resource.controller}"
        self._group.mkdir(exist_ok=True)
        (self._group / file).write_text(limit)
        for name in names:
            (self._group / "cgroup.procs").write_text(str(system.node(name).pid))
        return f"{', '.join(names)} have {self._resource.text}"

    async def cure(self, system: System) -> str:
        """Move the processes back, remove the cgroup, and start those that it killed."""
        group, self._group = self._group, None
        done: list[str] = []
        if group is not None:
            for pid in (group / "cgroup.procs").read_text().split():
                (group.parent / "cgroup.procs").write_text(pid)
            group.rmdir()
            done.append(f"no limit of {self._resource.controller}")
        started = revive(system.nodes)
        return "; ".join(done + ([f"started {', '.join(started)}"] if started else []))

    def clean_up(self) -> None:
        """Remove the cgroup of a run that came to no cure."""
        group, self._group = self._group, None
        if group is not None and group.exists():
            group.rmdir()
