"""A profile of small frames, computed by hand as well; and of a real log."""

from __future__ import annotations

import datetime
import json
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli import main
from pipeline.jobs.context import JobContext

pytestmark = pytest.mark.slow

NOON = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)
MESSAGE = (
    "topic string, queueId int, queueOffset bigint, body binary, properties map<string,string>, "
    "storeTimestamp timestamp, op string, command string"
)


def at(seconds: int) -> datetime.datetime:
    return NOON + datetime.timedelta(seconds=seconds)


def message(
    topic: str, offset: int, seconds: int, body: bytes = b"x", **named: str
) -> tuple[Any, ...]:
    return (topic, 0, offset, body, named, at(seconds), None, None)


def commit(group: str, topic: str, offset: int, seconds: int) -> tuple[Any, ...]:
    command = json.dumps({"op": "commit_offsets", "commits": [[group, topic, 0, offset, ""]]})
    return ("rmq_sys_dledger_offsets", 0, 0, b"", {}, at(seconds), "commit_offsets", command)


@pytest.fixture
def history(spark: Any) -> Any:
    orders = [message("Orders", n, n * 60, b"x" * (n + 1)) for n in range(90)]
    back = [
        message("%RETRY%slow", n, 100 + n, RETRY_TOPIC="Orders", UNIQ_KEY=f"k{n % 4}")
        for n in range(12)
    ]
    dead = [message("%DLQ%slow", 0, 4000, RETRY_TOPIC="Orders", UNIQ_KEY="k0")]
    commits = [
        commit("slow", "Orders", 10, 9 * 60 + 30),
        commit("slow", "Orders", 20, 19 * 60 + 90),
    ]
    commits += [commit("quick", "Orders", 20, 19 * 60 + 1)]
    return spark.createDataFrame(orders + back + dead + commits, MESSAGE)


def test_traffic_retries_and_delays(history: Any) -> None:
    from pipeline.spark import profile

    messages = profile.slim(history.where("op is null"))
    assert "body" not in messages.columns
    hours = profile.traffic(messages)
    assert [
        (r.topic, r.hour.hour, r.messages, r.bytes, r.mean_bytes, r.max_bytes)
        for r in hours.collect()
    ] == [
        ("Orders", at(0).hour, 60, sum(range(1, 61)), 31, 60),
        ("Orders", at(3600).hour, 30, sum(range(61, 91)), 76, 90),
    ]
    back = [row.asDict() for row in profile.retries(messages, hours).collect()]
    assert [(r["retries"], r["dead_letters"], r["distinct_messages"]) for r in back] == [
        (12, 0, 4),
        (0, 1, 1),
    ]
    assert [(r["group"], r["topic"], r["is_storm"]) for r in back] == [
        ("slow", "Orders", True),
        ("slow", "Orders", False),
    ]
    slow, quick = profile.delays(history).collect()
    assert (slow.group, slow.commits, slow.max_s) == ("slow", 2, 90.0)
    assert (quick.group, quick.p50_s) == ("quick", 1.0)


def test_a_profile_is_printed_and_drawn(
    spark: Any,
    history: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(JobContext, "spark", spark)
    monkeypatch.setattr(JobContext, "close", lambda _: None)
    folder, plot = tmp_path / "history", tmp_path / "profile.svg"
    history.where("op is null").withColumn("brokerName", history.topic).write.parquet(str(folder))
    command = ["profile", "--parquet", str(folder)]
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        assert main([*command, "--plot", str(plot), "--json"]) == 0
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()
    found = json.loads(capsys.readouterr().out)
    assert [row["hour"] for row in found["traffic"]] == [f"{at(0)}", f"{at(3600)}"], "in UTC"
    assert [row["messages"] for row in found["traffic"]] == [60, 30]
    drawn = plot.read_text()
    assert drawn.startswith("<?xml")
    assert len(drawn) > 10_000
    assert main([*command, "--plot", str(tmp_path / "profile.pdf")]) == 2
    assert "must end in .png or .svg" in capsys.readouterr().err
    assert main([*command, "--plot", str(tmp_path / "no" / "p.png")]) == 2
    assert main(["profile", "--parquet", str(tmp_path / "nowhere")]) == 2
