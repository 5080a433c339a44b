"""The format "rocketmq" (also "dledger"): topics as tables and streams, read and written."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource


class RocketMQDataSource(DataSource):
    """Topics of a broker. What it reads is said in `pipeline.spark.source`, what it writes in `pipeline.spark.sink`."""

    @classmethod
    def name(cls) -> str:
        """Return the name in `format(...)`."""
        return "rocketmq"


class DLedgerDataSource(RocketMQDataSource):
    """The same under this project's name."""

    @classmethod
    def name(cls) -> str:
        """Return the name in `format(...)`."""
        return "dledger"
