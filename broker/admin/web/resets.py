"""A reset of offsets as the console makes it: shown first, and carried out only if the group still stands there.

Where a group would go on, and moving it there, is `offset_reset.py`, which the command line has, too.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Literal

from broker.admin.cluster import ChangeOutcome, open_cluster
from broker.admin.group_places import positions
from broker.admin.groups import online_members
from broker.admin.offset_reset import EARLIEST, LATEST, PlannedMove, move, plan_reset

Target = Literal["first", "last"] | int
"""The first offset that is kept, the end, or the first at or after a time (ms since 1970)."""


class ResetRefusedError(Exception):
    """Surely nothing was changed; the text says why."""


@dataclass(frozen=True, slots=True)
class ResetPreview:
    """All that a reset would change, queue by queue; `members` are online, and would be made to follow."""

    group: str
    topic: str
    moves: tuple[PlannedMove, ...]
    members: tuple[str, ...]


async def preview_reset(namesrv: str, group: str, topic: str, to: Target) -> ResetPreview:
    """Return what a reset would change.

    Raises:
        NotThereError: there is no such topic.
        ClientError: it could not be found out.
    """
    options = argparse.Namespace(
        consumer_group=group,
        topic=topic,
        queue=None,
        to={"first": EARLIEST, "last": LATEST}.get(str(to)),
        to_time=to,
        to_offset=None,
    )
    async with open_cluster(namesrv.split(";")) as cluster:
        plan = await plan_reset(cluster, options)
        return ResetPreview(group, topic, tuple(plan), tuple(await online_members(cluster, group)))


async def reset_as_previewed(namesrv: str, preview: ResetPreview) -> list[ChangeOutcome]:
    """Move a group to where the preview has it; return an outcome for each queue.

    Raises:
        ResetRefusedError: nobody is online, and the group stands elsewhere by now; nothing was changed.
        NotThereError, ClientError: nobody could be asked; nothing was changed.
    """
    async with open_cluster(namesrv.split(";")) as cluster:
        online = await online_members(cluster, preview.group)
        if not online:
            found = await positions(cluster, preview.group, preview.topic)
            now = {one.queue: one.committed for one in found}
            for each in preview.moves:
                shown = each.position
                if now.get(shown.queue) != shown.committed:
                    raise ResetRefusedError(
                        f"the group stands elsewhere by now: queue {shown.queue.queue_id} of {preview.topic} at "
                        f"{now.get(shown.queue)}, and not at {shown.committed}"
                    )
        return await move(cluster, preview.group, preview.moves, online)
