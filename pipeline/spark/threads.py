"""Lets every thread write to our formats.

Spark looks up a format that is written in Python in the session that is *active* in the JVM's thread, and each
Python thread has a JVM thread of its own. PySpark makes a session active where it is opened, and nowhere else:
a read is planned with its session active, a write is not, so that a writer in a thread of a pool does not find the
format (DATA_SOURCE_NOT_FOUND). The writers of PySpark are therefore given one more step: where no session is
active in their thread, that of their frame is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrameWriter, DataFrameWriterV2
from pyspark.sql.streaming import DataStreamWriter

from pipeline.spark.java_side import java_side

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WRITERS: Final = (DataFrameWriter, DataFrameWriterV2, DataStreamWriter)
_DONE: Final = "_dledger_activates"


def write_from_every_thread() -> None:
    """Let the writers of this process find Python's formats in every thread; doing it twice does no harm."""
    for writer in WRITERS:
        if not hasattr(writer, _DONE):
            writer.__init__ = _activating(writer.__init__)
            setattr(writer, _DONE, True)


def activate(spark: SparkSession) -> None:
    """Make a session the active one of this thread, unless the thread has one."""
    jvm, session = java_side(spark)
    of_java = getattr(jvm, "org.apache.spark.sql.classic.SparkSession")
    if not of_java.getActiveSession().isDefined():
        of_java.setActiveSession(session)


def _activating(make: Callable[..., None]) -> Callable[..., None]:
    """Return a writer's `__init__` that first makes the session of its frame active."""

    @wraps(make)
    def made(writer: object, frame: DataFrame, *arguments: Any, **named: Any) -> None:
        activate(frame.sparkSession)
        make(writer, frame, *arguments, **named)

    return made
