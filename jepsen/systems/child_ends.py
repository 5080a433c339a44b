"""Finds the ends of what a supervisor runs, also those between two looks at its node.json. Pure.

A process is away for a tenth of a second only, so that nobody may see it down: ends are counted, as the new starts that
followed them and the end of what is down now. Of several ends between two looks the words of the last one are known.
"""

from __future__ import annotations

import re
import signal
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Final

from broker.node.status import NodeStatus
from broker.processes.child import ChildStatus
from jepsen.processes import UnexpectedExit

_KILLED: Final = "was ended by SIGKILL"
_END: Final = re.compile(r"ended with status (-?\d+)|was ended by (SIG\w+)")
_STOPPED: Final = (0, -signal.SIGTERM)


class ChildEnds:
    """The ends seen of one supervisor's processes, and which of them are our doing; all by the name of the child."""

    def __init__(self) -> None:
        self._supervisor: tuple[int, str] | None = None
        self._seen: Counter[str] = Counter()
        self._ours: dict[str, set[int]] = defaultdict(set)

    def expect(self, names: Iterable[str]) -> None:
        """Take the next end of each of these, after those that were noted, for one of our doing, if by SIGKILL."""
        for name in names:
            self._ours[name].add(self._seen[name] + 1)

    def note(self, status: NodeStatus | None) -> list[UnexpectedExit]:
        """Return the ends since the last look that are not our doing.

        Args:
            status: what node.json says now; None without one, which tells nothing.
        """
        if status is None:
            return []
        if self._supervisor != (status.pid, status.start):
            # Another supervisor counts anew.
            self._supervisor = (status.pid, status.start)
            self._seen.clear()
            self._ours.clear()
        return [
            end
            for child in status.children
            for end in self._note_child(child, is_stopping=status.is_stopping)
        ]

    def _note_child(self, child: ChildStatus, *, is_stopping: bool) -> list[UnexpectedExit]:
        """Return the new ends of one child, without those of our doing and those that belong to a stop in order."""
        known, ends = self._seen[child.name], _ends_of(child)
        self._seen[child.name] = ends
        status = _status_of(child.last_end)
        found: list[UnexpectedExit] = []
        for number in range(known + 1, ends + 1):
            is_last = number == ends
            is_killed = (
                not is_last or child.last_end == _KILLED
            )  # how earlier ones ended nobody knows
            is_ours = number in self._ours[child.name] and is_killed
            is_stop = is_last and is_stopping and status in _STOPPED
            if not is_ours and not is_stop:
                found.append(UnexpectedExit(status, f"{child.name} {child.last_end}"))
        return found


def _ends_of(child: ChildStatus) -> int:
    """Return how often a process has ended since its supervisor started."""
    return child.restarts + (child.pid is None and bool(child.last_end))


def _status_of(how: str) -> int:
    """Return the exit status in the words of a supervisor, negative for a signal; 0 when they have none."""
    found = _END.search(how)
    if found is None:
        return 0
    return int(found[1]) if found[1] else -signal.Signals[found[2]].value
