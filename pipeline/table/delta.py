"""The log of a Delta table in an archive's folder, through deltalake.

`_delta_log` stands beside the manifests. What it lists is the archive's own files, where they are, and files of
compaction below `_table`. A commit makes exactly the version after the one that was read, or none: where another run
has made that version meanwhile, the commit is refused, and nothing of it is there.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa

from dledger.storage.posix import PosixDisk
from pipeline.archive.manifests import ArchiveError
from pipeline.archive.parts import ARCHIVE_COLUMNS
from pipeline.errors import InconclusiveError, PipelineUsageError
from pipeline.folders import Where, understood
from pipeline.locations import S3, Location, ObjectPath
from pipeline.object_store import ObjectFolder
from pipeline.objects.errors import shown

LOG: Final = "_delta_log"
COMPACTED: Final = "_table"
"""For files of compaction: readers of folders of Parquet files, and a vacuum of others, pass by such a name."""

DATE: Final = "date"
PARTITIONS: Final = ["topic", DATE]
TABLE_COLUMNS: Final = ARCHIVE_COLUMNS.append(pa.field(DATE, pa.date32()))
FILE_COLUMNS: Final = pa.schema([each for each in ARCHIVE_COLUMNS if each.name != "topic"])
"""The columns in a file; the others stand in the table's log."""

PLACE: Final = "physicalOffset"
CHECKPOINT_EVERY: Final = 20
"""Versions."""

LOG_DAYS: Final = 30
"""Versions that were the newest so long ago are forgotten."""

_APPLICATION: Final = "dledger-archive"
"""Under this name the log says up to which entry the table holds the archive."""

_PROPERTIES: Final = {
    # Rows come from the archive; nobody else takes some away.
    "delta.appendOnly": "true",
    # For a vacuum of other programs, which does not know that manifests list what compaction has replaced.
    "delta.deletedFileRetentionDuration": "interval 36500 days",
    "delta.logRetentionDuration": f"interval {LOG_DAYS} days",
}
_REQUEST: Final = "60s"
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")


class OvertakenError(Exception):
    """Another run has made the next version."""


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file to be listed.

    Attributes:
        path: relative to the archive.
        date: YYYY-MM-DD.
        statistics: of its rows, as JSON.
    """

    path: str
    topic: str
    date: str
    bytes: int
    statistics: str


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file that a version lists.

    Attributes:
        path: relative to the archive.
        date: YYYY-MM-DD.
        first_place: the first of its rows' places in the log; -1: not known.
    """

    path: str
    topic: str
    date: str
    bytes: int
    rows: int
    first_place: int

    @property
    def partition(self) -> dict[str, str | None]:
        """The values of the table's partition columns."""
        return {"topic": self.topic, DATE: self.date}


