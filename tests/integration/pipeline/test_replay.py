"""Messages of the past come again: in order, once, with their origin, and a replay that is repeated adds nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `spark`)")

import pyarrow.compute as pc
import pyarrow.parquet as pq

from dledger_mq import Message, MessageQueue, ReceivedMessage
from dledger_mq.blocking import PullConsumer
from jepsen.processes import poll
from pipeline.cli import main
from pipeline.jobs.context import JobContext
from tests.integration.pipeline.topics import PATIENCE_S, Topics, load
from tests.unit.pipeline.stores import write_store
from tests.unit.store.lone_broker import LoneBroker

pytestmark = pytest.mark.slow


@pytest.fixture
def kept_open(monkeypatch: pytest.MonkeyPatch, spark: Any) -> Any:
    """The command uses the tests' session and leaves it open."""
    monkeypatch.setattr(JobContext, "spark", spark)
    monkeypatch.setattr(JobContext, "close", lambda _: None)
    return spark


def messages(topics: Topics, topic: str) -> dict[int, list[ReceivedMessage]]:
    found: dict[int, list[ReceivedMessage]] = {}
    with PullConsumer(topics.namesrv, "reader", timeout_s=PATIENCE_S) as reader:
        for queue in reader.queues(topic):
            some = found[queue.queue_id] = []
            end = reader.max_offset(queue)
            while len(some) < end:
                some.extend(reader.pull(queue, len(some), max_messages=256).messages)
    return found


def test_a_table_is_replayed_once(
    kept_open: Any, topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = topics.fresh(), topics.fresh()
    topics.fill(old, 200)
    mine = {"colour": "red", "ORIGIN_COUNTRY": "is", "__SHARDINGKEY": "s7"}
    marked = Message(old, b"200", tags="T", keys="a b", properties=mine, flag=7)
    topics.producer.send(marked, queue=MessageQueue(old, topics.group.group, 2))
    folder = str(tmp_path / "history")
    load(kept_open, topics, old).write.parquet(folder)
    command = ["replay", "--parquet", folder, "--topic", old, "--to-topic", new, "--id", new]
    command += ["--name-server", topics.namesrv, "--json"]

    assert main([*command, "--dry-run"]) == 0
    counted = json.loads(capsys.readouterr().out)
    assert (counted["messages"], counted["sent"], len(counted["queues"])) == (201, 0, 4)

    assert main(command) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["sent"], done["already_there"]) == (201, 0)
    before, after = messages(topics, old), messages(topics, new)
    for number, some in before.items():
        again = after[number]
        assert [m.body for m in again] == [m.body for m in some], "the order of the queue"
        assert [m.properties["ORIGIN_QUEUE_OFFSET"] for m in again] == [
            str(m.queue_offset) for m in some
        ]
        assert all(m.properties["ORIGIN_TOPIC"] == old for m in again)
    (last,) = [m for some in after.values() for m in some if m.body == b"200"]
    assert (last.tags, last.keys, last.flag) == ("T", ("a", "b"), 7)
    assert mine.items() <= last.properties.items()

    assert main(command[:-1]) == 0, "as after a crash: started again under its id"
    assert "0 sent, 201 already there" in capsys.readouterr().out
    assert messages(topics, new) == after

    missing = [*command[:4], "NoSuchTopic", *command[5:]]
    assert main(missing) == 2
    assert f"there is no topic NoSuchTopic in {folder}: it has {old}" in capsys.readouterr().err
    assert main([*command, "--key", "c"]) == 2
    assert "is one of those asked for (--from, --to, --key)" in capsys.readouterr().err


