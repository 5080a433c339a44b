"""A Spark program that tests start, kill and start again: it copies a topic into Parquet files, as a stream.

    python stream_program.py NAMESRV TOPIC FOLDER OPTIONS_AS_JSON

It runs until it is killed; a test may take its query over in its own session.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pipeline.spark.session import open_session
from pipeline.spark.streams import start_stream

SETTINGS = {"spark.driver.memory": "1g"}


def start_copy(
    spark: Any,
    namesrv: str,
    topic: str,
    folder: Path,
    options: dict[str, str],
    *,
    available_now: bool,
) -> Any:
    """Start the query, or go on with it."""
    when = {"availableNow": True} if available_now else {"processingTime": "0 seconds"}
    return start_stream(
        spark,
        {"nameServer": namesrv, "topic": topic} | options,
        lambda frame: (
            frame.writeStream.format("parquet").option("path", f"{folder}/out").trigger(**when)
        ),
        checkpoint=f"{folder}/checkpoint",
    )


def main(namesrv: str, topic: str, folder: str, options: str) -> None:
    """Run the copy."""
    spark = open_session("copy", master="local[2]", settings=SETTINGS)
    query = start_copy(
        spark, namesrv, topic, Path(folder), json.loads(options), available_now=False
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
