"""A Spark program with a catalog of its own, in which more than one test looks: see sessions.py.

    python sessions_program.py FOLDER NAMESRV TOPIC STEP SETTINGS_AS_JSON PLACE...

Its first session copies a topic into each place, twice, by streams that keep their checkpoints there, and makes a table
and a view. Its second one finds them, and ends by a stream without its topic.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pipeline.spark.session import open_session
from pipeline.spark.streams import start_stream


def copy_into(spark: Any, place: str, namesrv: str, topic: str) -> None:
    """Copy a topic by a stream that is begun and gone on with."""
    options = {"nameServer": namesrv, "topic": topic}
    options |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "20"}
    for _ in range(2):
        query = start_stream(
            spark,
            options,
            lambda rows: (
                rows.writeStream.format("parquet")
                .option("path", f"{place}/out")
                .trigger(availableNow=True)
            ),
            checkpoint=f"{place}/checkpoint",
        )
        query.awaitTermination()
    rows = spark.read.parquet(f"{place}/out").selectExpr("body").distinct().count()
    sys.stdout.write(f"{place} rows {rows}\n")


def main(folder: str, namesrv: str, topic: str, step: str, settings: str, *places: str) -> None:
    """Run one of the two sessions."""
    spark = open_session(
        "further", master="local[2]", catalog=folder, settings=json.loads(settings)
    )
    if step == "1":
        spark.sql(
            f"CREATE TABLE orders USING rocketmq OPTIONS (nameServer '{namesrv}', topic '{topic}')"
        )
        spark.sql("CREATE VIEW first AS SELECT * FROM orders WHERE queueOffset = 0")
    spark.sql(f"INSERT INTO orders (body) VALUES (cast('inserted {step}' as binary))")
    ones = spark.sql("SELECT count(*) n FROM first").first()
    sys.stdout.write(f"tables {spark.table('orders').count()} {ones.n}\n")
    if step == "1":
        for place in places:
            copy_into(spark, place, namesrv, topic)
        return
    query = start_stream(
        spark,
        {"nameServer": namesrv, "topic": "Missing"},
        lambda frame: frame.writeStream.format("noop"),
        checkpoint=f"{folder}/checkpoint",
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