def test_delays_come_again_if_they_are_wanted(
    kept_open: Any, topics: Topics, tmp_path: Path
) -> None:
    old, folder = topics.fresh(), str(tmp_path / "history")
    delayed = [Message(old, b"level", delay_level=1), Message(old, b"time", delay_ms=1500)]
    at_ms = int(time.time() * 1000) + 2500
    delayed += [Message(old, b"at", deliver_at_ms=at_ms)]
    topics.send([*delayed, Message(old, b"now")])
    assert poll(lambda: sum(map(len, messages(topics, old).values())) == 4, PATIENCE_S)
    load(kept_open, topics, old).write.parquet(folder)
    (at,) = [m for some in messages(topics, old).values() for m in some if m.body == b"at"]

    def has_come(new: str) -> bool:
        return sum(map(len, messages(topics, new).values())) == 5

    for new, more in ((topics.fresh(), ["--keep-delays"]), (topics.fresh(), [])):
        command = ["replay", "--parquet", folder, "--topic", old, "--to-topic", new, "--id", new]
        topics.fill(new, 1)
        assert main([*command, "--name-server", topics.namesrv, *more]) == 0
        assert poll(partial(has_come, new), PATIENCE_S)
        found = {m.body: m for some in messages(topics, new).values() for m in some}
        waited = {body for body, m in found.items() if "REAL_TOPIC" in m.properties}
        assert waited == ({b"level", b"time", b"at"} if more else set())
        if more:  # for as long as it waited first, from when it was made
            assert found[b"at"].properties["TIMER_DELAY_MS"] == str(at_ms - at.born_timestamp_ms)


def test_how_long_a_message_waits_again_is_what_its_sender_said(spark: Any) -> None:
    from pipeline.spark.replay import _delays

    born_ms = 1_700_000_000_000
    wanted: list[tuple[dict[str, str], int | None, int | None]] = [
        ({"DELAY": "3"}, 3, None),
        ({"DELAY": "3", "TIMER_DELAY_MS": "70"}, 3, None),
        ({"TIMER_DELAY_SEC": "7"}, None, 7000),
        ({"TIMER_DELAY_MS": "70"}, None, 70),
        ({"TIMER_DELIVER_MS": str(born_ms + 2500)}, None, 2500),
        ({"TIMER_DELIVER_MS": str(born_ms - 1)}, None, None),
        ({"TIMER_DELIVER_MS": "soon", "DELAY": "long"}, None, None),
        ({}, None, None),
    ]
    frame = spark.createDataFrame(
        [(number, properties) for number, (properties, _, _) in enumerate(wanted)],
        "number int, properties map<string,string>",
    ).selectExpr("*", f"timestamp_millis({born_ms}) bornTimestamp")
    rows = frame.select("number", *_delays()).orderBy("number").collect()
    assert [(row.delayLevel, row.delayMs) for row in rows] == [each[1:] for each in wanted]


