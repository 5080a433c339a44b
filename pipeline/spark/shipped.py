"""Files that `spark-submit --files` brought, in the processes that Spark starts: planners and tasks.

Spark puts them into a folder of its own, on each machine another one, and tells its Python workers which. An executor's
is the one where it runs; the driver's is not, so that a bare name would be found by tasks and not by the planner.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from pyspark import SparkFiles

from pipeline.log_options import LogOptions
from pipeline.sink.options import SinkOptions
from pipeline.source_options import SourceOptions

_Options = TypeVar("_Options", SourceOptions, SinkOptions, LogOptions)


def with_shipped_files(options: _Options) -> _Options:
    """Return options whose files about access are found in this process, if they were shipped with the job."""
    folder = shipped_folder()
    if folder is None:
        return options
    return replace(options, access=options.access.shipped_in(folder))


def shipped_folder() -> Path | None:
    """Return the folder of shipped files; None in a process that no Spark has told of one."""
    told = vars(SparkFiles)["_root_directory"]  # its getter asks the JVM where nothing was told
    if told is None:
        return None
    # Spark 4.3 tells the planner of a stream of a folder "streaming_job" in there, which nobody makes.
    return Path(told) if Path(told).is_dir() else Path(told).parent
