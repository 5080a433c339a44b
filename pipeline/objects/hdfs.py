"""Files of HDFS, through hdfs-native, which needs neither Java nor Hadoop's programs here (adr/0268).

A file has its name before it is whole, so what must appear whole is written aside and renamed. The name node does a
rename in one step, writes it down before it answers, and refuses one whose target exists. What lists and reads shows
is what the name node knows. Name services, Kerberos and protection of data are as core-site.xml and hdfs-site.xml in
HADOOP_CONF_DIR say; the account is that of the ticket, or HADOOP_USER_NAME.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import lru_cache
from typing import Any
from uuid import uuid4

import pyarrow as pa

from pipeline.errors import InconclusiveError
from pipeline.locations import ObjectPath
from pipeline.objects.python_files import readable, writable


class HdfsObjects:
    """Files of the clusters that places name; see `Objects`."""

    condition = "that a rename replaces nothing"

    def listed(self, place: ObjectPath, *, recursive: bool) -> list[str]:
        """Return what is in a folder, relative to it."""
        prefix = _path(place).removesuffix("/") + "/"
        try:
            _client(place).get_file_info(_path(place))
        except FileNotFoundError:
            return []
        # What vanishes while it is listed is an error: half a list looks like a whole one.
        found = _client(place).list_status(_path(place), recursive)
        return [each.path.removeprefix(prefix) for each in found if not recursive or not each.isdir]

    def size_bytes(self, place: ObjectPath) -> int:
        """Return the size of a file."""
        found = _client(place).get_file_info(_path(place))
        if found.isdir:
            raise FileNotFoundError(f"{place} is a folder")
        return int(found.length)

    def source(self, place: ObjectPath) -> pa.NativeFile:
        """Open a file for reading."""
        return readable(_client(place).read(_path(place)), place)

    def sink(self, place: ObjectPath) -> pa.NativeFile:
        """Open a new file for writing."""
        return writable(_created(place), place)

    def put_new(self, place: ObjectPath, content: bytes) -> None:
        """Give a name to a content, unless it has one."""
        aside = place.parent / f".{place.name}.{uuid4().hex}"
        try:
            with _created(aside) as file:
                file.write(content)
            _client(place).rename(_path(aside), _path(place), overwrite=False)
        except BaseException:
            with suppress(OSError, RuntimeError):  # what failed first is what is told
                _client(place).delete(_path(aside))
            raise

    def remove(self, place: ObjectPath) -> None:
        """Remove a file, if it is there."""
        with suppress(FileNotFoundError):
            _client(place).delete(_path(place))


def _path(place: ObjectPath) -> str:
    return f"/{place.key}"


def _created(place: ObjectPath) -> Any:
    """Return a new file, open for writing, in a folder that is made if need be."""
    client = _client(place)
    from hdfs_native import WriteOptions

    return client.create(_path(place), WriteOptions(overwrite=False, create_parent=True))


def _client(place: ObjectPath) -> Any:
    account = os.environ.get("HADOOP_USER_NAME")
    return _client_for(os.getpid(), place.bucket, os.environ.get("HADOOP_CONF_DIR"), account)


@lru_cache(maxsize=4)
def _client_for(_pid: int, authority: str, _folder: str | None, _account: str | None) -> Any:
    """Return the client of a process for a cluster; a forked one must not go on with its parent's threads."""
    try:
        from hdfs_native import Client
    except ImportError as error:
        raise InconclusiveError(
            f"hdfs:// needs hdfs-native, which is not installed (extra `hdfs`): {error}"
        ) from error
    return Client(f"hdfs://{authority}")
