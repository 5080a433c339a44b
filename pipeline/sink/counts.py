"""The counts of a batch that a sink has written, for people and for programs.

A task counts its rows; the driver adds them up when the batch is done, says so where rows were there before, and
appends a line to the file of option `countsPath`, if there is one.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """The rows of a batch, or of one task of it: `rows` is the sum of the others.

    Attributes:
        stored: by this write.
        already: by an earlier write of the same batch.
        older: not stored, since the sink has begun a higher batch; whatever was not stored before is not there.
    """

    rows: int = 0
    stored: int = 0
    already: int = 0
    older: int = 0

    def __add__(self, other: BatchCounts) -> BatchCounts:
        """Return the sums."""
        return BatchCounts(
            self.rows + other.rows,
            self.stored + other.stored,
            self.already + other.already,
            self.older + other.older,
        )


def summed(counts: Iterable[BatchCounts]) -> BatchCounts:
    """Return the sum of any number of counts."""
    return sum(counts, BatchCounts())


def report(counts: BatchCounts, sink_id: str, batch_id: int, file: Path | None) -> None:
    """Report what became of a batch: a line in the file, and a warning if rows were not stored now.

    A file that cannot be written is a warning, too: the rows are stored, and a write that fails is repeated.
    """
    if counts.already or counts.older:
        log.warning(
            "sink %s, batch %d: of %d rows %d were stored now, %d were there already, and %d are of a batch that is "
            "over",
            *(sink_id, batch_id, counts.rows, counts.stored, counts.already, counts.older),
        )
    if file is None:
        return
    line = json.dumps({"sinkId": sink_id, "batchId": batch_id} | asdict(counts))
    try:
        with file.open("a") as lines:
            lines.write(line + "\n")
    except OSError as error:
        log.warning("batch %d is stored, its counts are not in %s: %s", batch_id, file, error)


def read_counts(file: Path) -> Iterator[BatchCounts]:
    """Read the batches that a file of counts has; none if there is no file."""
    if not file.exists():
        return
    for line in file.read_text().splitlines():
        found = json.loads(line)
        yield BatchCounts(*(found[name] for name in ("rows", "stored", "already", "older")))
