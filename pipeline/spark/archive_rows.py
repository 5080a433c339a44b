"""An archive's rows as a data frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import StringType

from pipeline.archive.parts import ARCHIVE_COLUMNS
from pipeline.spark.schemas import spark_schema

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


def for_spark(name: str) -> str:
    """Return a file's or folder's full name as Spark says it: Hadoop's file system for S3 is called s3a."""
    return f"s3a://{name.removeprefix('s3://')}" if name.startswith("s3://") else name
