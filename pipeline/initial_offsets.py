"""Keeps the offsets at which a stream began, written once.

Spark writes the offsets of a batch into its checkpoint, but not where a new query begins: a query that is
killed in its first batch asks again, and "latest" is somewhere else by then. So the first answer is written
down beside the checkpoint, and read back ever after.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pipeline.errors import InconclusiveError, PipelineUsageError
from pipeline.locations import Location
from pipeline.offsets import OffsetsForm, from_form, to_form
from pipeline.written_once import written_once

VERSION: Final = 1


def kept_offsets(path: Location, settle: Callable[[], OffsetsForm]) -> OffsetsForm:
    """Return the offsets in a file; if there is none, write it first with the result of `settle`.

    Raises:
        InconclusiveError: the file cannot be read or written, or holds something else.
    """
    value = written_once(
        path, "where the stream began", lambda: {"version": VERSION, "offsets": settle()}
    )
    problem = f"{path} does not hold initial offsets"
    if not isinstance(value, dict) or value.get("version") != VERSION:
        raise InconclusiveError(f'{problem}: "version" is not {VERSION}')
    try:
        return to_form(from_form(value.get("offsets"), str(path)))
    except PipelineUsageError as error:
        raise InconclusiveError(f"{problem}: {error}") from error