class TableVersion:
    """One version of an archive's table; `open_table` gives the newest one.

    Attributes:
        archive: where it is.
    """

    def __init__(self, archive: Location, table: Any) -> None:
        self.archive = archive
        self._table = table

    @property
    def number(self) -> int:
        """The version's number."""
        return int(self._table.version())

    @property
    def covered_index(self) -> int:
        """The last entry of the log whose archived rows the table has; 0: it has none."""
        with _plain_errors(self.archive):
            return int(self._table.transaction_version(_APPLICATION) or 0)

    def files(self) -> list[TableFile]:
        """Return the files that this version lists, in the order of their rows' first places in the log."""
        with _plain_errors(self.archive):
            listed = pa.table(self._table.get_add_actions(flatten=True)).to_pylist()
        found = [
            TableFile(
                unquote(each["path"]),
                each["partition.topic"],
                str(each[f"partition.{DATE}"]),
                each["size_bytes"],
                each["num_records"],
                _number(each.get(f"min.{PLACE}")),
            )
            for each in listed
        ]
        return sorted(found, key=lambda file: (file.first_place, file.path))

    def add(self, files: Sequence[NewFile], covered_index: int) -> TableVersion:
        """Make the next version, with more rows: the archive's up to an entry.

        Raises:
            OvertakenError: it is there; nothing was done.
            OSError: the disk or the store failed; whether there is such a version is unknown.
        """
        from deltalake import Transaction

        actions = [_added(each, is_new=True) for each in files]
        return self._commit(
            actions,
            {"lastIndex": str(covered_index)},
            [Transaction(_APPLICATION, covered_index)],
        )

    def replace(self, old: Sequence[TableFile], new: Sequence[NewFile]) -> TableVersion:
        """Make the next version, with the same rows in other files.

        Raises:
            OvertakenError: it is there; nothing was done.
            OSError: the disk or the store failed; whether there is such a version is unknown.
        """
        from deltalake.transaction import RemoveAction

        now = _now_ms()
        removals = [
            RemoveAction(
                each.path,
                data_change=False,
                deletion_timestamp=now,
                size=each.bytes,
                partition_values=each.partition,
            )
            for each in old
        ]
        actions = [*(_added(each, is_new=False) for each in new), *removals]
        return self._commit(actions, {"compacted": str(len(old))}, [])

    def _commit(
        self, actions: list[Any], told: Mapping[str, str], positions: list[Any]
    ) -> TableVersion:
        """Make the next version, or none; durable on return."""
        from deltalake import CommitProperties, PostCommitHookProperties
        from deltalake.exceptions import CommitFailedError

        properties = CommitProperties(
            custom_metadata={"archive": dict(told)},
            max_commit_retries=0,
            app_transactions=positions,
        )
        nothing = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
        _check_conditions(self.archive)
        if isinstance(self.archive, Path):
            _settle(self.archive, self.number)  # whoever made it may have been killed before that
        expected = self.number + 1
        with _plain_errors(self.archive):
            try:
                self._table.create_write_transaction(
                    actions,
                    "append",
                    TABLE_COLUMNS,
                    PARTITIONS,
                    commit_properties=properties,
                    post_commithook_properties=nothing,
                )
            except CommitFailedError as error:
                newest = _opened(self.archive)
                if newest is not None and newest.version() >= expected:
                    raise OvertakenError(f"version {expected} of {self.archive}") from error
                raise
            # Not what came behind it: whoever goes on has seen no more than this.
            made = TableVersion(self.archive, _opened(self.archive, expected))
        if isinstance(self.archive, Path):
            _settle(self.archive, expected)
        if expected % CHECKPOINT_EVERY == 0:
            made.checkpoint()
        return made

    def checkpoint(self) -> None:
        """Write all that this version lists into one file, so that readers need not begin with the first version."""
        with _plain_errors(self.archive):
            self._table.create_checkpoint()
        if isinstance(self.archive, Path):
            _sync(self.archive, f"{self.number:020d}.checkpoint.parquet", "_last_checkpoint")

    def tidy(self) -> None:
        """Write a checkpoint of this version, and remove the log of versions from before LOG_DAYS."""
        self.checkpoint()
        with _plain_errors(self.archive):
            self._table.cleanup_metadata()


def open_table(archive: Where, version: int | None = None) -> TableVersion | None:
    """Open a version of an archive's table; None: there is no table.

    Args:
        archive: the folder.
        version: which one; None: the newest.

    Raises:
        ArchiveError: the table is none of an archive, or has other columns than an archive now.
        InconclusiveError: deltalake is missing.
        PipelineUsageError: no table can be kept in that place.
        OSError: it cannot be read.
    """
    place = supported_place(archive)
    with _plain_errors(place):
        found = _opened(place, version)
    if found is None:
        return None
    _check_is_ours(place, found)
    return TableVersion(place, found)


def open_or_create_table(archive: Where) -> TableVersion:
    """Open an archive's table, or make an empty one; otherwise as `open_table`."""
    found = open_table(archive)
    if found is not None:
        return found
    from deltalake import CommitProperties, DeltaTable
    from deltalake.exceptions import DeltaError

    place = supported_place(archive)
    _check_conditions(place)
    with _plain_errors(place):
        try:
            DeltaTable.create(
                _address(place),
                TABLE_COLUMNS,
                mode="error",
                partition_by=PARTITIONS,
                configuration=_PROPERTIES,
                storage_options=_storage_options(place),
                commit_properties=CommitProperties(max_commit_retries=0),  # else as version 1
            )
        except DeltaError:  # another run was faster
            if _opened(place) is None:
                raise
    if isinstance(place, Path):
        _settle(place, 0)
    made = open_table(archive)
    assert made is not None, f"{archive} has no table that was just made"
    return made


