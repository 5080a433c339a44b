"""Where files may be kept, as text says it: a path on this machine, or a place in an object store or in HDFS.

This is about names alone, so it needs no library and asks nobody; `pipeline.folders` reads and writes. Credentials are
no part of a location: options and command lines stand in plans, logs and lists of processes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from pipeline.errors import PipelineUsageError

S3: Final = "s3"
GS: Final = "gs"
HDFS: Final = "hdfs"
S3_SCHEMES: Final = (S3, "s3a", "s3n")
"""Spark says s3a, everybody else s3, old jobs s3n; all mean the same objects."""

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_STORES: Final = {
    S3: re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"),
    GS: re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]"),
    HDFS: re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(:[0-9]{1,5})?"),
}
"""Names of stores by scheme: a bucket; or a name node with its port, or a name service."""

_CREDENTIALS: Final = {
    S3: "the environment (AWS_ACCESS_KEY_ID, ...), a profile or the machine's role",
    GS: "the environment (GOOGLE_APPLICATION_CREDENTIALS), gcloud or the machine's service account",
    HDFS: "the environment (HADOOP_USER_NAME) or a Kerberos ticket",
}


class LocationError(PipelineUsageError):
    """A text names no place where files can be kept."""


@dataclass(frozen=True, slots=True)
class ObjectPath:
    """A place outside of this machine; `key` has no slash at either end and is empty for all of the store.

    Attributes:
        bucket: of the store; in HDFS the name node as HOST:PORT, or a name service.
        scheme: the kind of store: S3, GS or HDFS.
    """

    bucket: str
    key: str
    scheme: str = S3

    def __truediv__(self, name: str) -> ObjectPath:
        key = f"{self.key}/{name}" if self.key else name
        return ObjectPath(self.bucket, key, self.scheme)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.path}"

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> ObjectPath:
        """The folder around it."""
        return ObjectPath(self.bucket, self.key.rpartition("/")[0], self.scheme)

    @property
    def path(self) -> str:
        """Bucket and key, as libraries want them."""
        return f"{self.bucket}/{self.key}" if self.key else self.bucket


Location: TypeAlias = Path | ObjectPath


def location(text: str) -> Location:
    """Read `/a/b`, `file:/a/b` or `s3://bucket/a/b`; Hadoop's paths are not decoded, and so are these.

    Raises:
        LocationError: it is something else, or has credentials in it; then the text is not repeated.
    """
    found = _SCHEME.match(text)
    if found is None:
        return Path(text)
    scheme, rest = found[1].lower(), text[found.end() :]
    if scheme == "file":
        path = rest.removeprefix("//")
        if path.startswith("/"):
            return Path(path)
    kind = S3 if scheme in S3_SCHEMES else scheme
    if set(rest) & set("@?"):  # a secret may have a slash, so it is looked for everywhere
        raise LocationError(
            f"a place in {scheme}:// with a user, a secret or a query in it would show them in plans and logs: "
            f"credentials come from {_CREDENTIALS.get(kind, 'the environment')}"
        )
    if kind in _STORES and rest.startswith("//"):
        bucket, _, key = rest.removeprefix("//").partition("/")
        names = [name for name in key.split("/") if name]
        # The name node takes no colon in a name.
        unfit = "#:" if kind == HDFS else "#"
        is_plain = not {".", ".."} & set(names) and not set(key) & set(unfit)
        if _STORES[kind].fullmatch(bucket) and is_plain:
            return ObjectPath(bucket, "/".join(names), kind)
    raise LocationError(
        f"{text[:200]!r} is neither a folder that the driver sees nor s3://BUCKET/FOLDER (or s3a://), "
        "gs://BUCKET/FOLDER or hdfs://NAMENODE:PORT/FOLDER"
    )


def location_here(text: str) -> Path | None:
    """Return a location that is on this machine; None if it lies elsewhere."""
    try:
        found = location(text)
    except LocationError:
        return None
    return found if isinstance(found, Path) else None


def placed(text: str, default_store: str | None) -> str:
    """Return the whole name of a place that Hadoop would look for in its default file system.

    Args:
        text: as a user gave it; one with a scheme is whole.
        default_store: the default file system, such as "hdfs://nn:8020"; None: nobody knows.
    """
    if default_store is None or default_store.startswith("file:") or _SCHEME.match(text):
        return text
    # Only the file system knows where a name begins that has no slash in front; so it is no location.
    store = (
        default_store.rstrip("/") if text.startswith("/") else default_store.partition(":")[0] + ":"
    )
    return f"{store}{text}"
