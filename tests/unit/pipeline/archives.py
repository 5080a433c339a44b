"""Archives made without Spark: by the writer of its tasks, and then placed and listed as a run of the job does."""

from __future__ import annotations

from pathlib import Path

from dledger.raft.entry import Entry
from dledger.raft.ids import Index
from pipeline.archive.manifests import ArchivedFile, Manifest, write_manifest
from pipeline.archive.parts import Part, stage_part
from pipeline.scan.plan import CommittedBound, plan_scan
from pipeline.scan.stores import Store
from tests.unit.pipeline.stores import write_store


def write_archive(
    folder: Path, entries: list[Entry], *, ends: tuple[int, ...] = (), first: int = 1
) -> Path:
    """Write entries into a store, and that into an archive; return the archive's folder.

    Args:
        folder: a new folder for both.
        entries: from the log's first one on.
        ends: the last entry of each stretch but the last, which ends with the log.
        first: the first entry in the archive.
    """
    sealed = write_store(folder / "store", entries, 2000)
    archive = folder / "archive"
    before = first - 1
    for end in (*ends, int(sealed[-1].index)):
        _add(folder, archive, before, end)
        before = end
    return archive


def _add(folder: Path, archive: Path, before: int, end: int) -> None:
    """Add a stretch of the log to an archive."""
    plan = plan_scan(
        Store(folder / "store"),
        CommittedBound(Index(end), "test", is_exact=False),
        first_index=Index(before + 1),
        split_bytes=1000,
    )
    staging = folder / f"staging-{end}"
    staging.mkdir()
    staged = stage_part(Part(plan.ranges, "broker-a", str(staging)))
    assert staged.difference is None
    files = []
    for number, each in enumerate(staged.files):
        path = Path(each.folder) / f"part-{before + 1:020d}-{end:020d}-{number:05d}.zstd.parquet"
        target = archive / path
        target.parent.mkdir(parents=True, exist_ok=True)
        Path(each.path).rename(target)
        files.append(ArchivedFile(str(path), each.bytes, each.rows, each.crc32c))
    manifest = Manifest(
        broker_name="broker-a",
        first_index=Index(before + 1),
        last_index=plan.end.index,
        first_position=plan.start.position,
        end_position=plan.end.position,
        first_chain_crc=plan.start.crc or 0,
        last_chain_crc=plan.end.crc or 0,
        known_by="test",
        rows=sum(each.rows for each in files),
        queues=staged.queues,
        files=tuple(files),
    )
    write_manifest(archive, manifest)
