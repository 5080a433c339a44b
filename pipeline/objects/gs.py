"""Objects of Google Cloud Storage, through Google's own client (adr/0268).

An upload is visible when it is done, and not before; reads and lists see what was written before them; and a request
with `ifGenerationMatch=0` is done only while the name has no object. Credentials come from where Google's libraries
look (GOOGLE_APPLICATION_CREDENTIALS, those of gcloud, the machine's service account); with STORAGE_EMULATOR_HOST
nobody signs.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from pipeline.errors import InconclusiveError
from pipeline.locations import ObjectPath
from pipeline.objects.api import PART_BYTES
from pipeline.objects.python_files import readable, writable

REQUEST_S: Final = 60.0
"""Without a byte, then a request is made again."""
PATIENCE_S: Final = 60.0
"""For how long a request that failed in passing is made again."""


class GsObjects:
    """Objects of the buckets that this process's account may use; see `Objects`."""

    condition = "ifGenerationMatch"

    def listed(self, place: ObjectPath, *, recursive: bool) -> list[str]:
        """Return what is in a folder, relative to it."""
        prefix = f"{place.key}/" if place.key else ""
        delimiter = None if recursive else "/"
        pages = _client().list_blobs(
            place.bucket, prefix=prefix, delimiter=delimiter, **_patiently()
        )
        # Other tools put an empty object with a slash at the end where they see a folder.
        files = [each.name for each in pages if not each.name.endswith("/")]
        folders = [each.removesuffix("/") for each in pages.prefixes]  # known behind the last page
        return [each.removeprefix(prefix) for each in (*files, *folders)]

    def size_bytes(self, place: ObjectPath) -> int:
        """Return the size of a file."""
        return int(_found(place).size)

    def source(self, place: ObjectPath) -> pa.NativeFile:
        """Open a file for reading."""
        file = _found(place).open("rb", chunk_size=PART_BYTES, **_patiently())
        return readable(file, place)

    def sink(self, place: ObjectPath) -> pa.NativeFile:
        """Open a new file for writing."""
        file = _blob(place).open("wb", chunk_size=PART_BYTES, if_generation_match=0, **_patiently())
        return writable(file, place)

    def put_new(self, place: ObjectPath, content: bytes) -> None:
        """Give a name to a content, unless it has one."""
        _blob(place).upload_from_string(
            content,
            content_type="application/octet-stream",
            if_generation_match=0,
            **_patiently(),
        )

    def remove(self, place: ObjectPath) -> None:
        """Remove a file, if it is there."""
        blob = _blob(place)
        from google.api_core.exceptions import NotFound

        with suppress(NotFound):
            blob.delete(**_patiently())


def _blob(place: ObjectPath) -> Any:
    return _client().bucket(place.bucket).blob(place.key)


def _found(place: ObjectPath) -> Any:
    """Return an object as it is now; what is read through it is of this generation, or missing."""
    found = _client().bucket(place.bucket).get_blob(place.key, **_patiently())
    if found is None:
        raise FileNotFoundError(f"there is no {place}")
    return found


def _patiently() -> dict[str, Any]:
    from google.cloud.storage.retry import DEFAULT_RETRY

    return {"timeout": REQUEST_S, "retry": DEFAULT_RETRY.with_timeout(PATIENCE_S)}


def _client() -> Any:
    return _client_for(os.getpid(), os.environ.get("STORAGE_EMULATOR_HOST"))


@lru_cache(maxsize=1)
def _client_for(_pid: int, _endpoint: str | None) -> Any:
    """Return the client of a process; a forked one must not go on with its parent's connections."""
    try:
        from google.cloud import storage
    except ImportError as error:
        raise InconclusiveError(
            f"gs:// needs google-cloud-storage, which is not installed (extra `gs`): {error}"
        ) from error
    # At DEBUG it logs addresses, and whoever has that of an upload may go on with it.
    requests = logging.getLogger("urllib3.connectionpool")
    if requests.level == logging.NOTSET:
        requests.setLevel(logging.INFO)
    # For traces that nobody writes it asks for the bucket, in a thread that goes on for minutes where none answers.
    os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
    return storage.Client(project=None)
