"""Manifests of an archive: a file counts only if one of them lists it.

An archive is a folder:

    topic=NAME/date=YYYY-MM-DD/part-FIRST-LAST-*.parquet   rows; partition columns as Spark writes them
    _manifests/<last index, 20 digits>.json                one per stretch of the log, written last
    _staging/                                              work of a run that goes on, or was ended;
                                                           its file `lock` is held by the one run that writes

In an object store nothing is renamed and nobody has a lock (adr/0244), so names say more there:

    topic=NAME/date=YYYY-MM-DD/part-FIRST-LAST-ATTEMPT-*.parquet   written where they stay
    _manifests/<last index before it, 20 digits>.after.json        created only if there is none: of two runs that
                                                                   go on from one entry, one gets the name

In a folder, a manifest is written aside, synced, renamed, and its folder synced, after all files that it lists were.
So a name in `_manifests` stands for whole files, and a Parquet file that no manifest lists is left over from a run that
was ended; the next run removes it. Manifests follow each other without a gap from the log's first entry; or from
the entry that an empty file beside them names (20 digits and `.begins`), where the log had lost its beginning before.

Layout, JSON, one object:

    version            1
    brokerName         name of the group, "" when it was not given
    firstIndex, lastIndex                 entries of the log, both included
    firstPosition, endPosition            bytes of the log; the end excluded
    firstChainCrc      chain CRC of the entry before the first (0: none): which log it goes on
    lastChainCrc       chain CRC of the last entry: it identifies the whole log up to there
    knownBy            how it was known to be committed
    rows               records in all
    queues             [{topic, queueId, count, minOffset, maxOffset, hashXor, hashSum}]
    files              [{path, bytes, rows, crc32c}], path relative to the archive
    crc32c             of the object without this field, as `json.dumps(..., sort_keys=True)` writes it
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from crc32c import crc32c

from dledger.raft.ids import Index, Position
from dledger.storage.posix import PosixDisk
from dledger.storage.whole_file import replace_whole
from dledger_mq.message.numbers import QueueOffset
from pipeline.errors import InconclusiveError, PipelineError, PipelineUsageError
from pipeline.folders import Folder, Where, open_folder
from pipeline.object_store import ObjectFolder
from pipeline.scan.plan import CommittedBound, plan_scan
from pipeline.scan.stores import Store

VERSION: Final = 1
MANIFESTS: Final = "_manifests"
STAGING: Final = "_staging"
_DIGITS: Final = 20
_NAME: Final = re.compile(r"[0-9]{20}(\.after)?\.json")
_AFTER: Final = ".after.json"
BEGINNING_SUFFIX: Final = ".begins"
_BEGINNING: Final = re.compile(r"[0-9]{20}\.begins")
_CHUNK_BYTES: Final = 4 * 1024 * 1024
_UNSAFE: Final = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{\[\]^]""")
"""Those of Hive and Spark (`ExternalCatalogUtils.escapePathName`), and 0."""


class ArchiveError(PipelineError):
    """The archive is not as manifests say, or belongs to another log."""


@dataclass(frozen=True, slots=True)
class QueueTotals:
    """The content of one queue in a stretch of the log.

    Attributes:
        min_offset, max_offset: queue offsets, both included.
        hash_xor, hash_sum: over the CRC32C of each record as it stands in the log, so that two replicas, or
            a log and an archive, can be compared; the sum as decimal text.
    """

    topic: str
    queue_id: int
    count: int
    min_offset: QueueOffset
    max_offset: QueueOffset
    hash_xor: int
    hash_sum: str


def merged(parts: Iterable[QueueTotals]) -> tuple[QueueTotals, ...]:
    """Merge totals of parts of a log into totals of all of it, one for each queue, sorted."""
    found: dict[tuple[str, int], QueueTotals] = {}
    for each in parts:
        known = found.get((each.topic, each.queue_id))
        if known is not None:
            each = QueueTotals(
                each.topic,
                each.queue_id,
                known.count + each.count,
                min(known.min_offset, each.min_offset),
                max(known.max_offset, each.max_offset),
                known.hash_xor ^ each.hash_xor,
                str(int(known.hash_sum) + int(each.hash_sum)),
            )
        found[each.topic, each.queue_id] = each
    return tuple(found[key] for key in sorted(found))


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """One Parquet file; `path` is relative to the archive."""

    path: str
    bytes: int
    rows: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """One stretch of the log in the archive; the fields of the module's layout."""

    broker_name: str
    first_index: Index
    last_index: Index
    first_position: Position
    end_position: Position
    first_chain_crc: int
    last_chain_crc: int
    known_by: str
    rows: int
    queues: tuple[QueueTotals, ...]
    files: tuple[ArchivedFile, ...]


Part = TypeVar("Part", QueueTotals, ArchivedFile, Manifest)
"""A part of a manifest's layout, or all of it."""


