"""Every command and example of docs/pipeline-jobs.md, and the examples of docs/pipeline.md, run on real data."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")

import pyarrow.parquet as pq

from dledger_mq import Message
from dledger_mq.message.record import decode_records
from pipeline.archive.manifests import listed_files
from pipeline.cli import main
from pipeline.jobs.context import JobContext
from tests.integration.pipeline.second_way import pulled
from tests.integration.pipeline.topics import Topics, load
from tests.unit.pipeline.stores import write_snapshot, write_store
from tests.unit.store.lone_broker import LoneBroker

pytestmark = [pytest.mark.slow, pytest.mark.integration]
DOCS = Path(__file__).resolve().parents[3] / "docs"
JOBS_PAGE = (DOCS / "pipeline-jobs.md").read_text()
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^    dledger-pipeline (.*)$", re.MULTILINE)
FOUND_NOTHING = 1


def replicas(folder: Path) -> list[bytes]:
    """Write three stores of one log, with a snapshot at its end; returns the bodies on `orders`."""
    broker = LoneBroker()
    for number in range(30):
        broker.stage("orders", number % 2, b"%d" % number, KEYS=f"order-{number}")
        if number % 3 == 2:
            broker.commit()
    for name in ("n0", "n1", "n2"):
        sealed = write_store(folder / name, broker.log.entries)
        write_snapshot(folder / name, sealed, len(sealed))
    return [
        record.body
        for entry in broker.log.entries
        if entry.body
        for record in decode_records(entry.body)
        if record.topic == "orders"
    ]


def test_every_command_and_example_for_logs_runs(
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(JobContext, "spark", spark)
    monkeypatch.setattr(JobContext, "close", lambda _: None)
    bodies = replicas(tmp_path / "data")
    archive = str(tmp_path / "archive")
    shown: dict[str, dict[str, Any]] = {}
    for line in COMMAND.findall(JOBS_PAGE):
        if "s3://" in line:  # tests/unit/pipeline/test_archive_in_an_object_store.py
            continue
        # Nobody can be asked how far this log is committed.
        given = line.replace("-n 127.0.0.1:9876 --node n0", "--up-to end")
        given = given.replace("/var/archive", archive).replace("data/", f"{tmp_path}/data/")
        words = shlex.split(given.replace(" rebuilt", f" {tmp_path}/rebuilt"), comments=True)
        capsys.readouterr()
        code = main([*words, "--json"])
        said = capsys.readouterr()
        assert code == 0 or (words[0], code) == ("find", FOUND_NOTHING), (line, said)
        shown.setdefault(" ".join(words[:1] + words[4:5]), json.loads(said.out))
    assert {name.partition(" ")[0] for name in shown} == {
        *("archive", "verify", "rebuild", "audit", "find"),
    }
    assert [each["keys"] for each in shown["find -k"]["messages"]] == ["order-17"]
    names: dict[str, Any] = {"spark": spark}
    for number, example in enumerate(BLOCK.findall(JOBS_PAGE)):
        text = example.replace("/var/archive", archive).replace("data/", f"{tmp_path}/data/")
        exec(compile(text, f"example {number}", "exec"), names)
    of_log = [bytes(row.body) for row in names["log"].where("topic = 'orders'").collect()]
    of_archive = [bytes(row.body) for row in names["rows"].collect()]
    by_pyarrow = [
        body
        for path in listed_files(archive, frozenset({"orders"}))
        for body in pq.ParquetFile(path).read(columns=["body"])["body"].to_pylist()
    ]
    assert sorted(of_log) == sorted(of_archive) == sorted(by_pyarrow) == sorted(bodies)


def test_the_examples_of_the_tour_run(spark: Any, topics: Topics, tmp_path: Path) -> None:
    producer, job, writes, on_a_cluster = BLOCK.findall((DOCS / "pipeline.md").read_text())
    assert "start_stream(" in job  # lines of examples/enrich_orders.py: test_pipeline_page.py
    assert (
        '.option("credentialsPath", "keys.yml")' in on_a_cluster
    )  # as test_cluster.py reads, on one
    source, target = topics.fresh(), topics.fresh()
    text = producer.replace("127.0.0.1:9876", topics.namesrv).replace("1000", "20")
    exec(compile(text.replace('"Orders"', f'"{source}"'), "the producer", "exec"), {})
    assert load(spark, topics, source).where("cast(body as string) like '%450}'").count() == 20
    topics.send([Message(target, b"first")])
    batch, stream = writes.strip().splitlines()
    options = {"nameServer": topics.namesrv, "topic": target}
    rows = spark.range(5).selectExpr("cast(id as string) body")
    exec(batch, {"frame": rows, "options": options})
    rows.write.parquet(str(tmp_path / "rows"))
    live = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "rows"))
    names = {"frame": live, "options": options, "folder": str(tmp_path / "checkpoint")}
    exec(f"query = {stream}", names)
    query: Any = names["query"]
    query.processAllAvailable()
    query.stop()
    written = [b"%d" % number for number in range(5)]
    assert sorted(m.body for m in pulled(topics, target)) == sorted([b"first", *written, *written])
