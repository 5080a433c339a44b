"""All formats of ours, for registration with a session."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMATS: Final = (
    ("pipeline.spark.rocketmq", "RocketMQDataSource"),
    ("pipeline.spark.rocketmq", "DLedgerDataSource"),
    ("pipeline.spark.commitlog", "CommitLogDataSource"),
)
"""Module and class of each `pyspark.sql.datasource.DataSource`."""


def register_all(spark: SparkSession) -> None:
    """Register every format with a session.

    A planner knows nothing of its session, so the class that is registered carries how many tasks run at a
    time, whether some may run twice, in which file system names of files begin, and the accumulator of what they
    pull; being made here, it is pickled as a whole. Writers find them in every thread from here on
    (`pipeline.spark.threads`).
    """
    from pipeline.spark.checkpoints import default_store
    from pipeline.spark.pull_counts import pull_counts
    from pipeline.spark.threads import write_from_every_thread

    write_from_every_thread()
    context = spark.sparkContext
    speculation = context.getConf().get("spark.speculation", "false")
    session = {
        "parallelism": context.defaultParallelism,
        "speculates": speculation.lower() == "true",
        "default_store": default_store(spark),
        "counts": pull_counts(context),
    }
    for module, name in FORMATS:
        spark.dataSource.register(type(name, (getattr(import_module(module), name),), session))
