"""Writes stretches of the log into an archive, each visible only once it is complete.

A stretch is written to a staging folder, part by part, and each part is compared with a second scan of the log
and made durable (`pipeline.archive.parts`). Then the files of the parts that were done are moved to their
places, whatever else stands in the folder, and last of all the manifest is written. A run that
ends anywhere in between, by kill or by a full disk, leaves files that no manifest lists; the next run removes
them and does that stretch again.

In an object store (`ObjectArchive`) nothing is renamed and there is no lock: files are written where they stay, and of
two runs that archive the same stretch, the one whose manifest is created first has done it (adr/0244).
"""

from __future__ import annotations

import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from dledger.errors import DiskFullError, StoreLockedError
from dledger.raft.ids import Index
from dledger.storage.lock import StoreLock
from dledger.storage.posix import PosixDisk
from pipeline.archive.manifests import (
    MANIFESTS,
    STAGING,
    ArchivedFile,
    ArchiveError,
    Manifest,
    check_same_log,
    create_manifest,
    load_manifests,
    merged,
    note_beginning,
    write_manifest,
)
from pipeline.archive.parts import Part, StagedFile
from pipeline.archive.told_parts import Told, stage_parts
from pipeline.errors import InconclusiveError, PipelineError
from pipeline.folders import Where, understood
from pipeline.locations import ObjectPath
from pipeline.object_store import ObjectFolder
from pipeline.scan.entries import Chain
from pipeline.scan.plan import CommittedBound, plan_scan
from pipeline.scan.ranges import LogRange
from pipeline.scan.records import read_records
from pipeline.scan.stores import SegmentFile, Store, Units, chain_of, read_index

if TYPE_CHECKING:
    from pipeline.spark.names import SparkSession

STRETCH_BYTES: Final = 1024 * 1024 * 1024
"""Log in one manifest: what a run that is killed has to do again at most."""

PART_BYTES_MIN: Final = 64 * 1024 * 1024
"""Log in one task, where there is so much: a task has files of its own for each topic and day."""

_FIRST_OF: Final = re.compile(r"/part-([0-9]{20})-[^/]*\.parquet$")
_NO_ROOM: Final = ("No space left on device", "Disk quota exceeded")


def _nobody(_: int) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True)
class ManifestRange:
    """Entries of the log that one manifest will list: those after `before`, up to `end`."""

    before: Chain
    end: Chain

    def __post_init__(self) -> None:
        assert self.before.index <= self.end.index, f"{self.before} is beyond {self.end}"

    @property
    def size_bytes(self) -> int:
        """Bytes of the log."""
        return self.end.position - self.before.position


