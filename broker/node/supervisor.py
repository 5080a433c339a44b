"""All processes of one machine, from the first start to an orderly stop.

    store/MACHINE/
        node.json       who runs: the supervisor and its children (written anew at each change)
        conf/           the settings files of the children, written at each start
        logs/           what each child prints
        broker-a/ ...   the stores, each the member's own

The name server stops last, so that brokers leave the routes in order. Brokers stop side by side, since each
hands its leadership to another machine.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
import trio

from broker.node.child import Child, ChildStatus, is_alive
from broker.node.plan import NodePlan
from dledger.errors import StoreLockedError
from dledger.runtime.stop_signals import handle_stop_signals
from dledger.storage.lock import StoreLock

STATUS_NAME: Final = "node.json"
STOP_S_MAX: Final = 60.0
"""The longest that an orderly stop of the children may take; then they are killed."""


class NodeStatus(msgspec.Struct, frozen=True):
    """The content of node.json.

    Attributes:
        pid: the supervisor's process id.
        machine: its name in node.toml.
        children: the name server first.
    """

    pid: int
    machine: str
    children: tuple[ChildStatus, ...]


class Supervisor:
    """Runs the plan of one machine."""

    def __init__(self, plan: NodePlan, report: Callable[[str], None]) -> None:
        """Start nothing yet; `report` takes lines for the operator."""
        self._plan = plan
        self._report = report
        self._children: list[Child] = []
        self._stop_wanted = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run everything until a signal (SIGTERM, SIGINT), then stop it in order.

        Raises:
            StoreLockedError: this machine's processes have a supervisor already.
            OSError: the folder cannot be written.
        """
        with StoreLock(self._plan.folder):
            write_files(self._plan)
            self._adopt()
            handle_stop_signals(self._signalled, stop_s_max=STOP_S_MAX + 5)
            async with trio.open_nursery() as nursery:
                for child in self._children:
                    nursery.start_soon(child.keep_running, self._report)
                task_status.started()
                await self._stop_wanted.wait()
                nursery.cancel_scope.cancel()
            await self._stop_all()

    async def stop_orphans(self) -> None:
        """Stop in order what a supervisor has left that was killed.

        Raises:
            StoreLockedError: this machine's processes have a supervisor.
        """
        with StoreLock(self._plan.folder):
            self._adopt()
            await self._stop_all()

    def _adopt(self) -> None:
        """Take over what runs already."""
        status = read_status(self._plan.folder)
        known = {} if status is None else {child.name: child for child in status.children}
        self._children = [Child(plan, self._save) for plan in self._plan.children]
        for child in self._children:
            name = child.plan.name
            if name in known and child.adopt(known[name]):
                self._report(f"{name} runs already, process {child.status.pid}")

    def _signalled(self, number: signal.Signals) -> None:
        if self._stop_wanted.is_set():
            # The second one is for those that still wait for something.
            for child in self._children:
                child.send_signal(number)
        self._stop_wanted.set()

    async def _stop_all(self) -> None:
        name_server, *brokers = self._children
        await self._stop(brokers)
        await self._stop([name_server])
        (self._plan.folder / STATUS_NAME).unlink(missing_ok=True)

    async def _stop(self, children: Sequence[Child]) -> None:
        """Stop all at the same time, so that they share one STOP_S_MAX; what is left after that is killed."""
        for child in children:
            child.send_signal(signal.SIGTERM)
        with trio.move_on_after(STOP_S_MAX):
            for child in children:
                await child.wait_ended()
        for child in children:
            if child.is_running:
                self._report(
                    f"{child.plan.name} did not stop within {STOP_S_MAX:g} s and is killed"
                )
                child.send_signal(signal.SIGKILL)
                await child.wait_ended()

    def _save(self) -> None:
        status = NodeStatus(
            pid=os.getpid(),
            machine=self._plan.machine,
            children=tuple(child.status for child in self._children),
        )
        path = self._plan.folder / STATUS_NAME
        aside = path.with_suffix(".new")
        aside.write_bytes(msgspec.json.format(msgspec.json.encode(status)))
        aside.replace(path)


def write_files(plan: NodePlan) -> None:
    """Write the settings files of all children; they may hold a secret, so they are for the owner alone."""
    for name in ("conf", "logs"):
        (plan.folder / name).mkdir(parents=True, exist_ok=True)
    for child in plan.children:
        if child.file is not None:
            path, text = child.file
            aside = path.with_suffix(".new")
            aside.unlink(missing_ok=True)
            aside.touch(mode=0o600)
            aside.write_text(text, encoding="utf-8")
            aside.replace(path)


class MachineStatus(msgspec.Struct, frozen=True):
    """The processes of a machine, seen from outside.

    Attributes:
        supervisor: process id; None when none runs.
        addresses: host:port for clients, by child.
        children: the state that was kept last, without the ids of processes that run no more; empty when none runs.
    """

    machine: str
    supervisor: int | None
    addresses: dict[str, str]
    children: tuple[ChildStatus, ...]

    @property
    def is_whole(self) -> bool:
        """True while a supervisor and all of its children run."""
        return bool(self.supervisor and self.children) and all(child.pid for child in self.children)


def look(plan: NodePlan) -> MachineStatus:
    """See which of the planned processes run. A supervisor that was killed leaves its file and a free lock."""
    status = read_status(plan.folder)
    addresses = {child.name: str(child.address) for child in plan.children}
    if status is None:
        return MachineStatus(plan.machine, None, addresses, ())
    plans = {child.name: child for child in plan.children}
    children = tuple(
        child if is_alive(child, plans[child.name]) else msgspec.structs.replace(child, pid=None)
        for child in status.children
        if child.name in plans
    )
    supervisor = status.pid if _is_locked(plan.folder) else None
    has_life = supervisor is not None or any(child.pid for child in children)
    return MachineStatus(plan.machine, supervisor, addresses, children if has_life else ())


def read_status(folder: Path) -> NodeStatus | None:
    """Read node.json of a machine's folder; None without a readable one."""
    try:
        return msgspec.json.decode((folder / STATUS_NAME).read_bytes(), type=NodeStatus)
    except (OSError, msgspec.DecodeError):
        return None


def _is_locked(folder: Path) -> bool:
    """Return whether a process holds the lock of a machine's folder."""
    try:
        StoreLock(folder).release()
    except StoreLockedError:
        return True
    return False
