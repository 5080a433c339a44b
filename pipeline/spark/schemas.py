"""Schemas between Spark and Arrow, in the one way that Spark accepts from a data source.

The batches of a Python data source must have exactly the Arrow schema that Spark derives from its own, or a task
fails on its first batch. The function that derives it is not part of PySpark's public interface; it is called here
and nowhere else.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

TIME_ZONE: Final = "UTC"


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of the batches for a Spark schema."""
    return to_arrow_schema(schema, timezone=TIME_ZONE)


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark schema of our columns; timestamps are instants."""
    made: StructType = from_arrow_schema(schema, prefer_timestamp_ntz=False)
    return made
