"""Streams whose checkpoints lie in object stores, through Hadoop's file systems; these need jars that PySpark lacks.

`make interop` fetches them, or a variable names a folder that has them. One session has all of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")

from pipeline.locations import ObjectPath
from pipeline.object_store import ObjectFolder
from tests.integration.pipeline.topics import Topics
from tests.unit.pipeline.object_stores import SECRET_KEY, TOKEN

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(1500)]

INTEROP = Path(__file__).resolve().parents[3] / ".interop"
PATIENCE_S = 1200


@dataclass(frozen=True, eq=False)
class FileSystem:
    """A file system of Hadoop's.

    Attributes:
        scheme: how Spark calls it.
        jars: the folder in .interop that has it.
        variable: names another folder, if it is set.
        settings: for a store on this machine.
    """

    scheme: str
    jars: str
    variable: str
    settings: Mapping[str, str]

    def found_jars(self) -> list[str]:
        folder = Path(os.environ.get(self.variable, INTEROP / self.jars))
        return [str(path) for path in sorted(folder.glob("*.jar"))]


def s3a() -> FileSystem:
    settings = {
        "spark.hadoop.fs.s3a.endpoint": os.environ["AWS_ENDPOINT_URL"],
        "spark.hadoop.fs.s3a.path.style.access": "true",
    }
    return FileSystem("s3a", "s3a-3.5.0", "DLEDGER_S3A_JARS", settings)


def gs() -> FileSystem:
    settings = {
        "spark.hadoop.fs.gs.storage.root.url": f"{os.environ['STORAGE_EMULATOR_HOST']}/",
        "spark.hadoop.fs.gs.auth.type": "UNAUTHENTICATED",
        "spark.hadoop.fs.gs.project.id": "tests",
        "spark.hadoop.fs.AbstractFileSystem.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFS",
        # Hadoop 3.5 has a setting of this name, 64m, which the connector takes for a number.
        "spark.hadoop.fs.gs.block.size": str(64 * 1024 * 1024),
        "spark.hadoop.fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
        # Its reads of several ranges at once call a method that Hadoop 3.5 has no more: NoSuchMethodError.
        "spark.hadoop.parquet.hadoop.vectored.io.enabled": "false",
        # 5 s else, and a machine with other work takes longer to accept a connection.
        "spark.hadoop.fs.gs.http.connect-timeout": "300000",
        "spark.hadoop.fs.gs.http.read-timeout": "300000",
    }
    return FileSystem("gs", "gcs-3.1.15", "DLEDGER_GS_JARS", settings)


PROGRAM = """
import json, sys
from pipeline.spark.session import open_session
from pipeline.spark.streams import start_stream
namesrv, topic, settings, *places = sys.argv[1:]
spark = open_session("stores", master="local[2]", settings=json.loads(settings))
for place in places:
    for _ in range(2):
        query = start_stream(
            spark,
            {"nameServer": namesrv, "topic": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "20"},
            lambda rows: rows.writeStream.format("parquet").option("path", place + "/out").trigger(availableNow=True),
            checkpoint=place + "/checkpoint",
        )
        query.awaitTermination()
    print(place, "rows", spark.read.parquet(place + "/out").selectExpr("body").distinct().count())
"""


def test_a_checkpoint_in_a_store_keeps_where_the_stream_is_and_where_it_began(
    topics: Topics, store: ObjectPath, google: ObjectPath, tmp_path: Path
) -> None:
    stores = {s3a(): store / "checkpoints", gs(): google / "checkpoints"}
    missing = [each for each in stores if not each.found_jars()]
    for each in missing:
        del stores[each]
    settings = {"spark.sql.shuffle.partitions": "2"}
    settings["spark.jars"] = ",".join(jar for each in stores for jar in each.found_jars())
    for each in stores:
        settings |= each.settings
    topic = topics.fresh()
    topics.fill(topic, 50)
    places = {f"{each.scheme}://{place.path}": place for each, place in stores.items()}
    if places:
        run = subprocess.run(
            [sys.executable, "-c", PROGRAM, topics.namesrv, topic, json.dumps(settings), *places],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for secret in (SECRET_KEY, TOKEN):
            assert secret not in run.stdout + run.stderr
        for name, place in places.items():
            assert f"{name} rows 50" in run.stdout, run.stderr[-20000:]
            checkpoint = ObjectFolder(place / "checkpoint")
            batches = [name for name in checkpoint.names("offsets") if name.isdigit()]
            assert sorted(batches) == ["0", "1", "2"]
            assert checkpoint.names("rocketmq-source") == ["initial-offsets.json"]
    if missing:
        names = " and ".join(f"{each.scheme}:// ({each.variable})" for each in missing)
        pytest.skip(f"no jars for {names} (pipeline-jobs.md)")
