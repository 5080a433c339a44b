"""Where a checkpoint lies, as Hadoop understands its name.

A name without a scheme is one of `fs.defaultFS`, which on a cluster is seldom the disk of the driver; and `hdfs:///x`
is one of its name node. Who reads such a name by itself looks at another place than Spark does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from pipeline.errors import PipelineUsageError
from pipeline.locations import LocationError, location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

METADATA_OPTION: Final = "metadataPath"


def qualified(spark: SparkSession, folder: str) -> str:
    """Return a folder's whole name, with scheme and store, as this session's Hadoop has it.

    Raises:
        Exception: Spark's own; Hadoop knows no such file system, or the name is none.
    """
    jvm: Any = spark._jvm  # noqa: SLF001  # PySpark shows no other way to Hadoop
    path = getattr(jvm, "org.apache.hadoop.fs.Path")(folder)
    settings = spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001
    return str(path.getFileSystem(settings).makeQualified(path).toString())


def working_folder(spark: SparkSession) -> str | None:
    """Return the folder that names of checkpoints begin at in this session; None where Hadoop cannot say it."""
    try:
        return qualified(spark, ".")
    except (Py4JError, PySparkException):
        return None


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
