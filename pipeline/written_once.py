"""Small JSON files that are written once: what a query or a sink settled at its start, and must find ever after.

A file appears whole or not at all, and is on disk before its content is used. Of two who write it the first one
wins, and the second one gets what the first one wrote. What the content means is the caller's business.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pipeline.errors import CannotTellError

NOT_HERE: Final = "it must be a folder that the driver sees"
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def written_once(path: Path, what: str, settle: Callable[[], object]) -> object:
    """Return the JSON value in a file; write it first, with what `settle` says, if there is no file.

    Args:
        path: the file; its folders are made.
        what: it holds, for errors.
        settle: says the value; what it raises is passed on.

    Raises:
        CannotTellError: the file cannot be read or written, or holds no JSON.
    """
    try:
        if path.exists():
            return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CannotTellError(f"{what} in {path} cannot be read: {error}") from error
    value = settle()
    try:
        _write(path, value)
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CannotTellError(f"{what} cannot be kept in {path}: {error}") from error


def _write(path: Path, value: object) -> None:
    """Write the file under its name only when it is whole; a link, unlike a rename, never replaces another's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.") as aside:
        json.dump(value, aside)
        aside.flush()
        os.fsync(aside.fileno())
        try:
            os.link(aside.name, path)
        except FileExistsError:
            return  # another one was first
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def folder_here(text: str) -> str | None:
    """Return the path of a folder as Spark's options have it, `/a/b` or `file:/a/b`; None if it lies elsewhere."""
    for prefix in ("file://", "file:"):
        if text.startswith(f"{prefix}/"):
            return text.removeprefix(prefix)
    return None if _SCHEME.match(text) else text
