"""One version of an archive's table, for readers that know no Delta tables, and where live data goes on behind it.

The offsets are those of the manifests up to the very entry up to which that version goes. So its rows and those from
these offsets on, of the brokers or of the source with `includeArchive`, are each message once.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dledger_mq.client.queues import MessageQueue
from dledger_mq.message.numbers import QueueOffset
from pipeline.archive.manifests import ArchiveError, load_manifests
from pipeline.folders import Where, open_folder, understood
from pipeline.table.compacting import table_there
from pipeline.table.delta import open_table

_EARLIEST: Final = -2


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """One version of a table.

    Attributes:
        version: its number.
        covered_index: the last entry of the log whose archived rows it has.
        end_position: where in the log that entry ends; rows of the log with a lesser `physicalOffset` are in it.
        files: full names of its files.
        ends: for each queue with rows the offset after the last one.
    """

    archive: str
    version: int
    covered_index: int
    end_position: int
    files: tuple[str, ...]
    ends: Mapping[MessageQueue, QueueOffset]

    def starting_offsets(self, topic: str, broker_name: str, queue_ids: Collection[int]) -> str:
        """Return option `startingOffsets` for what comes behind the table.

        Args:
            topic: the topic.
            broker_name: the group whose log is archived.
            queue_ids: of all queues of the topic; one without a row in the table begins at its beginning.
        """
        ends = {
            str(queue_id): self.ends.get(MessageQueue(topic, broker_name, queue_id), _EARLIEST)
            for queue_id in sorted(queue_ids)
        }
        return json.dumps({topic: {broker_name: ends}})


def table_snapshot(
    archive: Where, topics: Collection[str] | None = None, version: int | None = None
) -> TableSnapshot:
    """Return a version of an archive's table.

    Args:
        archive: the folder.
        topics: only files and queues of these; None: all.
        version: which one; None: the newest.

    Raises:
        PipelineUsageError: there is no table.
        ArchiveError: a manifest is damaged or missing.
        OSError: it cannot be read, or there is no such version.
    """
    table = open_table(archive, version) if version is not None else table_there(archive)
    assert table is not None, f"a version of {archive} that is missing is an error"
    covered = table.covered_index
    manifests = [each for each in load_manifests(archive) if each.last_index <= covered]
    if covered and (not manifests or manifests[-1].last_index != covered):
        raise ArchiveError(f"{archive}: no manifest ends with entry {covered}, as the table does")
    ends = {
        MessageQueue(each.topic, manifest.broker_name, each.queue_id): QueueOffset(
            each.max_offset + 1
        )
        for manifest in manifests
        for each in manifest.queues
        if topics is None or each.topic in topics
    }
    place = understood(archive)
    folder = open_folder(archive)
    return TableSnapshot(
        str(place.absolute() if isinstance(place, Path) else place),
        table.number,
        covered,
        manifests[-1].end_position if manifests else 0,
        tuple(
            folder.full(file.path)
            for file in table.files()
            if topics is None or file.topic in topics
        ),
        ends,
    )
