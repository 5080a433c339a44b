"""Lets PySpark find the format "rocketmq" by itself: it looks for modules named pyspark_*.

`pipeline.register(spark)` is the sure way: a broken pyspark_* module of anybody's hides all of them.
"""

from pipeline.spark.rocketmq import RocketMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
