"""Writes stretches of the log into an archive, so that nothing half-written is ever taken for whole.

A stretch is written to a staging folder, read back, and compared per queue with a second scan of the log. Then
its files are made durable and moved to their places, and last of all the manifest is written. A run that
ends anywhere in between, by kill or by a full disk, leaves files that no manifest lists; the next run removes
them and does that stretch again.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.parquet as pq

from dledger.errors import StoreLockedError
from dledger.storage.lock import StoreLock
from dledger.storage.posix import PosixDisk
from pipeline.archive.manifests import (
    MANIFESTS,
    STAGING,
    ArchivedFile,
    ArchiveError,
    Manifest,
    check_same_log,
    file_crc,
    load_manifests,
    write_manifest,
)
from pipeline.errors import PipelineError
from pipeline.scan.entries import LOG_START, Chain
from pipeline.scan.plan import Committed, plan_scan
from pipeline.scan.records import read_records
from pipeline.scan.stores import SegmentFile, Store, read_index
from pipeline.spark.archive_rows import (
    PARTITION_COLUMNS,
    arranged,
    collected,
    first_difference,
    log_rows,
    parquet_rows,
    totals,
)

STRETCH_BYTES: Final = 1024 * 1024 * 1024
"""Log in one manifest: what a run that is killed has to do again at most."""

_ROW_GROUP_BYTES: Final = 32 * 1024 * 1024
_NO_ROOM: Final = ("No space left on device", "Disk quota exceeded")


@dataclass(frozen=True, slots=True)
class Stretch:
    """Entries of the log that one manifest will list: those behind `before`, up to `end`."""

    before: Chain
    end: Chain

    @property
    def size_bytes(self) -> int:
        """Bytes of the log."""
        return self.end.position - self.before.position


class Archive:
    """An archive that this process alone writes to. Use it in a `with`.

    Attributes:
        path: the folder; created when missing.
        manifests: what it holds.

    Raises:
        PipelineError: another run writes to it.
        ArchiveError: a manifest is damaged.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        PosixDisk(self.path).make_folder(STAGING)
        try:
            self._lock = StoreLock(self.path / STAGING)
        except StoreLockedError as error:
            raise PipelineError(f"another run writes to {self.path}") from error
        try:
            self.manifests = load_manifests(self.path)
            self._remove_strays()
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    @property
    def covered_index(self) -> int:
        """The last entry of the log that the archive holds."""
        return self.manifests[-1].last_index if self.manifests else 0

    def stretches(
        self, store: Store, committed: Committed, stretch_bytes: int = STRETCH_BYTES
    ) -> list[Stretch]:
        """What of the log, up to a bound, the archive does not hold yet.

        Raises:
            ArchiveError: the store is another log than the archive's.
            DamagedLogError: the log's segments do not join.
        """
        if self.manifests:
            check_same_log(self.manifests[-1], store)
        split_bytes = max(stretch_bytes // 4, 1)
        plan = plan_scan(
            store, committed, first_index=self.covered_index + 1, split_bytes=split_bytes
        )
        found: list[Stretch] = []
        before = plan.start
        for part in plan.ranges:
            if part.end.position - before.position >= stretch_bytes or part is plan.ranges[-1]:
                found.append(Stretch(before, part.end))
                before = part.end
        return found

    def add(
        self, spark: Any, store: Store, stretch: Stretch, *, broker_name: str, known_by: str
    ) -> Manifest:
        """Archive one stretch, which goes on where the archive ends.

        Raises:
            ArchiveError: what was written is not what the log holds, or there is no room for it. The
                archive is what it was before.
            DamagedLogError: the log is damaged.
        """
        assert stretch.before.index == self.covered_index, "stretches follow each other"
        staged = self.path / STAGING / _span(stretch)
        try:
            manifest = self._stage(spark, store, stretch, staged, broker_name, known_by)
            self._place(staged, manifest)
            write_manifest(self.path, manifest)
        except Exception as error:
            if not any(text in str(error) for text in _NO_ROOM):
                raise
            raise ArchiveError(
                f"no room for entries {stretch.before.index + 1} to {stretch.end.index} in {self.path}; what "
                f"was begun is removed, what manifests list stays"
            ) from error
        finally:
            shutil.rmtree(staged, ignore_errors=True)
            if len(self.manifests) == len(load_manifests(self.path)):
                self._remove_strays()
        self.manifests.append(manifest)
        return manifest

    def _stage(
        self,
        spark: Any,
        store: Store,
        stretch: Stretch,
        staged: Path,
        broker_name: str,
        known_by: str,
    ) -> Manifest:
        """Write the rows aside, and prove that they are the log's."""
        bounds = (stretch.before.index + 1, stretch.end.index)
        rows = log_rows(spark, store.path, *bounds, broker_name)
        writer = arranged(rows).write.partitionBy(*PARTITION_COLUMNS).mode("overwrite")
        writer.option("compression", "zstd").option("parquet.block.size", _ROW_GROUP_BYTES).parquet(
            str(staged)
        )
        written = collected(totals(parquet_rows(spark, [str(staged)])))
        of_log = collected(totals(log_rows(spark, store.path, *bounds, broker_name)))
        difference = first_difference(of_log, written)
        if difference is not None:
            raise ArchiveError(f"{staged} is not what the log holds: {difference}")
        files = tuple(self._describe(staged, stretch))
        return Manifest(
            broker_name,
            stretch.before.index + 1,
            stretch.end.index,
            stretch.before.position,
            stretch.end.position,
            stretch.before.crc or 0,
            stretch.end.crc or 0,
            known_by,
            sum(each.count for each in of_log),
            of_log,
            files,
        )

    def _describe(self, staged: Path, stretch: Stretch) -> Iterator[ArchivedFile]:
        """The staged files by the names that they will have; each is durable then."""
        disk = PosixDisk(self.path)
        for number, path in enumerate(sorted(staged.rglob("*.parquet"))):
            file = disk.open(str(path.relative_to(self.path)))
            file.sync()
            file.close()
            folder = path.parent.relative_to(staged)
            name = f"part-{_span(stretch)}-{number:05d}.zstd.parquet"
            rows = pq.read_metadata(path).num_rows
            yield ArchivedFile(str(folder / name), path.stat().st_size, rows, file_crc(path))

    def _place(self, staged: Path, manifest: Manifest) -> None:
        """Move the staged files to their places; durable on return."""
        disk = PosixDisk(self.path)
        folders: set[str] = set()
        sources = sorted(staged.rglob("*.parquet"))
        for source, file in zip(sources, manifest.files, strict=True):
            folder = str(Path(file.path).parent)
            disk.make_folder(folder)
            disk.rename(str(source.relative_to(self.path)), file.path)
            folders.add(folder)
        for folder in sorted(folders):
            disk.sync_folder(folder)

    def _remove_strays(self) -> None:
        """Remove what a run left that was ended before its manifest."""
        listed = {file.path for manifest in self.manifests for file in manifest.files}
        for folder in self.path.iterdir():
            if folder.name == STAGING:
                for each in folder.iterdir():
                    if each.is_dir():
                        shutil.rmtree(each)
            elif folder.name.startswith("topic="):
                for path in folder.rglob("*.parquet"):
                    if str(path.relative_to(self.path)) not in listed:
                        path.unlink()
            elif folder.name == MANIFESTS:
                for path in folder.glob("*.aside"):
                    path.unlink()


def _span(stretch: Stretch) -> str:
    return f"{stretch.before.index + 1:020d}-{stretch.end.index:020d}"


def expired_index(store: Store, cutoff_ms: int) -> int:
    """The last entry of the last finished segment in which every message was stored before a time.

    Retention deletes whole segments, and never the one that is written to; so that much is expired.
    """
    before, expired = LOG_START, 0
    for segment in store.segments[:-1]:
        units = read_index(segment, before).units
        newest = _last_store_ms(segment, units)
        if not len(units) or newest is None or newest >= cutoff_ms:
            break
        expired = int(units["index"][-1])
        last = units[-1]
        before = Chain(
            expired,
            int(last["term"]),
            int(last["position"]) + int(last["size"]),
            int(last["chain_crc"]),
        )
    return expired


def _last_store_ms(segment: SegmentFile, units: Any) -> int | None:
    """Store time of the newest message of a finished segment; 0 when it has none."""
    with Path(segment.path).open("rb") as file:
        for place in range(len(units) - 1, -1, -1):
            unit = units[place]
            file.seek(int(unit["position"]) - segment.first_position)
            entry = file.read(int(unit["size"]))
            if int.from_bytes(entry[:4], "big") != 1:
                continue
            try:
                table = read_records(entry[48:])
            except ValueError:
                return None
            if len(table):
                return int(np.max(table.store_ms))
    return 0
