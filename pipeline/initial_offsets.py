"""Keeps the offsets at which a stream began, written once.

Spark writes the offsets of a batch into its checkpoint, but not where a new query begins: a query that is
killed in its first batch asks again, and "latest" is somewhere else by then. So the first answer is written
down beside the checkpoint, and read back ever after.

With it stands what was asked for. A query on other topics, or with another beginning, that finds the file is another
query, whose beginning is not there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Final

from pipeline.errors import InconclusiveError, PipelineUsageError
from pipeline.locations import Location
from pipeline.offsets import OffsetsForm, from_form, to_form
from pipeline.source_options import BoundaryKind, SourceOptions
from pipeline.written_once import written_once

VERSION: Final = 1


def kept_offsets(
    path: Location, asked: Mapping[str, object], settle: Callable[[], OffsetsForm]
) -> OffsetsForm:
    """Return the offsets in a file; if there is none, write it first with the result of `settle`.

    Args:
        path: of the file.
        asked: what the query asks for (`asked_for`).
        settle: says where it begins.

    Raises:
        InconclusiveError: the file cannot be read or written, or holds something else.
        PipelineUsageError: the file is that of a query that asked for something else.
    """
    value = written_once(
        path,
        "where the stream began",
        lambda: {"version": VERSION, "asked": asked, "offsets": settle()},
    )
    problem = f"{path} does not hold initial offsets"
    if not isinstance(value, dict) or value.get("version") != VERSION:
        raise InconclusiveError(f'{problem}: "version" is not {VERSION}')
    known = value.get("asked", asked)  # older versions did not write it
    if known != asked:
        raise PipelineUsageError(
            f"{path} says where a query with {json.dumps(known)} began, and this one has {json.dumps(asked)}: give "
            "it a metadataPath of its own, as start_stream does; if it is the same query, and has not done its first "
            "batch, delete the file"
        )
    try:
        return to_form(from_form(value.get("offsets"), str(path)))
    except PipelineUsageError as error:
        raise InconclusiveError(f"{problem}: {error}") from error


def asked_for(options: SourceOptions) -> dict[str, object]:
    """Return the topics and the beginning that a stream asks for, under the names of the options, as JSON has them."""
    place = options.starting
    asked: dict[str, object] = {"topic": ",".join(options.topics)}
    if options.topic_pattern is not None:
        asked = {"topicPattern": options.topic_pattern}
    elif options.assigned is not None:
        asked = {"assign": sorted(map(list, options.assigned.wanted))}
    if place.kind is BoundaryKind.TIME:
        return asked | {"startingTimestamp": place.timestamp_ms}
    if place.offsets is None:
        return asked | {"startingOffsets": place.kind.value}
    is_times = place.kind is BoundaryKind.QUEUE_TIMES
    name = "startingOffsetsByTimestamp" if is_times else "startingOffsets"
    return asked | {name: to_form(place.offsets)}
