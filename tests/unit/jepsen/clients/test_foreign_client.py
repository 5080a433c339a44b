"""The lines that the children of a foreign client print, and what becomes of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
import trio

from jepsen.checkers.total_queue import check_total_queue
from jepsen.clients import java
from jepsen.clients.foreign import ForeignClient, ForeignProcess, ForeignProducer, OutputLine
from jepsen.generators import Context, Invocation
from jepsen.history.ops import OpLog
from jepsen.processes import NotReadyError
from jepsen.workloads.queue import QueueWorkload
from jepsen.workloads.queue_foreign import ForeignQueueWorkload

CLIENT = ForeignClient("xyz", "the XYZ client", list)
GROUP = "chaos-xyz"

STARTED = """
import json, sys
print("the library says something of its own", flush=True)
print('{"event": "started"}', flush=True)
"""
PRODUCER = f"""{STARTED}
for line in sys.stdin:
    asked = json.loads(line)
    if asked["key"] == "dies":
        sys.exit(1)
    told = {{"event": "ack", "key": asked["key"], "offset": 7}}
    if asked["key"] == "lost":
        told = {{"event": "unknown", "key": "lost", "text": "timeout"}}
    print(json.dumps(told), flush=True)
"""
RECEIVE = '{"event": "receive", "topic": "T", "queue": 1, "offset": 7, "body": "a", "uniq": "U"}'
CONSUMER = f"{STARTED}print('{RECEIVE}', flush=True)\nsys.stdin.read()\n"


def script(folder: Path, text: str) -> list[str]:
    path = folder / "child.py"
    path.write_text(text)
    return [sys.executable, str(path)]


async def test_sends_are_answered_one_by_one_and_a_child_that_dies_leaves_one_unknown(
    tmp_path: Path,
) -> None:
    producer = ForeignProducer(CLIENT, "h:1", tmp_path)
    producer.process.command = script(tmp_path, PRODUCER)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(producer.process.run)
        with trio.fail_after(60):
            await producer.process.has_started.wait()
            assert await producer.send("a", "T", 1, b"a  ") == OutputLine("ack", "a", offset=7)
            lost = await producer.send("lost", "T", 1, b"lost")
            assert lost == OutputLine("unknown", "lost", text="timeout")
            dead = await producer.send("dies", "T", 1, b"dies")
            assert dead is not None
            assert dead.event == "unknown"
            await producer.process.has_ended.wait()
            assert await producer.send("late", "T", 1, b"late") is None


async def test_deliveries_are_told_and_what_the_library_prints_is_not(tmp_path: Path) -> None:
    lines: list[OutputLine] = []
    came = trio.Event()

    def take(line: OutputLine) -> None:
        lines.append(line)
        came.set()

    process = ForeignProcess(CLIENT, "consume", namesrv="h:1", folder=tmp_path, take=take)
    process.command = script(tmp_path, CONSUMER)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(process.run)
        with trio.fail_after(60):
            await came.wait()
        nursery.cancel_scope.cancel()
    assert process.has_ended.is_set()
    (line,) = lines
    assert (line.topic, line.queue, line.offset, line.body, line.uniq) == ("T", 1, 7, "a", "U")


@contextmanager
def lone_workload(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[tuple[Any, OpLog]]:
    """The workload on no system: its children are scripts."""
    from contextlib import asynccontextmanager

    from jepsen.workloads import queue_foreign

    class Brokers:
        addresses: ClassVar = {"b": ["h:2"]}
        namesrv = "h:1"
        folder = tmp_path

    @asynccontextmanager
    async def nothing(self: QueueWorkload, system: object) -> Any:
        yield

    monkeypatch.setattr(QueueWorkload, "setup", nothing)
    monkeypatch.setattr(queue_foreign, "brokers", lambda _system: Brokers())
    worker = [sys.executable, str(tmp_path / "worker.py")]
    workload = ForeignQueueWorkload(ForeignClient("xyz", "the XYZ client", lambda: worker), 2)
    workload.log = log = OpLog()
    yield workload, log


async def test_what_the_listener_is_handed_stands_in_the_history_as_its_groups(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "worker.py").write_text(CONSUMER)
    with lone_workload(monkeypatch, tmp_path) as (workload, log):
        workload.queues = {"T/b/1": None}
        workload.owe("a")
        with trio.fail_after(60):
            async with workload.setup(None):
                while not any(op.f == "receive" for op in log.ops):
                    await trio.lowlevel.checkpoint()
                outcome = await workload.passed(None)  # no need to ask for offsets any more
        assert (outcome.type, outcome.value) == ("ok", {"group": GROUP, "ends": {}})
    assert [(op.f, op.value) for op in log.ops if op.type == "ok"] == [
        ("join", {"group": GROUP}),
        ("receive", {"T/b/1": [[7, "a", "U"]]}),
    ]
    assert check_total_queue(log.ops).anomalies[0].kind == "unexpected", "nobody sent it"


async def test_of_a_group_whose_only_consumer_ended_by_itself_nothing_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "worker.py").write_text(f"{STARTED}sys.stdin.readline()\n")
    with lone_workload(monkeypatch, tmp_path) as (workload, log):
        with trio.fail_after(60):
            async with workload.setup(None):
                await workload._consumer.ask({})
                while not any(op.f == "note" for op in log.ops):
                    await trio.lowlevel.checkpoint()
        workload.queues = {"T/b/1": None}
        step, _ = workload.final(2).next(Context(0, (1,)))
        assert not isinstance(step, Invocation)
    log.add(0, "invoke", "send", {"key": "a", "queue": "T/b/1"})
    log.add(0, "ok", "send", {"key": "a", "queue": "T/b/1", "offset": 0})
    log.add(2, "invoke", "poll")
    log.add(2, "ok", "poll", {"T/b/1": [[0, "a"]]})
    assert check_total_queue(log.ops).valid is True


async def test_a_client_that_does_not_start_is_said_with_its_last_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "worker.py").write_text("import sys\nsys.exit('no such library')\n")
    with (
        lone_workload(monkeypatch, tmp_path) as (workload, _log),
        pytest.RaisesGroup(pytest.RaisesExc(NotReadyError, match="no such library")),
    ):
        async with workload.setup(None):
            pass


def test_what_a_machine_lacks_for_java_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(java, "FOLDER", tmp_path)
    assert java.lacking() == (
        "the Java client (Maven's rocketmq-client 5.3.3) is not installed: make interop"
    )
    (tmp_path / ".ready").touch()
    assert java.lacking() is None
    assert java.JAVA.worker()[-2:] == [f"{tmp_path}/classes:{tmp_path}/jars/*", "JavaWorker"]
