"""Keeps where a stream began, once and for all.

Spark writes the offsets of a batch into its checkpoint, but not where a new query begins: a query that is
killed in its first batch asks again, and "latest" is somewhere else by then. So the first answer is written
down beside the checkpoint: whole or not at all, and who comes second takes what the first one wrote.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pipeline.errors import CannotTellError, UsageError
from pipeline.offsets import OffsetsForm, from_form, to_form

VERSION: Final = 1


def kept_offsets(path: Path, settle: Callable[[], OffsetsForm]) -> OffsetsForm:
    """Return the offsets that a file has; write it first, with what `settle` says, if there is none.

    Raises:
        CannotTellError: the file cannot be read or written, or holds something else.
    """
    try:
        if not path.exists():
            _write_once(path, settle())
        return _read(path)
    except OSError as error:
        raise CannotTellError(f"the initial offsets in {path} cannot be kept: {error}") from error


def _write_once(path: Path, offsets: OffsetsForm) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.") as file:
        json.dump({"version": VERSION, "offsets": offsets}, file)
        file.flush()
        os.fsync(file.fileno())
        try:
            os.link(file.name, path)
        except FileExistsError:
            return  # another one was first
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _read(path: Path) -> OffsetsForm:
    try:
        value = json.loads(path.read_bytes())
        if not isinstance(value, dict) or value.get("version") != VERSION:
            raise UsageError(f'"version" is not {VERSION}')
        return to_form(from_form(value.get("offsets"), str(path)))
    except ValueError as error:  # UsageError is one
        raise CannotTellError(f"{path} does not hold initial offsets: {error}") from error
