"""The options of a table in a catalog, kept where Spark 4.3 does not lose them: in the table's schema.

`CREATE TABLE t USING rocketmq OPTIONS (...)` hands them over once, when it asks for the columns: each of them twice, by
its name and as `option.NAME`, among properties of the catalog's own. When the table is read or written, a source in
Python gets the columns again, but none of the options (only those of `WITH (...)`). So they travel as metadata
of the column `body`, which catalogs keep and every reader and writer of the table is shown.

A frame whose columns are exactly those of a table is inserted as it is, with its own metadata: with none, or with
those of the table that it was read from, whose topic would get the rows. So no two tables may have the same columns.
Spark compares types as they were declared, `varchar(n)` for a text, and notes that as metadata, too: the column `topic`
of each table is declared with a length that follows from the options, beyond any topic's. What differs there is cast,
and gets the metadata of the table that it is inserted into.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

from pyspark.sql.types import StructField, StructType

PREFIX: Final = "option."
KEPT_AS: Final = "dledger.options"
KEPT_BY: Final = "body"
DECLARED_AS: Final = "__CHAR_VARCHAR_TYPE_STRING"
"""Spark's own name for the type with which a text was declared."""

DECLARED: Final = "topic"
NAME_SERVER: Final = "nameserver"
_LENGTH_LEAST: Final = 2**30
_LENGTHS: Final = 2**30 - 1


def created_options(given: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options of a table that is being created, without the prefix; None when none is."""
    if not any(name.lower().startswith(PREFIX) for name in given):
        return None
    return {
        name.lower().removeprefix(PREFIX): text
        for name, text in given.items()
        if name.lower().startswith(PREFIX)
    }


def keeping(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return a schema that keeps the options of its table, and is no other table's."""
    hashed = blake2b(json.dumps(dict(options), sort_keys=True).encode(), digest_size=8).digest()
    length = _LENGTH_LEAST + int.from_bytes(hashed) % _LENGTHS
    metadata = {KEPT_BY: {KEPT_AS: dict(options)}, DECLARED: {DECLARED_AS: f"varchar({length})"}}
    return StructType(
        [
            StructField(each.name, each.dataType, each.nullable, metadata.get(each.name))
            for each in schema.fields
        ]
    )


def table_options(schema: StructType, given: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options of the table that has this schema, those that are given for this use first.

    None: it is no table's, or it is only where a frame comes from: whoever says a name server says everything.
    """
    said = {name.lower(): text for name, text in given.items()}
    kept = (each.metadata.get(KEPT_AS) for each in schema.fields if each.metadata)
    found = next((options for options in kept if options is not None), None)
    return None if found is None or NAME_SERVER in said else {**found, **said}
