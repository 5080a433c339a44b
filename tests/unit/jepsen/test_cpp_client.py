"""What a worker of the C++ client prints, and what becomes of it."""

from __future__ import annotations

import sys
from pathlib import Path

import trio

from jepsen.cpp_client import GROUP, PRODUCER, CppWorker, make_body, read_body
from jepsen.history import Recorder

SCRIPT = r"""
import sys
print('{"event":"started"}', flush=True)
print("the library says something of its own", flush=True)
print('{"event":"send","queue":1,"number":0}')
print('{"event":"ack","queue":1,"number":0,"offset":7}')
print('{"event":"receive","queue":1,"offset":7,"body":"cpp|1|0"}', flush=True)
sys.stdin.read()
print('{"event":"unknown","queue":1,"number":1,"text":"timeout"}', flush=True)
"""


def test_bodies_are_read_back_and_foreign_ones_are_unexpected() -> None:
    assert read_body(make_body("ours", 3, 17)) == ("ours", 17)
    assert read_body(b"something else") == ("something else", -1)
    assert read_body(b"cpp|1|x") == ("cpp", -1)


async def test_lines_become_events_and_the_end_of_input_stops_the_worker(tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text(SCRIPT)
    history = Recorder()
    worker = CppWorker(
        Path(sys.executable), "produce", "h:1", "T", queues=4, broker_name="b", history=history
    )
    worker.command = [sys.executable, str(script)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.run, tmp_path / "log")
        with trio.fail_after(10):
            await worker.has_started.wait()
            await worker.stop()
    assert [(e.kind, e.queue, e.producer, e.number, e.offset) for e in history.events] == [
        ("send", "b/1", PRODUCER, 0, -1),
        ("ack", "b/1", PRODUCER, 0, 7),
        ("receive", "b/1", PRODUCER, 0, 7),
        ("unknown", "b/1", PRODUCER, 1, -1),
    ]
    assert history.events[2].consumer == GROUP