def test_an_interrupted_replay_is_cut_alike_and_goes_on(
    kept_open: Any, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pipeline.spark import replay as replaying

    old, new = topics.fresh(), topics.fresh()
    topics.fill(old, 100)
    folder = str(tmp_path / "history")
    load(kept_open, topics, old).write.parquet(folder)
    monkeypatch.setattr(replaying, "batch_span", lambda counts: 10)
    command = ["replay", "--parquet", folder, "--topic", old, "--to-topic", new, "--id", new]
    command += ["--name-server", topics.namesrv, "--rate", "1000"]
    real = replaying.outgoing
    batches: list[int] = []

    def fails_in_the_second(*arguments: Any) -> Any:
        batches.append(1)
        if len(batches) == 2:
            raise KeyboardInterrupt
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(replaying, "outgoing", fails_in_the_second)
        assert main(command) == 130
    assert sum(map(len, messages(topics, new).values())) == 40, "the first batch"
    assert main(command) == 0
    for number, some in messages(topics, new).items():
        assert [int(m.body) for m in some] == list(range(number, 100, 4))


def test_a_batch_reads_what_has_its_rows_and_one_without_rows_is_none(
    kept_open: Any, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two queues of 240 messages in batches of 40 offsets of each; none of the first half is wanted."""
    from pipeline.spark import replay as replaying
    from pipeline.spark.replay_sources import LogSource

    count, span = 480, 40
    broker = LoneBroker()
    for number in range(count):
        broker.now_ms += 7
        broker.stage("Old", number % 2, b"%d" % number)
        if number % 3 == 2:
            broker.commit()
    entries = write_store(tmp_path / "store", broker.log.entries, 4000)
    scan = {"path": str(tmp_path / "store"), "upTo": "end"}
    table = kept_open.read.format("commitlog").options(**scan).load().where("topic = 'Old'")
    held = table.toArrow().sort_by("queueOffset")
    folder = tmp_path / "files"
    folder.mkdir()
    for number in range(12):
        pq.write_table(held.slice(number * 40, 40), folder / f"{number}.parquet")
    (first,) = pc.unique(held.filter(pc.field("queueOffset") == 120)["storeTimestamp"])
    first_ms = round(first.as_py().timestamp() * 1000)
    monkeypatch.setattr(replaying, "batch_span", lambda counts: span)
    monkeypatch.setattr(replaying, "STRETCH_OFFSETS", span)
    parts: list[Any] = []
    entries_read: list[int] = []
    real, real_part = replaying.outgoing, LogSource.part

    def outgoing(rows: Any, target: Any) -> Any:
        parts.append(rows)
        return real(rows, target)

    def part(self: LogSource, topic: str, places: Iterable[int]) -> Any:
        entries_read.append(max(places) - min(places) + 1)
        return real_part(self, topic, places)

    monkeypatch.setattr(replaying, "outgoing", outgoing)
    monkeypatch.setattr(LogSource, "part", part)
    for source, bound in (
        (["--store", str(tmp_path / "store")], ["--up-to", "end"]),
        (["--parquet", str(folder)], []),
    ):
        new = topics.fresh()
        topics.fill(new, 1)
        command = ["replay", *source, *bound, "--topic", "Old", "--to-topic", new, "--id", new]
        command += ["--name-server", topics.namesrv, "--from", str(first_ms)]
        parts.clear()
        assert main(command) == 0
        stored = sum(map(len, messages(topics, new).values()))
        assert (stored, len(parts)) == (1 + count // 2, 3)
        if entries_read:
            assert sum(entries_read) <= len(entries) // 2 + 2 * 3, "of the log, over all batches"
            entries_read.clear()
            continue
        files = [files_read(each) for each in parts]
        assert sum(files) <= 6 + 2 * 3, f"{files} files of 12 are read"


def files_read(frame: Any) -> int:
    """How many files Spark opens to read a frame, by its own count."""
    frame.toArrow()
    leaves = frame._jdf.queryExecution().executedPlan().collectLeaves()
    return int(leaves.head().metrics().apply("numFiles").value())


def test_a_topic_that_was_made_anew_is_not_taken_for_one(
    kept_open: Any, topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from pyspark.sql.functions import expr

    old, folder = topics.fresh(), str(tmp_path / "history")
    topics.fill(old, 20)
    first = load(kept_open, topics, old)
    later = first.withColumn("storeTimestamp", first.storeTimestamp + expr("interval 1 day"))
    again = first.where("queueId = 1")
    command = ["replay", "--parquet", folder, "--topic", old, "--to-topic", "New", "--id", old]
    command += ["--name-server", topics.namesrv, "--dry-run"]

    first.union(again).write.parquet(folder)
    assert main(command) == 0, "the same message twice is one"
    later.where("queueId = 1").write.mode("append").parquet(folder)
    assert main(command) == 2
    assert f"queue {topics.group.group}/1 had 5 offsets twice" in capsys.readouterr().err


def test_what_cannot_be_replayed(
    kept_open: Any, topics: Topics, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept_open.range(3).write.parquet(str(tmp_path / "other"))
    rest = ["--topic", "T", "--to-topic", "U", "--id", "x", "--name-server", topics.namesrv]
    for source, why in (
        (["--parquet", str(tmp_path / "nothing")], "there is no"),
        (["--parquet", str(tmp_path / "other")], "have no column topic"),
        (["--parquet", str(tmp_path), "--rate", "0"], "must be above 0"),
    ):
        assert main(["replay", *source, *rest]) == 2
        assert why in capsys.readouterr().err
