"""The Java objects behind a session: PySpark has no public way to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def java_side(spark: SparkSession) -> tuple[Any, Any]:
    """Return the JVM, whose classes are attributes by their full names, and the session in it."""
    return spark._jvm, spark._jsparkSession  # noqa: SLF001
