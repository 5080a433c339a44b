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

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

import trio

from broker.node.plan import NodePlan
from broker.node.status import StatusFile, read_status
from broker.processes.child import Child, ChildEnd
from broker.processes.staged_stop import StagedStop, StopStage
from broker.server.config import STOP_FORWARD_S_MAX
from dledger.runtime.stop_signals import SECOND_STOP_S_MAX, STOP_S_MAX, handle_stop_signals
from dledger.storage.lock import StoreLock

BROKERS_STOP_S_MAX: Final = STOP_S_MAX + STOP_FORWARD_S_MAX + 5.0
"""A broker ends itself before, whatever hangs; what has not is killed."""

NAME_SERVER_STOP_S_MAX: Final = STOP_S_MAX + 5.0
SAVE_AGAIN_S: Final = 5.0
"""Between two attempts to write node.json on a disk that is full."""


class Supervisor:
    """Runs the plan of one machine."""

    def __init__(self, plan: NodePlan, report: Callable[[str], None]) -> None:
        """Start nothing yet; `report` takes lines for the operator, and must not raise."""
        self._plan = plan
        self._report = report
        self._status_file = StatusFile(plan.folder, plan.machine, report)
        self._supervises = False
        self._children = [Child(child.program, self._save) for child in plan.children]
        name_server, *self._brokers = self._children
        self._stop = StagedStop(
            [
                StopStage(self._brokers, BROKERS_STOP_S_MAX),
                StopStage([name_server], NAME_SERVER_STOP_S_MAX),
            ],
            report,
            hurry_s=SECOND_STOP_S_MAX + 0.5,  # they have ended themselves by then
        )

    @property
    def stop_s_max(self) -> float:
        """The longest time from the first signal to the end of the supervisor: its children have ended before."""
        return self._stop.s_max + 1.0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run everything until a signal (SIGTERM, SIGINT), then stop it in order.

        Raises:
            StoreLockedError: this machine's processes have a supervisor already.
            OSError: the folder cannot be written.
        """
        with StoreLock(self._plan.folder):
            self._supervises = True
            changed = write_files(self._plan)
            dropped = self._adopt(changed)
            handle_stop_signals(
                self._stop.take,
                stop_s_max=self.stop_s_max,
                second_stop_s_max=self._stop.hurried_s_max + 1.0,
            )
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._save_again)
                nursery.start_soon(dropped.run)
                for child in self._children:
                    nursery.start_soon(child.keep_running, self._report_end)
                task_status.started()
                await self._stop.wanted.wait()
                nursery.cancel_scope.cancel()
            self._save()
            await self._stop_all()

    async def stop_orphans(self) -> None:
        """Stop in order what a supervisor has left that was killed.

        Raises:
            StoreLockedError: this machine's processes have a supervisor, or somebody else stops them.
        """
        with StoreLock(self._plan.folder):
            self._adopt()
            await self._stop_all()

    def _adopt(self, changed: Collection[str] = ()) -> StagedStop:
        """Take over what runs already, from what the supervisor before has kept.

        Args:
            changed: names of the children whose files are other ones now.

        Returns:
            The stop of the processes whose groups are gone from node.toml.
        """
        status = read_status(self._plan.folder)
        kept = {} if status is None else {child.name: child for child in status.children}
        for child in self._children:
            name = child.program.name
            if child.adopt(kept.pop(name, None)):
                note = ""
                if name in changed:
                    note = "; what has changed in its settings counts from its next start"
                self._report(f"{name} runs already, process {child.status.pid}{note}")
        dropped = []
        for name, left in kept.items():
            child = Child(self._plan.program_left(name), self._save)
            if child.adopt(left):
                self._report(f"{name} is no longer among the groups: process {left.pid} is to stop")
                dropped.append(child)
        self._brokers += dropped
        self._save()
        return StagedStop([StopStage(dropped, BROKERS_STOP_S_MAX)], self._report, hurry_s=0)

    async def _stop_all(self) -> None:
        await self._stop.run()
        self._status_file.remove()

    def _report_end(self, end: ChildEnd) -> None:
        self._report(str(end))

    def _save(self) -> None:
        """Write node.json: who goes on after this process asks nobody to stop twice, which means haste."""
        name_server, *_ = self._children
        self._status_file.write(
            [child.status for child in (name_server, *self._brokers)],
            is_supervisor=self._supervises,
            is_stopping=self._stop.wanted.is_set(),
        )

    async def _save_again(self) -> None:
        """Write node.json once the disk takes it again: `status` reads it, and so does the next supervisor."""
        while True:
            await trio.sleep(SAVE_AGAIN_S)
            if self._status_file.is_behind:
                self._save()


def write_files(plan: NodePlan) -> set[str]:
    """Write the settings files of all children; they may hold a secret, so they are for the owner alone.

    Returns:
        The names of the children whose files were other ones before.
    """
    for name in ("conf", "logs"):
        (plan.folder / name).mkdir(parents=True, exist_ok=True)
    if plan.log_folder is not None:
        Path(plan.log_folder).mkdir(parents=True, exist_ok=True)
    changed = set()
    for child in plan.children:
        for path, text in child.files:
            if _write_file(path, text):
                changed.add(child.name)
    return changed


def _write_file(path: Path, text: str) -> bool:
    """Write a file unless it is so already, since a machine starts with a full disk too; return whether it was not."""
    data = text.encode()
    if path.exists() and path.stat().st_mode & 0o777 == 0o600 and path.read_bytes() == data:
        return False
    aside = path.with_suffix(".new")
    aside.unlink(missing_ok=True)
    aside.touch(mode=0o600)
    aside.write_bytes(data)
    aside.replace(path)
    return True
