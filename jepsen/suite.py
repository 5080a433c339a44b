"""The standing set: which workload runs under which faults, and for how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

TIME_LIMIT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class SuiteRun:
    """One run of the set; `name` is what --only is compared with."""

    workload: str
    nemesis: str
    nodes: int = 3

    @property
    def name(self) -> str:
        """As "queue/kill:leader"."""
        return f"{self.workload}/{self.nemesis}"


SUITE: Final = (
    SuiteRun("queue", "none"),
    SuiteRun("queue", "kill:leader"),
    SuiteRun("queue", "kill:minority", nodes=5),
    SuiteRun("queue", "kill:majority"),
    SuiteRun("queue", "kill:all"),
    SuiteRun("queue", "pause:leader"),
    SuiteRun("queue", "partition:halves"),
    SuiteRun("queue", "partition:leader"),
    SuiteRun("queue", "partition:ring", nodes=5),
    SuiteRun("log-set", "kill:all"),
    SuiteRun("log-append", "pause:leader"),
    SuiteRun("log-append", "partition:leader"),
)


def chosen(only: Sequence[str]) -> list[SuiteRun]:
    """Return the runs whose name holds one of these texts; all without any."""
    return [run for run in SUITE if not only or any(text in run.name for text in only)]
