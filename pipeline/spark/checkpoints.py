"""Where a checkpoint lies, as Hadoop understands its name.

A name without a scheme is one of `fs.defaultFS`, which on a cluster is seldom the disk of the driver; and `hdfs:///x`
is one of its name node. Who reads such a name by itself looks at another place than Spark does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pipeline.errors import PipelineUsageError
from pipeline.locations import LocationError, location
from pipeline.spark.java_side import java_side

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

METADATA_OPTION: Final = "metadataPath"


def qualified(spark: SparkSession, folder: str) -> str:
    """Return a folder's whole name, with scheme and store, as this session's Hadoop has it.

    Raises:
        Exception: Spark's own; Hadoop knows no such file system, or the name is none.
    """
    jvm, session = java_side(spark)
    path = getattr(jvm, "org.apache.hadoop.fs.Path")(folder)
    store = path.getFileSystem(session.sessionState().newHadoopConf())
    return str(store.makeQualified(path).toString())


def default_store(spark: SparkSession) -> str:
    """Return the file system in which this session looks for names without a scheme; nobody there is asked."""
    jvm, session = java_side(spark)
    stores = getattr(jvm, "org.apache.hadoop.fs.FileSystem")
    return str(stores.getDefaultUri(session.sessionState().newHadoopConf()).toString())


def below(checkpoint: str, name: str) -> str:
    """Return a folder below a checkpoint in which this package keeps files of its own.

    Raises:
        PipelineUsageError: it lies where nobody has tried that.
    """
    try:
        location(checkpoint)
    except LocationError:
        scheme = checkpoint.partition(":")[0]
        raise PipelineUsageError(
            f"the checkpoint lies in {scheme}:, where this package keeps no files of its own: give option "
            f"{METADATA_OPTION}, a folder for this query alone, that stays when the driver moves, in s3://, gs:// or "
            "hdfs:// or on a disk that is mounted everywhere; it holds where the query began"
        ) from None
    return f"{checkpoint.rstrip('/')}/{name}"
