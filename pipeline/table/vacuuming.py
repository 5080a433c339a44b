"""Files that no version reads any more are removed: of those that compaction has written, and no others.

What manifests list lies elsewhere, and is compared with what is to be removed all the same. A file goes when it is
certain that nobody needs it: a version that is there has taken it out of the table, longer ago than is kept; or the
version that alone could have listed it is there, and does not; or that version is forgotten, and so is everything that
read the file.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from pipeline.archive.manifests import ArchiveError, load_manifests
from pipeline.folders import Folder, LocalFolder, Where, open_folder
from pipeline.object_store import ObjectFolder
from pipeline.table.compacting import table_there
from pipeline.table.delta import COMPACTED, LOG, LOG_DAYS

DAY_MS: Final = 86_400_000
KEEP_MS: Final = 7 * DAY_MS
_WRITTEN_BEHIND: Final = re.compile(r"/([0-9]{20})-[0-9a-f]{32}\.zstd\.parquet$")
"""The version that compaction had read when it wrote a file; only the next one can list it first."""

_COMMIT: Final = re.compile(r"([0-9]{20})\.json")


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """The result: how many files were removed, and how many bytes they had."""

    files: int
    bytes: int


def vacuum(archive: Where, keep_ms: int = KEEP_MS) -> Vacuumed:
    """Remove files of compaction that no version of late reads, and what killed runs left.

    Args:
        archive: the folder.
        keep_ms: versions that were the newest since then can still be read; LOG_DAYS at most.

    Raises:
        PipelineUsageError: there is no table.
        ArchiveError: a manifest is damaged.
        OSError: the disk or the store failed; some files may be removed.
    """
    assert 0 <= keep_ms <= LOG_DAYS * DAY_MS, f"{keep_ms} ms are not kept"
    folder = open_folder(archive)
    # Listed first: what comes later is of a version that is not read here.
    there = _compacted_files(folder)
    table = table_there(archive)
    listed = {file.path for file in table.files()}
    useless = list(_useless(folder, set(there) - listed, table.number, keep_ms))
    _check_not_archived(archive, useless)
    size = 0
    for path in useless:
        size += folder.size_bytes(path)
        if isinstance(folder, ObjectFolder):
            folder.remove(path)
        else:
            (folder.path / path).unlink()
    table.tidy()
    return Vacuumed(len(useless), size)


def _compacted_files(folder: LocalFolder | ObjectFolder) -> list[str]:
    if isinstance(folder, ObjectFolder):
        return folder.files(COMPACTED)
    found = (folder.path / COMPACTED).rglob("*.parquet")
    return [str(path.relative_to(folder.path)) for path in found]


def _useless(folder: Folder, unlisted: Iterable[str], newest: int, keep_ms: int) -> Iterator[str]:
    """Yield those files that the newest version does not list and that nobody needs."""
    behind = {path: _WRITTEN_BEHIND.search(path) for path in unlisted}
    candidates = {
        path: int(found[1]) + 1
        for path, found in behind.items()
        if found and int(found[1]) < newest
    }
    if not candidates:
        return
    commits = _commits(folder, min(candidates.values()), newest)
    taken_out = {path: at_ms for each in commits.values() for path, at_ms in each.removed.items()}
    now_ms = int(time.time() * 1000)
    for path, version in sorted(candidates.items()):
        if path in taken_out:
            if now_ms - taken_out[path] >= keep_ms:
                yield path
        elif version not in commits or path not in commits[version].added:
            yield path


@dataclass(frozen=True, slots=True)
class _Commit:
    """The paths that a version lists first, and those that it lists no more, with the time in ms."""

    added: frozenset[str]
    removed: dict[str, int]


def _commits(folder: Folder, first: int, last: int) -> dict[int, _Commit]:
    """Read the versions of a range that are not forgotten."""
    found = {}
    for name in folder.names(LOG):
        number = _COMMIT.fullmatch(name)
        if number and first <= int(number[1]) <= last:
            found[int(number[1])] = _commit(folder.read(f"{LOG}/{name}"))
    return found


def _commit(content: bytes) -> _Commit:
    actions: list[dict[str, Any]] = [json.loads(line) for line in content.splitlines() if line]
    return _Commit(
        frozenset(unquote(each["add"]["path"]) for each in actions if "add" in each),
        {
            unquote(each["remove"]["path"]): int(each["remove"]["deletionTimestamp"])
            for each in actions
            if "remove" in each
        },
    )


def _check_not_archived(archive: Where, paths: Iterable[str]) -> None:
    archived = {file.path for manifest in load_manifests(archive) for file in manifest.files}
    wrong = sorted(archived & set(paths))
    if wrong:
        raise ArchiveError(
            f"{archive}: manifests list {wrong[0]}, which compaction has not written"
        )
