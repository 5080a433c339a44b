"""A name node in this process, for tests: what hdfs-native's client does with one, and nothing of its wire.

What it believes is Hadoop's description: a name is there from its creation on, and its content once it is closed; a
rename is one step, and without `overwrite` none where its target exists; folders are made, and stay when empty. What it
is not: HDFS (that is `tests/integration/pipeline/test_hdfs.py`). With DLEDGER_HDFS the same tests ask a real one.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import NamedTuple

import pytest

REFUSED = (
    'RPCError("org.apache.hadoop.security.AccessControlException", '
    '"Permission denied: user=billing, access=WRITE, inode=\\"/closed\\"\\n\\tat org.apache.hadoop.X.check(X.java:1)")'
)
"""A refusal as hdfs-native tells it."""


class Status(NamedTuple):
    path: str
    isdir: bool
    length: int


class WriteOptions(NamedTuple):
    overwrite: bool = False
    create_parent: bool = False


class NameNode:
    """Names and contents of one cluster; None stands for a folder.

    Attributes:
        lost_renames: so many of the next renames are done, and not answered.
    """

    def __init__(self) -> None:
        self.names: dict[str, bytes | None] = {"": None}
        self.lock = threading.Lock()
        self.lost_renames = 0

    def create(self, path: str, options: WriteOptions) -> Writer:
        if path.startswith("/closed"):
            raise RuntimeError(REFUSED)
        with self.lock:
            if path in self.names and not options.overwrite:
                raise FileExistsError(path)
            folder = path.rpartition("/")[0]
            if folder not in self.names and not options.create_parent:
                raise FileNotFoundError(folder)
            while folder not in self.names:
                self.names[folder] = None
                folder = folder.rpartition("/")[0]
            self.names[path] = b""
        return Writer(self, path)

    def rename(self, source: str, target: str, overwrite: bool) -> None:
        with self.lock:
            if source not in self.names:
                raise FileNotFoundError(source)
            if target in self.names and not overwrite:
                raise FileExistsError(target)
            self.names[target] = self.names.pop(source)
            if self.lost_renames:
                self.lost_renames -= 1
                raise OSError("connection reset")

    def delete(self, path: str) -> bool:
        with self.lock:
            return self.names.pop(path, None) is not None

    def get_file_info(self, path: str) -> Status:
        with self.lock:
            if path.rstrip("/") not in self.names:
                raise FileNotFoundError(path)
            content = self.names[path.rstrip("/")]
        return Status(path, content is None, len(content or b""))

    def read(self, path: str) -> io.BytesIO:
        if self.get_file_info(path).isdir:
            raise IsADirectoryError(path)
        return io.BytesIO(self.names[path] or b"")

    def list_status(self, path: str, recursive: bool) -> Iterator[Status]:
        folder = path.rstrip("/")
        self.get_file_info(folder)
        with self.lock:
            below = [each for each in sorted(self.names) if each.startswith(f"{folder}/")]
        for each in below:
            if recursive or "/" not in each[len(folder) + 1 :]:
                yield self.get_file_info(each)


class Writer:
    """An open file: what is written is in it once it is closed, as far as others see."""

    def __init__(self, node: NameNode, path: str) -> None:
        self._node, self._path, self._parts = node, path, [b""]

    def write(self, content: bytes) -> int:
        self._parts.append(bytes(content))
        return len(content)

    def close(self) -> None:
        with self._node.lock:
            if self._path in self._node.names:
                self._node.names[self._path] = b"".join(self._parts)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def name_node() -> Iterator[NameNode]:
    """Have every client of hdfs-native be one of this name node's; whether that is installed does not matter."""
    node = NameNode()
    module = ModuleType("hdfs_native")
    module.Client = lambda _url: node  # type: ignore[attr-defined]
    module.WriteOptions = WriteOptions  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "hdfs_native", module)
        yield node
