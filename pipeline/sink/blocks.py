"""Arrow batches read by columns, where every row of one is usual: no object for each row, encoded all at once.

A usual row goes to the option's topic, at once, without a flag. A batch in which a row is not usual, or cannot be
sent, is declined as a whole: `RowReader` reads it row by row, and says what is wrong with which. Both ways send the
same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dledger_mq.client.messages import BODY_BYTES_MAX
from dledger_mq.message.errors import PropertyError
from dledger_mq.message.properties import encode_properties
from pipeline.sink.columns import COORDINATES
from pipeline.sink.options import COLUMN, SinkOptions
from pipeline.sink.rows import SYSTEM_PROPERTIES, RowReader, given_properties

if TYPE_CHECKING:
    import pyarrow as pa

_LABELS_BYTES_MAX: Final = 30_000
"""Above it a row is not usual: with UNIQ_KEY and the mark of a row its properties may be too long."""
_NUMBERS: Final = ("flag", "delayLevel", "delayMs")


class Block(NamedTuple):
    """The rows of an Arrow batch, by columns.

    Attributes:
        first: number of the first row in its partition.
        bodies, labels: as `MessageColumns` has them.
        keys: of each the keys by which its queue is chosen, empty for none.
        row_keys: of an exactly-once sink, else None.
    """

    first: int
    bodies: list[bytes]
    labels: list[bytes]
    keys: list[str]
    row_keys: list[bytes] | None


def read_block(reader: RowReader, options: SinkOptions, batch: pa.RecordBatch) -> Block | None:
    """Read the next rows of a partition by columns; None if they are not usual: `reader` has not read them."""
    if (
        options.topic is None
        or options.queue_selector == COLUMN
        or options.rows_per_second is not None
        or not batch.num_rows
    ):
        return None
    given = dict(zip(reader.columns.names, batch.columns, strict=False))
    if any(_has_values(given.get(name)) for name in (*_NUMBERS, "deliverAt")):
        return None
    bodies = _bodies(given["body"])
    labelled = None if bodies is None else _labels(given, batch.num_rows)
    if bodies is None or labelled is None:
        return None
    labels, keys = labelled
    row_keys = None
    if options.is_exactly_once:
        row_keys = _row_keys(reader, given, batch.num_rows)
        if row_keys is None:
            return None
    block = Block(reader.count, bodies, labels, keys, row_keys)
    reader.count += batch.num_rows
    return block


def _has_values(column: pa.Array | None) -> bool:
    """Return whether a row has more than null or 0 there."""
    if column is None or column.null_count == len(column):
        return False
    return any(column.to_pylist())


def _bodies(column: pa.Array) -> list[bytes] | None:
    """Return the bodies, if each can be sent."""
    import pyarrow as pa

    if column.null_count:
        return None
    is_large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    bodies: list[bytes] = column.cast(pa.large_binary() if is_large else pa.binary()).to_pylist()
    sizes = list(map(len, bodies))
    return bodies if min(sizes) > 0 and max(sizes) <= BODY_BYTES_MAX else None


def _labels(given: dict[str, pa.Array], count: int) -> tuple[list[bytes], list[str]] | None:
    """Return of each row its encoded properties, and its keys as one text, if each can be sent."""
    nothing: Sequence[None] = [None] * count
    tags, keys, properties = (
        given[name].to_pylist() if name in given else nothing
        for name in ("tags", "keys", "properties")
    )
    if not any(properties) and not any(isinstance(each, list) for each in keys):
        return _plain_labels(tags, keys)
    labels: list[bytes] = []
    texts: list[str] = []
    try:
        for row in zip(tags, keys, properties, strict=True):
            pairs = _pairs(*row)
            labels.append(encode_properties(pairs))
            texts.append(pairs.get("KEYS", ""))
    except (PropertyError, ValueError):
        return None
    return (labels, texts) if _are_short(labels) else None


def _plain_labels(
    tags: Sequence[str | None], keys: Sequence[str | None]
) -> tuple[list[bytes], list[str]] | None:
    """Return what `_labels` does for rows with one text of keys at most, and no properties of their own."""
    texts = [text or "" for text in keys]
    tagged = {tag: b"TAGS\x01%b\x02" % tag.encode() for tag in set(tags) if tag}
    labels = [b"KEYS\x01%b\x02" % text.encode() if text else b"" for text in texts]
    together = "".join((*texts, *tagged))
    if "\x01" in together or "\x02" in together:
        return None
    if tagged:
        labels = [
            tagged[tag] + label if tag else label for tag, label in zip(tags, labels, strict=True)
        ]
    return (labels, texts) if _are_short(labels) else None


def _are_short(labels: list[bytes]) -> bool:
    return max(map(len, labels)) <= _LABELS_BYTES_MAX


def _pairs(
    tags: str | None, keys: str | list[str | None] | None, properties: Any
) -> dict[str, str]:
    """Return the properties of a row behind its UNIQ_KEY, in the order of `message_properties`.

    Raises:
        ValueError: they are no properties.
    """
    own = given_properties(properties) if properties else {}
    if own:
        tags = own.get("TAGS") if tags is None else tags
        keys = own.get("KEYS") if keys is None else keys
    if keys is not None and not isinstance(keys, str):
        keys = " ".join([key for key in keys if key])
    pairs: dict[str, str] = {}
    if tags:
        pairs["TAGS"] = tags
    if keys:
        pairs["KEYS"] = keys
    return pairs | {
        name: text for name, text in own.items() if name not in SYSTEM_PROPERTIES and text
    }


def _row_keys(reader: RowReader, given: dict[str, pa.Array], count: int) -> list[bytes] | None:
    nothing: Sequence[None] = [None] * count
    of_keys = reader.columns.key_columns
    columns = [
        given[name].to_pylist() if name in of_keys else nothing
        for name in ("idempotencyKey", *COORDINATES)
    ]
    return reader.keys.several(reader.count, columns[0], list(zip(*columns[1:], strict=True)))
