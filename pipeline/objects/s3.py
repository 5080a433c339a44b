"""Objects of a store that speaks S3: pyarrow reads and writes them, s3fs does what pyarrow lacks (adr/0244).

Credentials, region and endpoint come from where the AWS SDKs look (AWS_ACCESS_KEY_ID, AWS_PROFILE, AWS_REGION,
AWS_ENDPOINT_URL, a machine's role).
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pipeline.errors import InconclusiveError
from pipeline.locations import ObjectPath
from pipeline.objects.api import PART_BYTES

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem


class S3Objects:
    """Objects of the store that this process's environment names; see `Objects`."""

    condition = "If-None-Match"

    def listed(self, place: ObjectPath, *, recursive: bool) -> list[str]:
        """Return what is in a folder, relative to it."""
        from pyarrow.fs import FileSelector, FileType

        selector = FileSelector(place.path, allow_not_found=True, recursive=recursive)
        return [
            each.path.removeprefix(f"{place.path}/")
            for each in _arrow_fs().get_file_info(selector)
            if not recursive or each.type is FileType.File
        ]

    def size_bytes(self, place: ObjectPath) -> int:
        """Return the size of a file."""
        from pyarrow.fs import FileType

        info = _arrow_fs().get_file_info(place.path)
        if info.type is not FileType.File:
            raise FileNotFoundError(f"there is no {place}")
        return int(info.size)

    def source(self, place: ObjectPath) -> pa.NativeFile:
        """Open a file for reading."""
        return _arrow_fs().open_input_file(place.path)

    def sink(self, place: ObjectPath) -> pa.NativeFile:
        """Open a new file for writing."""
        return _arrow_fs().open_output_stream(place.path, buffer_size=PART_BYTES)

    def put_new(self, place: ObjectPath, content: bytes) -> None:
        """Give a name to a content, unless it has one."""
        _fsspec_fs().pipe_file(place.path, content, mode="create")

    def remove(self, place: ObjectPath) -> None:
        """Remove a file, if it is there."""
        with suppress(FileNotFoundError):
            _fsspec_fs().rm_file(place.path)


def _environment() -> tuple[int, str | None, str | None]:
    """Return what a client is made for: a process, an endpoint, a region. A forked process must not go on with one."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return os.getpid(), endpoint, region


def _arrow_fs() -> S3FileSystem:
    return _arrow_fs_for(*_environment())


@lru_cache(maxsize=1)
def _arrow_fs_for(_pid: int, endpoint: str | None, region: str | None) -> S3FileSystem:
    from pyarrow.fs import S3FileSystem

    return S3FileSystem(endpoint_override=endpoint, region=region)


def _fsspec_fs() -> Any:
    return _fsspec_fs_for(*_environment())


@lru_cache(maxsize=1)
def _fsspec_fs_for(_pid: int, _endpoint: str | None, _region: str | None) -> Any:
    try:
        import s3fs
    except ImportError as error:
        raise InconclusiveError(
            f"writing to s3:// needs s3fs, which is not installed (extra `s3`): {error}"
        ) from error
    # At DEBUG it logs what it signs, and a session's token is among that.
    signing = logging.getLogger("botocore")
    if signing.level == logging.NOTSET:
        signing.setLevel(logging.INFO)
    return s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True)