def supported_place(archive: Where) -> Location:
    """Return where an archive is, if it can have a table there; nothing is asked yet.

    Raises:
        PipelineUsageError: it cannot.
        InconclusiveError: deltalake is missing.
    """
    place = understood(archive)
    if isinstance(place, ObjectPath) and place.scheme != S3:
        raise PipelineUsageError(
            f"no table can be kept in {place}: there are tables in folders of this machine and in s3:// only"
        )
    try:
        import_module("deltalake")
    except ImportError as error:
        raise InconclusiveError(
            f"a table needs deltalake, which is not installed (extra `delta`): {error}"
        ) from error
    return place.absolute() if isinstance(place, Path) else place


def _opened(place: Location, version: int | None = None) -> Any:
    """Return a version of a table; None: there is no table."""
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    if isinstance(place, Path) and not (place / LOG).is_dir():
        return None  # deltalake makes a folder that it does not find
    try:
        return DeltaTable(_address(place), version=version, storage_options=_storage_options(place))
    except TableNotFoundError:
        return None


def _check_is_ours(place: Location, table: Any) -> None:
    """Refuse a table with other columns, or other partitions.

    Raises:
        ArchiveError: it has.
    """
    columns = pa.schema(table.schema().to_arrow())
    partitions = table.metadata().partition_columns
    names_and_types = [(each.name, each.type) for each in columns]
    if names_and_types != [(each.name, each.type) for each in TABLE_COLUMNS] or (
        partitions != PARTITIONS
    ):
        raise ArchiveError(
            f"{place}/{LOG} is a table with other columns than an archive's: it is none of ours, or of another "
            f"version; without {LOG} and {COMPACTED} it is built again from the manifests"
        )


def _address(place: Location) -> str:
    return str(place)


def _storage_options(place: Location) -> dict[str, str] | None:
    """Return what deltalake is told of a store; accounts it finds in the environment, as the other libraries do."""
    if isinstance(place, Path):
        return None
    options = {"aws_conditional_put": "etag", "timeout": _REQUEST, "connect_timeout": _REQUEST}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        options["aws_endpoint"] = endpoint
        options["allow_http"] = str(endpoint.startswith("http://")).lower()
    return options


def _check_conditions(place: Location) -> None:
    """Refuse a store that lets a second writer write over the first one."""
    if isinstance(place, ObjectPath):
        ObjectFolder(place).check_conditions()


def _settle(archive: Path, version: int) -> None:
    """Make a version of the log durable; deltalake leaves that to the machine."""
    _sync(archive, f"{version:020d}.json")
    PosixDisk(archive).sync_folder("")


def _sync(archive: Path, *names: str) -> None:
    """Make files of the log durable."""
    disk = PosixDisk(archive)
    for name in names:
        file = disk.open(f"{LOG}/{name}")
        try:
            file.sync()
        finally:
            file.close()
    disk.sync_folder(LOG)


def _added(file: NewFile, *, is_new: bool) -> Any:
    from deltalake.transaction import AddAction

    partition = {"topic": file.topic, DATE: file.date}
    return AddAction(file.path, file.bytes, partition, _now_ms(), is_new, file.statistics)


def _number(value: int | None) -> int:
    return -1 if value is None else value


def _now_ms() -> int:
    return int(time.time() * 1000)


@contextmanager
def _plain_errors(place: Location) -> Iterator[None]:
    """Let errors of deltalake out as OSError: one line that names the place, with no secret in it."""
    from deltalake.exceptions import DeltaError

    try:
        yield
    except (DeltaError, OSError) as error:
        lines = _COLOURS.sub("", shown(str(error))).splitlines()
        text = " ".join(line.strip(" ↳") for line in lines if line.strip(" ↳"))
        raise OSError(f"the table in {place}: {text or type(error).__name__}") from None