def load_manifests(archive: Where) -> list[Manifest]:
    """Load all manifests of an archive in the order of the log; none for a new folder.

    Raises:
        ArchiveError: one is damaged, of another version, or missing in between.
        OSError: they cannot be read.
    """
    folder = open_folder(archive)
    every = folder.names(MANIFESTS)
    # One that follows entry N stands behind one that ends with it.
    names = sorted(
        (each for each in every if _NAME.fullmatch(each)),
        key=lambda name: (name[:_DIGITS], name.endswith(_AFTER)),
    )
    found: list[Manifest] = []
    for name in names:
        path = folder.full(f"{MANIFESTS}/{name}")
        manifest = _read(folder, f"{MANIFESTS}/{name}")
        after, number = (found[-1].last_index if found else 0), int(name[:_DIGITS])
        expected = after + 1
        if name.endswith(_AFTER):
            is_named = number == after
            expected = expected if found else manifest.first_index
        else:
            is_named = number == manifest.last_index
            expected = expected if found else _first_index(folder, every)
        if manifest.first_index != expected or not is_named:
            raise ArchiveError(
                f"{path}: entries {manifest.first_index} to {manifest.last_index}, where entry "
                f"{expected} should come next: a manifest is missing or misnamed"
            )
        if found and manifest.first_chain_crc != found[-1].last_chain_crc:
            raise ArchiveError(f"{path}: it goes on another log than the one before")
        found.append(manifest)
    return found


def manifests_there(archive: Where) -> list[Manifest]:
    """Load all manifests of an archive that has to be there, as `load_manifests` does.

    Raises:
        PipelineUsageError: there is none.
    """
    found = load_manifests(archive)
    if not found:
        raise PipelineUsageError(f"{archive} is no archive: no manifest is in it")
    return found


def _first_index(folder: Folder, every: Iterable[str]) -> int:
    """Return the entry with which an archive begins, as `note_beginning` wrote it; else the log's first one.

    Raises:
        ArchiveError: two are named.
    """
    names = [each for each in every if _BEGINNING.fullmatch(each)]
    if len(names) > 1:
        raise ArchiveError(
            f"{folder.full(MANIFESTS)} names several beginnings: {', '.join(sorted(names))}"
        )
    return int(names[0][:_DIGITS]) if names else 1


def note_beginning(archive: str | Path, first_index: Index) -> None:
    """Note, durably, that an archive without manifests will begin later than with entry 1.

    Raises:
        DiskFullError: there was no room; nothing is noted.
        OSError: the disk failed.
    """
    disk = PosixDisk(archive)
    disk.make_folder(MANIFESTS)
    for old in (Path(archive) / MANIFESTS).glob(
        "*" + BEGINNING_SUFFIX
    ):  # of a run that ended before its manifest
        disk.remove(f"{MANIFESTS}/{old.name}")
    replace_whole(disk, MANIFESTS, f"{first_index:0{_DIGITS}d}{BEGINNING_SUFFIX}", b"")


def _read(folder: Folder, name: str) -> Manifest:
    """Load one manifest; its checksum covers every other field, so a hand-edited one is refused."""
    path = folder.full(name)
    try:
        content = json.loads(folder.read(name).decode())
        written = content.pop("crc32c")
        if content.get("version") != VERSION:
            raise ArchiveError(f"{path}: version {content.get('version')}, known is {VERSION}")
        if _crc(content) != written:
            raise ArchiveError(f"{path}: its crc32c is {_crc(content)}, it says {written}")
        queues = tuple(_from_json(QueueTotals, each) for each in content["queues"])
        files = tuple(_from_json(ArchivedFile, each) for each in content["files"])
        manifest = _from_json(Manifest, content | {"queues": queues, "files": files})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArchiveError(f"{path} is no manifest: {error!r}") from error
    return manifest


def write_manifest(archive: str | Path, manifest: Manifest) -> Path:
    """Write a manifest; durable on return. Everything that it lists is durable already.

    Raises:
        DiskFullError: there was no room; there is no such manifest.
        OSError: the disk failed; whether there is such a manifest is unknown.
    """
    disk = PosixDisk(archive)
    disk.make_folder(MANIFESTS)
    name = f"{manifest.last_index:0{_DIGITS}d}.json"
    replace_whole(disk, MANIFESTS, name, _layout(manifest))
    return Path(archive) / MANIFESTS / name


def create_manifest(archive: ObjectFolder, manifest: Manifest, after: int) -> str:
    """Write a manifest into an object store, unless one follows that entry already; durable on return.

    Args:
        archive: the archive.
        manifest: everything that it lists is durable already.
        after: the last entry of the manifest before it; 0: it is the first one.

    Raises:
        FileExistsError: another run's manifest follows that entry.
        OSError: the store failed; whether there is such a manifest is unknown.
    """
    name = f"{MANIFESTS}/{after:0{_DIGITS}d}{_AFTER}"
    archive.create(name, _layout(manifest))
    return name


def _layout(manifest: Manifest) -> bytes:
    content = {"version": VERSION, **_fields(asdict(manifest))}
    content["crc32c"] = _crc(content)
    return json.dumps(content, indent=1).encode() + b"\n"


