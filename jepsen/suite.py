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
    groups: int = 1

    @property
    def name(self) -> str:
        """As "queue/kill:leader", or "queue/kill:leader/3 groups"."""
        shared = f"/{self.groups} groups" if self.groups > 1 else ""
        return f"{self.workload}/{self.nemesis}{shared}"


SUITE: Final = (
    SuiteRun("queue", "none"),
    SuiteRun("queue", "kill:leader"),
    SuiteRun("queue", "kill:minority", nodes=5),
    SuiteRun("queue", "kill:majority"),
    SuiteRun("queue", "kill:all"),
    SuiteRun("queue", "pause:leader"),
    SuiteRun("queue", "stall:all"),
    SuiteRun("queue", "rolling-restart"),
    SuiteRun("queue", "partition:halves"),
    SuiteRun("queue", "partition:leader"),
    SuiteRun("queue", "partition:bridge", nodes=5),
    SuiteRun("queue", "partition:ring", nodes=5),
    SuiteRun("queue", "partition:one-way"),
    SuiteRun("queue", "partition:clients-minority"),
    SuiteRun("queue", "flap"),
    SuiteRun("queue", "delay"),
    SuiteRun("queue", "corrupt"),
    SuiteRun("queue", "disk-full:leader"),
    SuiteRun("queue", "fsync-fail:leader"),
    SuiteRun("queue", "fsync-slow:leader"),
    SuiteRun("queue", "fsync-stuck:all"),
    SuiteRun("queue", "lost-unsynced:all"),
    SuiteRun("queue", "bit-flip:log"),
    SuiteRun("queue", "damage-all"),
    SuiteRun("queue", "kill:leader,partition:halves,pause:one"),
    SuiteRun("sends", "none"),
    SuiteRun("sends", "kill:leader"),
    SuiteRun("sends", "pause:leader"),
    SuiteRun("sends", "partition:leader"),
    SuiteRun("offsets", "kill:leader"),
    SuiteRun("offsets", "pause:leader"),
    SuiteRun("offsets", "partition:one-way"),
    SuiteRun("offsets", "partition:leader-peers"),
    SuiteRun("queue-cpp", "kill:leader"),
    SuiteRun("queue-java", "kill:leader"),
    SuiteRun("queue-node", "kill:leader"),
    SuiteRun("transactions", "kill:leader"),
    SuiteRun("transactions", "kill:all"),
    SuiteRun("transactions", "partition:leader"),
    SuiteRun("transactions", "pause:leader"),
    SuiteRun("transactions", "lost-unsynced:all"),
    SuiteRun("delay", "kill:leader"),
    SuiteRun("delay", "partition:halves"),
    SuiteRun("delay", "kill:all"),
    SuiteRun("pop", "kill:leader"),
    SuiteRun("pop", "partition:leader"),
    SuiteRun("ordered", "kill:leader"),
    SuiteRun("ordered", "partition:leader"),
    SuiteRun("ordered", "pause:leader"),
    SuiteRun("queue", "pause:leader", groups=3),
    SuiteRun("queue", "partition:leader", groups=3),
    SuiteRun("queue", "crash:leader", groups=3),
    SuiteRun("together", "kill:leader", groups=3),
    SuiteRun("log-set", "kill:all"),
    SuiteRun("log-append", "kill:leader"),
    SuiteRun("log-append", "pause:leader"),
    SuiteRun("log-append", "partition:leader"),
)


def chosen(only: Sequence[str]) -> list[SuiteRun]:
    """Return the runs whose name holds one of these texts; all without any."""
    return [run for run in SUITE if not only or any(text in run.name for text in only)]
