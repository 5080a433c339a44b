"""Spark for the broker: topics and the commit log as data, through PySpark.

At this root, in `scan` and in `jobs` lies what needs no Spark (and starts no JVM); everything that imports
pyspark lies in `pipeline.spark`. The extra `spark` brings what all of it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.spark.names import SparkSession


def register(spark: SparkSession) -> None:
    """Register our formats with a session: "rocketmq", "dledger" and "commitlog".

    Args:
        spark: a `pyspark.sql.SparkSession`. Registering twice does no harm.
    """
    from pipeline.spark.formats import register_all

    register_all(spark)


__all__ = ["register"]
