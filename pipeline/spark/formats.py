"""The formats that a session learns from us, in one list."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

FORMATS: Final = (
    ("pipeline.spark.rocketmq", "RocketMQDataSource"),
    ("pipeline.spark.rocketmq", "DLedgerDataSource"),
)
"""Module and class of each `pyspark.sql.datasource.DataSource`."""


def register_all(spark: Any) -> None:
    """Register every format with a session."""
    for module, name in FORMATS:
        spark.dataSource.register(getattr(import_module(module), name))
