"""Where files that came with a job are found, and what a session that runs tasks twice may write; without a JVM."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")

from pyspark import SparkFiles
from pyspark.sql.types import StringType, StructField, StructType

from pipeline.errors import InconclusiveError, PipelineUsageError
from pipeline.sink.options import read_options
from pipeline.spark.shipped import shipped_folder, with_shipped_files
from pipeline.spark.sink import plan_sink

SINK = {"nameServer": "127.0.0.1:1", "topic": "T", "sendTimeoutMs": "1", "retries": "0"}
BODY = StructType([StructField("body", StringType())])


@pytest.mark.parametrize("told", [".", "streaming_job"])
def test_a_bare_name_means_the_shipped_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    (tmp_path / "keys.yml").touch()
    monkeypatch.setattr(SparkFiles, "_root_directory", str(tmp_path / told))
    assert shipped_folder() == tmp_path
    options = read_options({**SINK, "credentialsPath": "keys.yml"}, is_stream=True)
    found = with_shipped_files(options)
    assert found.access.credentials == str(tmp_path / "keys.yml")
    assert options.access.credentials == "keys.yml", "what travels to the tasks"


def test_where_no_spark_has_said_anything_nothing_is_shipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SparkFiles, "_root_directory", None)
    options = read_options({**SINK, "credentialsPath": "keys.yml"}, is_stream=True)
    assert with_shipped_files(options) is options


def test_only_an_exactly_once_sink_may_run_a_task_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkFiles, "_root_directory", None)

    def plan(**more: str) -> None:
        plan_sink(BODY, {**SINK, **more}, overwrite=False, is_stream=True, speculates=True)

    with pytest.raises(PipelineUsageError, match=r"at-least-once needs spark\.speculation=false"):
        plan()
    with pytest.raises(InconclusiveError, match="no queues of topic T"):
        plan(delivery="exactly-once", rowKeys="position")