def _crc(content: Mapping[str, object]) -> int:
    value: int = crc32c(json.dumps(content, sort_keys=True).encode())
    return value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _fields(value: Mapping[str, object]) -> dict[str, object]:
    return {_camel(name): _to_json(each) for name, each in value.items()}


def _to_json(value: object) -> object:
    if isinstance(value, dict):
        return _fields(value)
    if isinstance(value, (list, tuple)):
        return [_to_json(each) for each in value]
    return value


def _from_json(kind: type[Part], content: Mapping[str, Any]) -> Part:
    return kind(**{each.name: content[_camel(each.name)] for each in fields(kind)})


def listed_files(archive: Where, topics: frozenset[str] | None = None) -> list[str]:
    """Return the full names of the Parquet files that manifests list: what a reader of the archive reads.

    Args:
        archive: the folder.
        topics: only those with rows of these topics; None: all.

    Raises:
        ArchiveError: a manifest is damaged, or a file is missing or has another size.
    """
    return listed_paths(
        archive,
        (
            each
            for manifest in load_manifests(archive)
            for each in manifest.files
            if topics is None or topic_of(each.path) in topics
        ),
    )


def listed_paths(archive: Where, files: Iterable[ArchivedFile]) -> list[str]:
    """Return the full names of files that manifests list.

    Raises:
        ArchiveError: one is missing or has another size.
    """
    folder = open_folder(archive)
    return [_checked(folder, each) for each in files]


def topic_of(path: str) -> str:
    """Return the topic in the path of an archived file, as Spark's partition folders spell it."""
    folder = path.partition("/")[0].removeprefix("topic=")
    pieces = folder.split("%")
    octets = pieces[0].encode()
    for piece in pieces[1:]:
        try:
            octets += bytes([int(piece[:2], 16)]) + piece[2:].encode()
        except ValueError:
            octets += b"%" + piece.encode()
    return octets.decode(errors="replace")


def folder_of(topic: str, date: str) -> str:
    """Return the folder of a topic's rows of one day: partition columns as Spark writes and reads them.

    What means something in a path, or to readers of such folders, stands there as % and two hex digits; after
    `topic=` no name is a path of its own.
    """
    return f"topic={_UNSAFE.sub(lambda found: f'%{ord(found[0]):02X}', topic)}/date={date}"


def _checked(archive: Folder, file: ArchivedFile) -> str:
    path = archive.full(file.path)
    try:
        size = archive.size_bytes(file.path)
    except FileNotFoundError:
        raise ArchiveError(f"{path} is missing, and a manifest lists it") from None
    if size != file.bytes:
        raise ArchiveError(f"{path} has {size} bytes, the manifest says {file.bytes}")
    return path


def check_contents(archive: Where, manifests: list[Manifest]) -> None:
    """Read every listed file and compare its checksum.

    Raises:
        ArchiveError: names the first file that is not as it was written.
    """
    folder = open_folder(archive)
    for manifest in manifests:
        for file in manifest.files:
            path = _checked(folder, file)
            found = file_crc(folder, file.path)
            if found != file.crc32c:
                raise ArchiveError(
                    f"{path}: its crc32c is {found:#010x}, the manifest says {file.crc32c:#010x}"
                )


def file_crc(folder: Folder, path: str) -> int:
    """Return the CRC32C of a file."""
    total = 0
    with folder.source(path) as file:
        while chunk := file.read(_CHUNK_BYTES):
            total = crc32c(chunk, total)
    return total


def may_delete(archive: Where, store: str | Path, position: Position) -> bool:
    """Return whether the log may be deleted before a position; retention asks, and deletes nothing without a yes.

    True only when manifests without a gap reach at least that far, every file that they list is there and has
    its checksum, and the store's log is the very one that they were made from. Whatever stands in the way of
    knowing that is a no.
    """
    try:
        manifests = load_manifests(archive)
        if not manifests or position > manifests[-1].end_position:
            return position <= 0
        check_contents(archive, manifests)
        check_same_log(manifests[-1], Store(store))
    except (PipelineError, OSError):
        return False
    return True


def check_same_log(manifest: Manifest, store: Store) -> None:
    """Refuse a store whose log is not the one that a manifest was made from.

    Raises:
        ArchiveError: it is another log.
        InconclusiveError: the store does not reach so far.
    """
    plan = plan_scan(store, CommittedBound(manifest.last_index, "a manifest", is_exact=False))
    if plan.end.index < manifest.last_index:
        raise InconclusiveError(
            f"{store.path}: its log ends at entry {plan.end.index}, the archive goes to {manifest.last_index}"
        )
    if plan.end.crc != manifest.last_chain_crc or plan.end.position != manifest.end_position:
        raise ArchiveError(
            f"{store.path} is another log than the archive's: entry {manifest.last_index} differs "
            f"(chain crc {plan.end.crc or 0:#010x}, the archive has {manifest.last_chain_crc:#010x})"
        )
