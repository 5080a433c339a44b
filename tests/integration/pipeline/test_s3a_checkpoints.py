"""A stream whose checkpoint lies in an object store, through Hadoop's file system; needs jars that PySpark lacks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")

from pipeline.locations import ObjectPath
from pipeline.object_store import ObjectFolder
from tests.integration.pipeline.topics import Topics

pytestmark = [pytest.mark.slow, pytest.mark.integration]

JARS = "DLEDGER_S3A_JARS"
PATIENCE_S = 600

PROGRAM = """
import os, sys
from pipeline.spark.session import open_session
from pipeline.spark.streams import start_stream
namesrv, topic, place, jars = sys.argv[1:]
spark = open_session("s3a", master="local[2]", settings={
    "spark.jars": jars,
    "spark.hadoop.fs.s3a.endpoint": os.environ["AWS_ENDPOINT_URL"],
    "spark.hadoop.fs.s3a.path.style.access": "true",
    "spark.sql.shuffle.partitions": "2",
})
for _ in range(2):
    query = start_stream(
        spark,
        {"nameServer": namesrv, "topic": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "20"},
        lambda rows: rows.writeStream.format("parquet").option("path", place + "/out").trigger(availableNow=True),
        checkpoint=place + "/checkpoint",
    )
    query.awaitTermination()
print("rows", spark.read.parquet(place + "/out").selectExpr("body").distinct().count())
"""


def test_a_checkpoint_in_a_bucket_keeps_where_the_stream_is_and_where_it_began(
    topics: Topics, store: ObjectPath, tmp_path: Path
) -> None:
    if JARS not in os.environ:
        pytest.skip(f"{JARS} names no folder with hadoop-aws and what it needs (pipeline-jobs.md)")
    jars = ",".join(str(path) for path in sorted(Path(os.environ[JARS]).glob("*.jar")))
    topic = topics.fresh()
    topics.fill(topic, 50)
    place = f"s3a://{(store / 's3a').path}"
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, topics.namesrv, topic, place, jars],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert "rows 50" in run.stdout, run.stderr[-4000:]
    checkpoint = ObjectFolder(store / "s3a" / "checkpoint")
    assert sorted(name for name in checkpoint.names("offsets") if name.isdigit()) == ["0", "1", "2"]
    assert checkpoint.names("rocketmq-source") == ["initial-offsets.json"]
    for secret in ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        assert os.environ[secret] not in run.stdout + run.stderr
