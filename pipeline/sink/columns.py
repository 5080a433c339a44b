"""The columns of a frame that is written to topics: which are known, and which are missing."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pipeline.errors import PipelineUsageError
from pipeline.sink.options import AUTO, COLUMN, WHAT, SinkOptions

_WHOLE: Final = ("tinyint", "smallint", "int", "bigint")

COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "body": ("string", "binary"),
    "topic": ("string",),
    "tags": ("string",),
    "keys": ("string", "array<string>"),
    "properties": ("string", "map<string,string>"),
    "flag": _WHOLE,
    "brokerName": ("string",),
    "queueId": _WHOLE,
    "queueOffset": _WHOLE,
    "delayLevel": _WHOLE,
    "delayMs": _WHOLE,
    "deliverAt": ("timestamp", "timestamp_ntz"),
    "idempotencyKey": ("string", "binary", *_WHOLE),
}
"""Names of columns, and the types that each may have."""

OF_THE_STORED: Final = frozenset(
    {"bornTimestamp", "storeTimestamp", "msgId", "commitLogOffset", "term", "reconsumeTimes"}
)
"""Columns of the source that say what became of one stored message. A table in a catalog has them, and
what is inserted there gets its own."""

COORDINATES: Final = ("topic", "brokerName", "queueId", "queueOffset")


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """The columns that a frame has.

    Attributes:
        names: of all of them, in the frame's order.
        key_columns: what names a row of an exactly-once sink: ("idempotencyKey",), the source's
            coordinates, or nothing for partition and row number.
    """

    names: tuple[str, ...]
    key_columns: tuple[str, ...]

    def __contains__(self, name: str) -> bool:
        return name in self.names


def check_columns(
    fields: Mapping[str, str], options: SinkOptions, *, is_table: bool = False
) -> SinkColumns:
    """Check a frame's columns; raises PipelineUsageError for those that the sink cannot write.

    Args:
        fields: names and types, as Spark writes them ("map<string,string>").
        options: the sink's.
        is_table: the frame has the columns of a table in a catalog: those of stored messages are passed over.

    Raises:
        PipelineUsageError: names the column.
    """
    for name, kind in fields.items():
        if is_table and name in OF_THE_STORED:
            continue
        if name not in COLUMNS:
            near = difflib.get_close_matches(name, COLUMNS, n=1, cutoff=0.7)
            hint = f"; did you mean {near[0]}?" if near else ", drop it or put it into properties"
            raise PipelineUsageError(
                f"{WHAT} has no column {name}{hint} (it has {', '.join(COLUMNS)})"
            )
        if kind not in COLUMNS[name]:
            raise PipelineUsageError(
                f"{WHAT}: column {name} has type {kind}, it must be {' or '.join(COLUMNS[name])}"
            )
    if "body" not in fields:
        raise PipelineUsageError(f"{WHAT} needs a column body (string or binary)")
    if "topic" not in fields and options.topic is None:
        raise PipelineUsageError(f"{WHAT} needs option topic, or a column topic")
    if options.queue_selector == COLUMN and not {"queueId", "brokerName"} <= fields.keys():
        raise PipelineUsageError(
            f"{WHAT}: queueSelector column needs the columns brokerName and queueId"
        )
    return SinkColumns(tuple(fields), _key_columns(fields, options))


def _key_columns(fields: Mapping[str, str], options: SinkOptions) -> tuple[str, ...]:
    """Choose the columns that identify a row for exactly-once; none: its partition and number do."""
    if not options.is_exactly_once:
        return ()
    if "idempotencyKey" in fields:
        return ("idempotencyKey",)
    if set(COORDINATES) <= fields.keys():
        return COORDINATES
    if options.row_keys == AUTO:
        raise PipelineUsageError(
            f"{WHAT}: delivery exactly-once must know a row again: give a column idempotencyKey, or keep the "
            f"source's {', '.join(COORDINATES)}; partition and row number (option rowKeys=position) will do "
            "only for a plan without shuffle, sort or chance"
        )
    return ()
