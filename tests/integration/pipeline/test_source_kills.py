"""Leaders and Spark itself die in the middle of a batch: every message is read, and none twice."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dledger_mq.blocking import Producer
from jepsen.processes import Group, Process, poll
from pipeline.planning import INITIAL_FILE
from pipeline.spark.streams import METADATA_FOLDER, Restarts, start_stream
from tests.integration.pipeline import stream_program
from tests.integration.pipeline.stream_program import start_copy
from tests.integration.pipeline.topics import Topics, leader_of, load, numbers

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PROGRAM = stream_program.__file__
PATIENCE_S = 600


@pytest.fixture(scope="module")
def frail(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    """Three brokers that may be killed."""
    with Group(tmp_path_factory.mktemp("frail")) as group:
        group.start()
        group.wait_listening()
        with Producer(group.namesrv, "tests", timeout_s=PATIENCE_S) as producer:
            topics = Topics(group, producer)
            topics.wait_writable()
            yield topics


def wait_for_leader(group: Group) -> Process:
    found: list[Process] = []

    def is_there() -> bool:
        leader = leader_of(group)
        found[:] = [leader] if leader is not None else []
        return bool(found)

    assert poll(is_there, PATIENCE_S), "no leader"
    return found[0]


def test_a_batch_outlives_the_leaders_that_serve_it(spark: Any, frail: Topics) -> None:
    topic = frail.fresh()
    frail.fill(topic, 4000)
    got: list[list[int]] = []
    failures: list[Exception] = []

    def read() -> None:
        try:
            got.append(numbers(load(spark, frail, topic, pullBatchSize=1)))
        except Exception as error:  # noqa: BLE001 - the test tells it
            failures.append(error)

    kills = 0
    tracker = spark.sparkContext.statusTracker()
    reader = threading.Thread(target=read)
    reader.start()
    assert poll(lambda: bool(tracker.getActiveStageIds()) or not reader.is_alive(), PATIENCE_S)
    while reader.is_alive() and kills < 3:
        leader = wait_for_leader(frail.group)
        if not tracker.getActiveStageIds():
            break
        leader.kill()
        kills += 1
        wait_for_leader(frail.group)
        leader.start()
        assert poll(leader.is_listening, PATIENCE_S)
    reader.join(PATIENCE_S)
    assert not failures, str(failures[0])
    assert got == [list(range(4000))]
    assert kills > 0


def test_a_query_is_started_again_after_an_outage_of_all_brokers(
    spark: Any, frail: Topics, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The topics are gone from the name server meanwhile, and are not called lost."""
    topic = frail.fresh()
    frail.fill(topic, 40)
    query = start_stream(
        spark,
        {"nameServer": frail.namesrv, "topic": topic, "startingOffsets": "earliest"}
        | {"fetchOffset.numRetries": "1"},
        lambda frame: frame.writeStream.format("parquet").option("path", f"{tmp_path}/out"),
        checkpoint=f"{tmp_path}/checkpoint",
        restarts=Restarts(most=100, pause_max_s=2),
    )
    query.processAllAvailable()
    ends: list[bool | Exception] = []

    def wait() -> None:
        try:
            ends.append(query.awaitTermination(PATIENCE_S) is True)
        except Exception as error:  # noqa: BLE001 - the test tells it
            ends.append(error)

    def has_all() -> bool:
        assert not ends, ends
        return numbers(spark.read.parquet(f"{tmp_path}/out")) == list(range(80))

    def has_said() -> bool:
        assert not ends, ends
        return "is started again" in caplog.text

    waiter = threading.Thread(target=wait)
    with caplog.at_level(logging.WARNING, "pipeline.spark.streams"):
        waiter.start()
        for node in frail.group.nodes:
            node.kill()
        assert poll(has_said, PATIENCE_S)
    for node in frail.group.nodes:
        node.start()
    frail.wait_writable()
    frail.fill(topic, 40, first=40)
    assert poll(has_all, PATIENCE_S, 1.0)
    query.stop()
    waiter.join(PATIENCE_S)
    assert ends == [True]
    assert query.restart_count > 0
    assert f"topic {topic} cannot be asked about: name server {frail.namesrv} knows no leader" in (
        caplog.text
    )
    assert numbers(spark.read.parquet(f"{tmp_path}/out")) == list(range(80))


class Copy:
    """The program, in a session of its own, so that it can be killed with its JVM and its workers."""

    def __init__(self, topics: Topics, topic: str, folder: Path, options: dict[str, str]) -> None:
        self.folder = folder
        self._log = (folder / "log").open("ab")
        self._child = subprocess.Popen(
            [sys.executable, PROGRAM, topics.namesrv, topic, folder, json.dumps(options)],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def kill(self) -> None:
        """SIGKILL to all of it."""
        os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        self._log.close()

    def wait_for(self, what: str, interval_s: float = 0.001) -> None:
        """Wait until a file of the checkpoint is there."""
        path = self.folder / "checkpoint" / what

        def is_there() -> bool:
            assert self._child.poll() is None, (self.folder / "log").read_text()[-2000:]
            return path.exists()

        assert poll(is_there, PATIENCE_S, interval_s), f"no {what}"

    def is_committed(self, batch: int) -> bool:
        """Whether the checkpoint says that a batch is done."""
        return (self.folder / "checkpoint" / "commits" / str(batch)).exists()


def test_spark_killed_in_its_batches_loses_and_repeats_nothing(
    spark: Any, frail: Topics, tmp_path: Path
) -> None:
    slow = {"pullBatchSize": "1", "startingOffsets": "latest", "maxOffsetsPerTrigger": "200"}
    for number in range(4):
        topic, folder = frail.fresh(), tmp_path / f"{number}"
        folder.mkdir()
        frail.fill(topic, 8)
        copy = Copy(frail, topic, folder, slow)
        try:
            copy.wait_for(f"{METADATA_FOLDER}/{INITIAL_FILE}", 0.1)
            frail.fill(topic, 480, first=8)
            copy.wait_for("offsets/0")
        finally:
            copy.kill()
        if not copy.is_committed(0):
            break
    else:
        pytest.fail("the kills came too late to prove anything")
    # What `latest` means has moved: without the kept initial offset, 480 messages would be lost here.
    frail.fill(topic, 100, first=488)
    copy = Copy(frail, topic, folder, slow)
    try:
        copy.wait_for("offsets/1", 0.01)
        wait_for_leader(frail.group).kill()
        copy.wait_for("offsets/2")
    finally:
        copy.kill()
    for node in frail.group.nodes:
        if node.pid is None:
            node.start()
    query = start_copy(spark, frail.namesrv, topic, folder, {}, available_now=True)
    assert query.awaitTermination(PATIENCE_S)
    assert numbers(spark.read.parquet(str(folder / "out"))) == list(range(8, 588))
