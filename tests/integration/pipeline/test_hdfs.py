"""HDFS's own name node and data node, where elsewhere a stand-in is (`tests/unit/pipeline/name_node.py`).

What was written is read by way of the name node's HTTP as well, which nothing of ours speaks.
"""

from __future__ import annotations

import getpass
import io
import subprocess
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")
pytest.importorskip("hdfs_native", reason="hdfs-native is not installed (extra `hdfs`)")

import pyarrow.parquet as pq

from pipeline.archive.manifests import listed_files
from pipeline.locations import HDFS, ObjectPath
from pipeline.object_store import ObjectFolder
from pipeline.spark.streams import start_stream
from tests.integration.pipeline.archiving import archive_all
from tests.integration.pipeline.quick import JAVA_OPTIONS
from tests.integration.pipeline.topics import PATIENCE_S, Topics, load

pytestmark = [pytest.mark.slow, pytest.mark.integration]

INSTALLED = Path(__file__).resolve().parents[3] / ".interop/hdfs-3.5.0"
ONE_ATTEMPT = """<configuration><property>
<name>dfs.client.failover.max.attempts</name><value>1</value>
</property></configuration>"""


class Cluster(NamedTuple):
    """A running name node: its process, its place, and its port for HTTP."""

    process: subprocess.Popen[str]
    place: ObjectPath
    http_port: int

    def stop_name_node(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("stop\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "stopped\n"

    def content(self, path: str) -> bytes:
        """What a file holds, as others see it."""
        address = f"http://127.0.0.1:{self.http_port}/webhdfs/v1/{path}"
        asked = f"{address}?op=OPEN&user.name={getpass.getuser()}"
        with urllib.request.urlopen(asked, timeout=PATIENCE_S) as answer:
            return bytes(answer.read())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if not (INSTALLED / ".ready").exists():
        pytest.skip("HDFS 3.5.0 is not installed (make interop)")
    folder = tmp_path_factory.mktemp("hdfs")
    classes = f"{INSTALLED}/classes:{INSTALLED}/jars/*"
    with (folder / "stderr").open("w") as stderr:
        process = subprocess.Popen(
            [
                "java",
                *JAVA_OPTIONS.split(),
                "-Xmx256m",
                "-cp",
                classes,
                "MiniDfs",
                str(folder / "data"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            cwd=folder,
        )
    with process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline().split()
            assert said[:1] == ["ready"], (folder / "stderr").read_text()[-4000:]
            yield Cluster(process, ObjectPath(f"127.0.0.1:{said[1]}", "", HDFS), int(said[2]))
        finally:
            process.kill()


def test_a_name_has_one_whole_content_and_who_may_not_write_is_told(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ObjectFolder(cluster.place / "names")

    def create(number: int) -> bool:
        try:
            folder.create("a/x", str(number).encode())
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        won = list(pool.map(create, range(4)))
    assert won.count(True) == 1
    assert cluster.content("names/a/x") == str(won.index(True)).encode()
    assert folder.files("") == ["a/x"], "nothing is left of the others"
    assert folder.names("none") == []
    with pytest.raises(FileNotFoundError):
        folder.read("none")
    monkeypatch.setenv("HADOOP_USER_NAME", "billing")
    refused = r"hdfs://.*/names/a/z: AccessControlException: Permission denied: user=billing, access=WRITE"
    with pytest.raises(PermissionError, match=refused):
        folder.sink("a/z")


def test_an_archive_and_a_stream_with_its_checkpoint_lie_in_hdfs(
    spark: Any, topics: Topics, cluster: Cluster, tmp_path: Path
) -> None:
    topic = topics.fresh()
    topics.fill(topic, 40)
    archive = cluster.place / "archive"
    archive_all(spark, topics, archive)
    files = [path.removeprefix(f"{archive}/") for path in listed_files(archive, frozenset({topic}))]
    rows = [
        row
        for path in files
        for row in pq.ParquetFile(io.BytesIO(cluster.content(f"archive/{path}"))).read().to_pylist()
    ]
    assert sorted(int(row["body"]) for row in rows) == list(range(40))
    topics.fill(topic, 20, first=40)
    whole = load(spark, topics, topic, includeArchive=str(archive), includeMetadata=True)
    read = whole.selectExpr("cast(cast(body as string) as int) n", "term is not null").collect()
    assert sorted(map(tuple, read)) == [(n, n < 40) for n in range(60)], "40 from the archive"

    # Spark's own client of HDFS writes there, and ours; the second time with the name node in its name.
    checkpoint = cluster.place / f"{str(tmp_path)[1:]}/checkpoint"

    def run(checkpoint: str) -> None:
        query = start_stream(
            spark,
            {"nameServer": topics.namesrv, "topic": topic, "startingOffsets": "earliest"},
            lambda frame: (
                frame.writeStream.format("parquet")
                .option("path", f"file:{tmp_path / 'out'}")
                .trigger(availableNow=True)
            ),
            checkpoint=checkpoint,
        )
        assert query.awaitTermination(PATIENCE_S)

    spark.conf.set("fs.defaultFS", str(cluster.place))
    try:
        run(f"/{checkpoint.key}")
    finally:
        spark.conf.unset("fs.defaultFS")
    topics.fill(topic, 10, first=60)
    run(str(checkpoint))
    bodies = pq.read_table(tmp_path / "out", columns=["body"])["body"].to_pylist()
    assert sorted(map(int, bodies)) == list(range(70))
    kept = ObjectFolder(checkpoint)
    assert sorted(name for name in kept.names("offsets") if name.isdigit()) == ["0", "1"]
    assert kept.names("rocketmq-source") == ["initial-offsets.json"]


def test_a_name_node_that_is_away_is_named(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last test: nobody starts it again."""
    (tmp_path / "hdfs-site.xml").write_text(ONE_ATTEMPT)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    folder = ObjectFolder(cluster.place / "away")
    folder.create("x", b"1")
    cluster.stop_name_node()
    with pytest.raises(
        OSError, match=r"hdfs://127\.0\.0\.1:\d+/away/x: .*(refused|ended the connection)"
    ):
        folder.read("x")
