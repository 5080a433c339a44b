"""Names of Spark's classes, for annotations outside of this folder: nothing else imports pyspark."""

from __future__ import annotations

from pyspark import SparkContext
from pyspark.sql import Column, DataFrame, Row, SparkSession

__all__ = ["Column", "DataFrame", "Row", "SparkContext", "SparkSession"]
