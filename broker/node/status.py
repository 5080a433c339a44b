"""Who runs on a machine: node.json, as the supervisor keeps it, and what is true of it now.

Nothing here starts or stops anything, or takes a lock: to look must not disturb who starts at this moment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from broker.node.plan import NodePlan
from broker.processes.child import ChildStatus, status_now
from broker.processes.identity import is_same_process, process_of

STATUS_NAME: Final = "node.json"


class NodeStatus(msgspec.Struct, frozen=True):
    """The content of node.json.

    Attributes:
        pid: the supervisor's process id; 0 while somebody else stops what a killed one has left.
        machine: its name in node.toml.
        children: the name server first.
        start: tells the supervisor from another process with its id (`RunningProcess.start`).
        is_stopping: whether the supervisor was asked to stop.
    """

    pid: int
    machine: str
    children: tuple[ChildStatus, ...]
    start: str = ""
    is_stopping: bool = False


class StatusFile:
    """Keeps node.json up to date; a disk that cannot be written keeps nothing from running."""

    def __init__(self, folder: Path, machine: str, report: Callable[[str], None]) -> None:
        """Write nothing yet; `report` takes a line when the file can be written no more, and when it can again."""
        self._path = folder / STATUS_NAME
        self._machine = machine
        self._report = report
        own = process_of(os.getpid())
        assert own is not None, "this process does not run"
        self._own = own
        self.is_behind = False

    def write(
        self,
        children: Sequence[ChildStatus],
        *,
        is_supervisor: bool = True,
        is_stopping: bool = False,
    ) -> None:
        """Write the state of the children; when that fails, `is_behind` is true until it is done again.

        Args:
            children: the name server first.
            is_supervisor: whether this process is: who is named in the file is asked to stop the machine.
            is_stopping: whether the supervisor was asked to stop.
        """
        status = NodeStatus(
            pid=self._own.pid if is_supervisor else 0,
            machine=self._machine,
            children=tuple(children),
            start=self._own.start if is_supervisor else "",
            is_stopping=is_stopping,
        )
        aside = self._path.with_suffix(".new")
        try:
            aside.write_bytes(msgspec.json.format(msgspec.json.encode(status)))
            aside.replace(self._path)
        except OSError as error:
            self._note(error)
        else:
            self._note(None)

    def remove(self) -> None:
        """Remove the file: nothing runs any more."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            self._report(f"{self._path} cannot be removed: {error.strerror}")

    def _note(self, error: OSError | None) -> None:
        if error is not None and not self.is_behind:
            self._report(
                f"{self._path} cannot be written: {error.strerror}; everything goes on, and it is tried again"
            )
        if error is None and self.is_behind:
            self._report(f"{self._path} is written again")
        self.is_behind = error is not None


class MachineStatus(msgspec.Struct, frozen=True):
    """The processes of a machine, seen from outside.

    Attributes:
        supervisor: process id; None when none runs.
        addresses: host:port for clients, by child; none for what is left of a group that is gone from node.toml.
        children: the state that was kept last, with the ids of the processes that run now; of groups that are gone from
            node.toml, those that run. Empty when none runs.
        is_stopping: whether the supervisor was asked to stop.
    """

    machine: str
    supervisor: int | None
    addresses: dict[str, str]
    children: tuple[ChildStatus, ...]
    is_stopping: bool = False

    @property
    def is_whole(self) -> bool:
        """True while a supervisor and all of its children run."""
        return bool(self.supervisor and self.children) and all(child.pid for child in self.children)


def look(plan: NodePlan) -> MachineStatus:
    """See which of the planned processes run, what is left of others, and whether the supervisor runs."""
    status = read_status(plan.folder)
    known = {} if status is None else {child.name: child for child in status.children}
    children = [status_now(child.program, known.pop(child.name, None)) for child in plan.children]
    left = (status_now(plan.program_left(name), child) for name, child in known.items())
    children += [child for child in left if child.pid is not None]
    has_supervisor = status is not None and is_same_process(status.pid, status.start)
    has_life = has_supervisor or any(child.pid for child in children)
    return MachineStatus(
        machine=plan.machine,
        supervisor=status.pid if status is not None and has_supervisor else None,
        addresses={child.name: str(child.address) for child in plan.children},
        children=tuple(children) if has_life else (),
        is_stopping=status is not None and has_supervisor and status.is_stopping,
    )


def read_status(folder: Path) -> NodeStatus | None:
    """Read node.json of a machine's folder; None without a readable one."""
    try:
        return msgspec.json.decode((folder / STATUS_NAME).read_bytes(), type=NodeStatus)
    except (OSError, msgspec.DecodeError):
        return None
