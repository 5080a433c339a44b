"""An archive's rows as a data frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import StringType

from pipeline.archive.parts import ARCHIVE_COLUMNS
from pipeline.spark.schemas import spark_schema
from pipeline.table.delta import COMPACTED
from pipeline.table.reading import TableSnapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def parquet_rows(spark: SparkSession, paths: list[str], base: str) -> DataFrame:
    """Return rows of archived files, in the archive's columns and `date`.

    Args:
        spark: the session.
        paths: files that manifests list (`listed_files`).
        base: the archive's folder, which their partition folders stand in.
    """
    schema = spark_schema(ARCHIVE_COLUMNS).add("date", StringType())
    reader = spark.read.schema(schema).option("basePath", for_spark(base))
    if not paths:
        return spark.createDataFrame([], schema)
    return reader.parquet(*map(for_spark, paths))


def table_rows(spark: SparkSession, snapshot: TableSnapshot) -> DataFrame:
    """Return the rows of one version of an archive's table, in the same columns; no Delta is needed for that.

    Args:
        spark: the session.
        snapshot: the version (`table_snapshot`).
    """
    compacted = f"{snapshot.archive}/{COMPACTED}"
    is_compacted = [path.startswith(f"{compacted}/") for path in snapshot.files]
    pairs = list(zip(snapshot.files, is_compacted, strict=True))
    as_archived = parquet_rows(spark, [path for path, was in pairs if not was], snapshot.archive)
    return as_archived.union(parquet_rows(spark, [path for path, was in pairs if was], compacted))


def for_spark(name: str) -> str:
    """Return a file's or folder's full name as Spark says it: Hadoop's file system for S3 is called s3a."""
    return f"s3a://{name.removeprefix('s3://')}" if name.startswith("s3://") else name