class OpenArchive(ABC):
    """An archive that is written to; `open_archive` makes one. Use it in a `with`.

    Attributes:
        manifests: what it holds.
    """

    manifests: list[Manifest]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @abstractmethod
    def __str__(self) -> str:
        """Return where it is."""

    @abstractmethod
    def release(self) -> None:
        """Let another run write to it."""

    @property
    def covered_index(self) -> int:
        """The last entry of the log that the archive holds."""
        return self.manifests[-1].last_index if self.manifests else 0

    def stretches(
        self, store: Store, committed: CommittedBound, stretch_bytes: int = STRETCH_BYTES
    ) -> list[ManifestRange]:
        """Return the stretches of the log, up to a bound, that the archive does not hold yet.

        Raises:
            ArchiveError: the store is another log than the archive's, or has lost entries that the archive lacks.
            DamagedLogError: the log's segments do not join.
        """
        if self.manifests:
            if store.start.index > self.covered_index:
                raise ArchiveError(
                    f"{store.path} begins with entry {store.start.index + 1}, and the archive ends with entry "
                    f"{self.covered_index}: what stood between is deleted, and in neither (docs/retention.md)"
                )
            check_same_log(self.manifests[-1], store)
        split_bytes = max(stretch_bytes // 4, 1)
        plan = plan_scan(
            store, committed, first_index=Index(self.covered_index + 1), split_bytes=split_bytes
        )
        found: list[ManifestRange] = []
        before = plan.start
        for part in plan.ranges:
            if part.end.position - before.position >= stretch_bytes or part is plan.ranges[-1]:
                found.append(ManifestRange(before, part.end))
                before = part.end
        return found

    @abstractmethod
    def add(
        self,
        spark: SparkSession,
        store: Store,
        stretch: ManifestRange,
        *,
        broker_name: str,
        known_by: str,
        told: Told = _nobody,
    ) -> Manifest:
        """Archive one stretch, which must begin where the archive ends.

        Args:
            spark: the session.
            store: the log.
            stretch: the entries.
            broker_name: the group whose log it is; "": not known.
            known_by: how it is known that they are committed.
            told: of each part that is done.

        Raises:
            ArchiveError: what was written is not what the log holds, or there is no room for it. The
                archive is what it was before.
            PipelineError: another run was faster. The archive holds what that one wrote.
            InconclusiveError: an object store failed; whether the archive holds the stretch the next run sees.
            DamagedLogError: the log is damaged.
        """

    @abstractmethod
    def _placed_path(self, file: StagedFile, stretch: ManifestRange, number: int) -> str:
        """Return the path in the archive at which a staged file stands, or will stand."""

    def _stage(
        self,
        spark: SparkSession,
        store: Store,
        stretch: ManifestRange,
        *,
        staging: str,
        broker_name: str,
        known_by: str,
        told: Told,
    ) -> tuple[list[StagedFile], Manifest]:
        """Write the rows to new files and verify them against the log; Spark runs the parts in parallel."""
        tasks = spark.sparkContext.defaultParallelism
        part_bytes = max(stretch.size_bytes // tasks, PART_BYTES_MIN)
        parts = [
            Part(ranges, broker_name or None, staging, f"part-{_span(stretch)}")
            for ranges in _parts(store, stretch, part_bytes)
        ]
        found = stage_parts(spark, parts, told)
        for each in found:
            if each.difference is not None:
                raise ArchiveError(f"{staging} is not what the log holds: {each.difference}")
        assert len(found) == len(parts), f"{len(parts)} parts were staged as {len(found)}"
        files = [file for each in found for file in each.files]
        queues = merged(queue for each in found for queue in each.queues)
        archived = tuple(
            ArchivedFile(
                self._placed_path(file, stretch, number), file.bytes, file.rows, file.crc32c
            )
            for number, file in enumerate(files)
        )
        return files, Manifest(
            broker_name,
            Index(stretch.before.index + 1),
            stretch.end.index,
            stretch.before.position,
            stretch.end.position,
            stretch.before.crc or 0,
            stretch.end.crc or 0,
            known_by,
            sum(each.count for each in queues),
            queues,
            archived,
        )


class Archive(OpenArchive):
    """An archive in a folder, which this process alone writes to.

    Attributes:
        path: the folder; created when missing.

    Raises:
        PipelineError: another run writes to it.
        ArchiveError: a manifest is damaged.
        OSError: the disk failed.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        disk = PosixDisk(self.path)
        disk.make_folder(STAGING)
        try:
            self._lock = StoreLock(self.path / STAGING)
        except StoreLockedError as error:
            raise PipelineError(f"another run writes to {self.path}") from error
        try:
            if disk.exists(MANIFESTS):
                # A run that was killed may have left a manifest that a power cut takes back.
                disk.sync_folder("")
                disk.sync_folder(MANIFESTS)
            self.manifests = load_manifests(self.path)
            self._remove_strays()
        except BaseException:
            self._lock.release()
            raise

    def __str__(self) -> str:
        return str(self.path)

    def release(self) -> None:
        """Let another run write to it."""
        self._lock.release()

    def add(
        self,
        spark: SparkSession,
        store: Store,
        stretch: ManifestRange,
        *,
        broker_name: str,
        known_by: str,
        told: Told = _nobody,
    ) -> Manifest:
        """Archive one stretch; see `OpenArchive.add`. No other run can be faster, and no object store fails.

        Raises:
            ArchiveError, DamagedLogError: as there.
        """
        covered = self.covered_index
        if not self.manifests and stretch.before.index:
            covered = stretch.before.index
            note_beginning(self.path, Index(covered + 1))
        assert stretch.before.index == covered, (
            f"entry {covered} is the last, and {stretch} follows"
        )
        staged = self.path / STAGING / _span(stretch)
        try:
            PosixDisk(self.path).make_folder(str(staged.relative_to(self.path)))
            files, manifest = self._stage(
                spark,
                store,
                stretch,
                staging=str(staged),
                broker_name=broker_name,
                known_by=known_by,
                told=told,
            )
            self._place(files, manifest)
            write_manifest(self.path, manifest)
        except Exception as error:
            if not _is_for_want_of_room(error):
                raise
            raise ArchiveError(
                f"no room for entries {stretch.before.index + 1} to {stretch.end.index} in {self.path}; what "
                f"was begun is removed, what manifests list stays"
            ) from error
        finally:
            shutil.rmtree(staged, ignore_errors=True)
            if len(self.manifests) == len(load_manifests(self.path)):
                self._remove_strays()
        assert manifest.first_index == covered + 1, f"{manifest} does not follow entry {covered}"
        self.manifests.append(manifest)
        return manifest

    def _placed_path(self, file: StagedFile, stretch: ManifestRange, number: int) -> str:
        return f"{file.folder}/part-{_span(stretch)}-{number:05d}.zstd.parquet"

    def _place(self, staged: list[StagedFile], manifest: Manifest) -> None:
        """Move the staged files to their places; durable on return."""
        disk = PosixDisk(self.path)
        folders: set[str] = set()
        for source, file in zip(staged, manifest.files, strict=True):
            disk.make_folder(source.folder)
            disk.rename(str(Path(source.path).relative_to(self.path)), file.path)
            # Those around it as well: a run that was killed may have made them and not synced them.
            around = (str(each) for each in PurePosixPath(source.folder).parents)
            folders |= {source.folder, *("" if each == "." else each for each in around)}
        for folder in sorted(folders):
            disk.sync_folder(folder)

    def _remove_strays(self) -> None:
        """Remove the files of a run that ended before it wrote its manifest."""
        listed = {file.path for manifest in self.manifests for file in manifest.files}
        for folder in self.path.iterdir():
            if folder.name == STAGING:
                for each in folder.iterdir():
                    if each.is_dir():
                        shutil.rmtree(each)
            elif folder.name.startswith("topic="):
                for path in folder.rglob("part-*.parquet"):
                    # Others stand here when another program has compacted the table (adr/0281).
                    is_ours = _FIRST_OF.search(str(path))
                    if is_ours and str(path.relative_to(self.path)) not in listed:
                        path.unlink()
            elif folder.name == MANIFESTS:
                for path in folder.glob("*.aside"):
                    path.unlink()


class ObjectArchive(OpenArchive):
    """An archive in an object store, to which several runs may write at once.

    Raises:
        ArchiveError: a manifest is damaged.
        InconclusiveError: the store cannot be asked.
    """

    def __init__(self, place: ObjectPath) -> None:
        self._folder = ObjectFolder(place)
        try:
            self.manifests = load_manifests(place)
            self._remove_strays()
        except OSError as error:
            raise InconclusiveError(f"the archive {self} cannot be read: {error}") from error

    def __str__(self) -> str:
        return str(self._folder)

    def release(self) -> None:
        """Do nothing: nobody else is kept out."""

    def add(
        self,
        spark: SparkSession,
        store: Store,
        stretch: ManifestRange,
        *,
        broker_name: str,
        known_by: str,
        told: Told = _nobody,
    ) -> Manifest:
        """Archive one stretch; see `OpenArchive.add`."""
        covered = self.covered_index
        assert stretch.before.index == covered or not self.manifests, (
            f"entry {covered} is the last, and {stretch} follows"
        )
        try:
            _, manifest = self._stage(
                spark,
                store,
                stretch,
                staging=str(self),
                broker_name=broker_name,
                known_by=known_by,
                told=told,
            )
            create_manifest(self._folder, manifest, covered)
        except Exception as error:
            # Whoever was faster also removes what is of no use any more, under the hands of this run.
            if isinstance(error, FileExistsError) or self._is_overtaken():
                raise PipelineError(
                    f"another run has archived what follows entry {covered} in {self} meanwhile; the next run goes "
                    "on there"
                ) from error
            if isinstance(error, OSError):
                raise InconclusiveError(
                    f"{self} fails; whether it holds entries {stretch.before.index + 1} to {stretch.end.index}, "
                    f"the next run sees: {error}"
                ) from error
            raise
        self.manifests.append(manifest)
        self._remove_strays()
        return manifest

    def _is_overtaken(self) -> bool:
        """Return whether the archive goes on where this run would have."""
        try:
            return len(load_manifests(self._folder.place)) > len(self.manifests)
        except OSError:
            return False

    def _placed_path(self, file: StagedFile, stretch: ManifestRange, number: int) -> str:
        return f"{file.folder}/{file.path.rpartition('/')[2]}"

    def _remove_strays(self) -> None:
        """Remove files that no manifest lists, and that none can list any more.

        Whoever wrote a file that begins with an entry up to the last archived one comes too late for its manifest.
        Other files may belong to a run that goes on, so they stay until that stretch is archived.
        """
        listed = {file.path for manifest in self.manifests for file in manifest.files}
        for folder in self._folder.names(""):
            if folder.startswith("topic="):
                for path in self._folder.files(folder):
                    first = _FIRST_OF.search(path)
                    if path not in listed and first and int(first[1]) <= self.covered_index:
                        self._folder.remove(path)


def open_archive(where: Where) -> OpenArchive:
    """Open an archive to write to it.

    Raises:
        LocationError: that is no place for one.
        PipelineError: another run writes to it; or what `Archive` and `ObjectArchive` raise.
        OSError: the disk failed.
    """
    found = understood(where)
    return ObjectArchive(found) if isinstance(found, ObjectPath) else Archive(found)


def _parts(store: Store, stretch: ManifestRange, part_bytes: int) -> Iterator[tuple[LogRange, ...]]:
    """Yield the parts of a stretch, of about `part_bytes` each."""
    held: list[LogRange] = []
    plan = plan_scan(
        store,
        CommittedBound(stretch.end.index, "the stretch"),
        first_index=Index(stretch.before.index + 1),
        split_bytes=max(part_bytes // 4, 1),
    )
    for each in plan.ranges:
        held.append(each)
        if sum(one.size_bytes for one in held) >= part_bytes:
            yield tuple(held)
            held = []
    if held:
        yield tuple(held)


def _is_for_want_of_room(error: Exception) -> bool:
    """Return whether a disk was full; Spark passes on only the text of what failed in its tasks."""
    return isinstance(error, DiskFullError) or any(text in str(error) for text in _NO_ROOM)


def _span(stretch: ManifestRange) -> str:
    return f"{stretch.before.index + 1:020d}-{stretch.end.index:020d}"


def expired_index(store: Store, cutoff_ms: int) -> int:
    """Return the last entry of the last finished segment in which every message was stored before a time.

    Without one that is the entry before the first that the store keeps: what it has lost had expired.

    Retention deletes whole segments, and never the one that is written to; so that much is expired.
    """
    before, expired = store.start, int(store.start.index)
    for segment in store.segments[:-1]:
        units = read_index(segment, before).units
        newest = _last_store_ms(segment, units)
        if not len(units) or newest is None or newest >= cutoff_ms:
            break
        expired = int(units["index"][-1])
        before = chain_of(units[-1])
    return expired


def _last_store_ms(segment: SegmentFile, units: Units) -> int | None:
    """Store time of the newest message of a finished segment; 0 when it has none."""
    with Path(segment.path).open("rb") as file:
        for place in range(len(units) - 1, -1, -1):
            unit = units[place]
            file.seek(int(unit["position"]) - segment.first_position)
            entry = file.read(int(unit["size_bytes"]))
            if int.from_bytes(entry[:4], "big") != 1:
                continue
            try:
                table = read_records(entry[48:])
            except ValueError:
                return None
            if len(table):
                return int(np.max(table.store_ms))
    return 0
