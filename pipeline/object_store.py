"""Files in an object store that speaks S3: pyarrow reads and writes them, s3fs does what pyarrow lacks.

What the pipeline builds on is this (adr/0244): a content appears whole or not at all, what was written is listed and
read at once, and `create` gives a name to one content, whoever else tries it at the same time. Nothing is renamed, and
nothing is written over. Credentials, region and endpoint come from where the AWS SDKs look (AWS_ACCESS_KEY_ID,
AWS_PROFILE, AWS_REGION, AWS_ENDPOINT_URL, a machine's role); no error repeats a secret.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import pyarrow as pa

from pipeline.errors import InconclusiveError
from pipeline.locations import ObjectPath

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

PART_BYTES: Final = 8 * 1024 * 1024
"""Sent at a time of a large file, of which a store takes 10 000 parts."""

_SECRETS: Final = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID")
_HIDDEN: Final = "(hidden)"


class ObjectFolder:
    """A folder in a bucket; paths are relative to it. A folder is there as long as something is in it.

    Args:
        place: where it is.
    """

    def __init__(self, place: ObjectPath) -> None:
        self.place = place
        self._takes_conditions = False

    def __str__(self) -> str:
        return str(self.place)

    def full(self, path: str) -> str:
        """Return a file's name for people and for `source_of`."""
        return f"s3://{self._at(path)}"

    def _at(self, path: str) -> str:
        """Return bucket and key of what is in the folder; of the folder itself for an empty path."""
        return (self.place / path).path if path else self.place.path

    def names(self, below: str) -> list[str]:
        """Return the names of what is directly in a folder; nothing when there is no such folder.

        Raises:
            OSError: the store does not answer, or refuses.
        """
        prefix = self._at(below)
        return [path.removeprefix(f"{prefix}/") for path in self._listed(prefix, recursive=False)]

    def files(self, below: str) -> list[str]:
        """Return the paths of all files in a folder and those below it.

        Raises:
            OSError: the store does not answer, or refuses.
        """
        here = f"{self.place.path}/"
        return [path.removeprefix(here) for path in self._listed(self._at(below), recursive=True)]

    def _listed(self, prefix: str, *, recursive: bool) -> list[str]:
        from pyarrow.fs import FileSelector, FileType

        selector = FileSelector(prefix, allow_not_found=True, recursive=recursive)
        with _without_secrets():
            found = _arrow_fs().get_file_info(selector)
        return [each.path for each in found if not recursive or each.type is FileType.File]

    def size_bytes(self, path: str) -> int:
        """Return the size of a file.

        Raises:
            FileNotFoundError: there is none.
            OSError: the store does not answer, or refuses.
        """
        from pyarrow.fs import FileType

        with _without_secrets():
            info = _arrow_fs().get_file_info(self._at(path))
        if info.type is not FileType.File:
            raise FileNotFoundError(f"there is no {self.full(path)}")
        return int(info.size)

    def read(self, path: str) -> bytes:
        """Return the content of a file.

        Raises:
            FileNotFoundError: there is none.
            OSError: the store does not answer, or refuses.
        """
        with self.source(path) as file, _without_secrets():
            return bytes(file.read())

    def source(self, path: str) -> pa.NativeFile:
        """Open a file for reading.

        Raises:
            FileNotFoundError: there is none.
            OSError: the store does not answer, or refuses.
        """
        with _without_secrets():
            return _arrow_fs().open_input_file(self._at(path))

    def sink(self, path: str) -> pa.NativeFile:
        """Open a new file for writing, whose name nobody else has; it is there, and durable, once it is closed.

        Raises:
            OSError: the store does not answer, or refuses.
        """
        with _without_secrets():
            return _arrow_fs().open_output_stream(self._at(path), buffer_size=PART_BYTES)

    def create(self, path: str, content: bytes) -> None:
        """Give a name to a content, durably, unless it has one already.

        Raises:
            FileExistsError: another content has it; this one is nowhere.
            OSError: the store does not answer, refuses, or knows no conditional writes; whether the name has this
                content is unknown.
        """
        self._check_conditions()
        try:
            self._put_new(path, content)
        except OSError:
            # A request that was repeated for want of an answer finds itself.
            if not self._holds(path, content):
                raise

    def _holds(self, path: str, content: bytes) -> bool:
        try:
            return self.read(path) == content
        except OSError:
            return False

    def _put_new(self, path: str, content: bytes) -> None:
        with _without_secrets():
            _fsspec_fs().pipe_file(self._at(path), content, mode="create")

    def _check_conditions(self) -> None:
        """Try once whether the store keeps a first content: some take the condition and do not look at it."""
        if self._takes_conditions:
            return
        probe = f".first-wins-{uuid4().hex}"
        self._put_new(probe, b"first")
        try:
            self._put_new(probe, b"second")
        except FileExistsError:
            self._takes_conditions = True
        finally:
            self.remove(probe)
        if not self._takes_conditions:
            raise OSError(
                f"the store of {self} lets a second writer write over the first one (it ignores If-None-Match): two "
                "runs could destroy each other's work"
            )

    def remove(self, path: str) -> None:
        """Remove a file, if it is there.

        Raises:
            OSError: the store does not answer, or refuses.
        """
        with _without_secrets(), suppress(FileNotFoundError):
            _fsspec_fs().rm_file(self._at(path))


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


@contextmanager
def _without_secrets() -> Iterator[None]:
    """Let errors of the libraries out as OSError, with no secret in their text and none in what they came from."""
    try:
        yield
    except _library_errors() as error:
        raise _plain_kind(error)(shown(str(error) or type(error).__name__)) from None


def _library_errors() -> tuple[type[BaseException], ...]:
    """Return what pyarrow raises, and below s3fs botocore and aiohttp, where those are in use."""
    found: list[type[BaseException]] = [OSError, ValueError, RuntimeError]
    for module, name in (("botocore.exceptions", "BotoCoreError"), ("aiohttp", "ClientError")):
        if module in sys.modules:
            found.append(getattr(sys.modules[module], name))
    return tuple(found)


def _plain_kind(error: BaseException) -> type[OSError]:
    for kind in (FileNotFoundError, FileExistsError, PermissionError):
        if isinstance(error, kind):
            return kind
    return OSError


def shown(text: str) -> str:
    """Return a text of a library without the credentials of this process's environment."""
    for name in _SECRETS:
        secret = os.environ.get(name)
        if secret:
            text = text.replace(secret, _HIDDEN)
    return text
