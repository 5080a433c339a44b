"""Scenarios of row 70: what happens to machines that share several groups."""

from __future__ import annotations

from typing import Final

from jepsen.checkers.groups import group_of
from jepsen.checklist.stage import Catalogue, Stage
from jepsen.history.values import SendAnswer, shaped

LEADER_S: Final = 30.0

MACHINES: Final = Catalogue()


@MACHINES.add(70, groups=3)
async def machine_of_several_groups_killed(stage: Stage) -> None:
    """Kill each machine in turn: while it is dead all groups take messages, those that it led as well."""
    for name in stage.names:
        await stage.progress(30)
        stage.kill(name)
        await _all_take(stage, name)
        stage.start(name)
        await stage.whole()


async def _all_take(stage: Stage, dead: str) -> None:
    """Expect that every group acknowledges a send from now on."""
    begun_ns, groups = stage.log.now_ns(), set(stage.groups)
    await stage.until(lambda: groups <= _taking(stage, begun_ns), LEADER_S)
    lacking = sorted(groups - _taking(stage, begun_ns))
    stage.expect(not lacking, f"every group takes messages without {dead} (not {lacking})")


def _taking(stage: Stage, since_ns: int) -> set[str]:
    """Return the groups that have acknowledged a send since a time."""
    queues = (
        shaped(op.value, SendAnswer).get("queue")
        for op in stage.ends(since_ns=since_ns)
        if op.type == "ok"
    )
    return {group_of(queue) for queue in queues if queue}
