"""The generators in C and in Python against a made-up server: every request is counted, and each answer judged."""

from __future__ import annotations

import itertools
import json
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.load.driver import LoadDriver
from bench.load.fallback import run_in_python
from bench.load.native import RequestLoad, generator_command, lacking_generator, write_plan
from bench.load.results import Round
from bench.load.running import LoadError, ProcessMeter, RoundPlan, run_generator
from bench.loadgen import FrameTemplate, batch_template, send_template
from tests.integration.bench.fake_server import FakeServer, HangUpError, Reply

pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.skipif(lacking_generator() is not None, reason=str(lacking_generator())),
]

PACES = (RoundPlan(0.05, 0.5, 2), RoundPlan(0.05, 5.0, 2), RoundPlan(0.05, 40.0, 2))
"""The longer ones are for a machine on which a server of threads has answered nearly nothing in the shorter."""

ENOUGH = 20
"""Requests of a round."""

Runner = Callable[[FakeServer, RequestLoad], list[Round]]


def until_enough(
    server: FakeServer, once: Callable[[RoundPlan], list[Round]], load: RequestLoad
) -> list[Round]:
    """Run a load in the shortest rounds that have enough requests; the server has noted those of no other run."""
    for pace in PACES:
        server.forget()
        rounds = once(pace)
        if load.is_oneway or min(each.requests for each in rounds) >= ENOUGH:
            break
    return rounds


@pytest.fixture
def run(tmp_path: Path) -> Runner:
    def run(server: FakeServer, load: RequestLoad) -> list[Round]:
        write_plan(tmp_path / "plan", load.templates)

        def once(pace: RoundPlan) -> list[Round]:
            command = generator_command(tmp_path / "plan", server.address, load, pace)
            meter = ProcessMeter([os.getpid()])
            return run_generator(command, pace, meter, per_request=load.per_request)

        return until_enough(server, once, load)

    return run


def stored(header: dict[str, Any]) -> Reply:
    ext = {"queueId": header["extFields"].get("e", "0"), "queueOffset": "7", "msgId": "0A"}
    return {"code": 0, "extFields": ext}, b""


def sends(**more: Any) -> RequestLoad:
    return RequestLoad(templates=[send_template("T", queue, b"body") for queue in range(3)], **more)


@pytest.mark.parametrize("more", [{}, {"connections": 5}, {"in_flight": 40}])
def test_every_request_is_whole_has_a_key_of_its_own_and_is_answered(
    run: Runner, more: dict[str, int]
) -> None:
    with FakeServer(stored) as server:
        rounds = run(server, sends(**more))
    assert server.connections == more.get("connections", 1)
    keys = [header["extFields"]["i"].split("\x02")[0] for header in server.headers]
    assert len(set(keys)) == len(keys)
    assert set(server.bodies) == {b"body"}
    queues = [header["extFields"]["e"] for header in server.headers]
    assert {queues.count(each) for each in "012"} <= {len(queues) // 3, len(queues) // 3 + 1}
    assert 0 < sum(each.requests for each in rounds) <= len(server.headers)
    assert [each.refused for each in rounds] == [0, 0]


def test_samples_name_keys_that_were_sent_and_places_that_were_answered(run: Runner) -> None:
    with FakeServer(stored) as server:
        first, _ = run(server, sends(in_flight=8))
    sent = {header["extFields"]["i"].split("\x02")[0][-16:] for header in server.headers}
    assert 1 < len(first.samples) <= 16
    assert {sample.key for sample in first.samples} <= sent
    assert {sample.queue_offset for sample in first.samples} == {7}


def test_other_codes_than_0_are_refusals_and_the_first_is_told(run: Runner) -> None:
    numbers = itertools.count()

    def now_and_then(header: dict[str, Any]) -> Reply:
        return stored(header) if next(numbers) % 4 else ({"code": 10, "remark": "slow"}, b"")

    with FakeServer(now_and_then) as server:
        first, _ = run(server, sends())
    assert first.refused == pytest.approx(first.requests / 4, abs=1)
    assert first.messages == first.requests - first.refused
    assert '"code":10' in first.error


def test_records_of_replies_are_counted_also_where_one_is_cut_off(run: Runner) -> None:
    body = struct.pack(">i", 12) + b"x" * 8 + struct.pack(">i", 4) + struct.pack(">i", 900) + b"x"
    with FakeServer(lambda _: ({"code": 0}, body)) as server:
        first, _ = run(server, RequestLoad(templates=[FrameTemplate(11, {})], per_request=None))
    assert first.messages == 2 * first.requests > 0


def test_latencies_are_no_shorter_than_the_server_takes(run: Runner) -> None:
    numbers = itertools.count()

    def slow_half_of_the_time(header: dict[str, Any]) -> Reply:
        time.sleep(0.02 if next(numbers) % 2 else 0)
        return stored(header)

    with FakeServer(slow_half_of_the_time) as server:
        first, _ = run(server, sends())
    assert first.max_us >= first.p99_us >= 0.97 * 20_000, "a bucket is 3 % wide"
    assert first.p50_us <= first.p99_us
    assert first.seconds >= 0.15


def test_a_batch_has_one_key_mark_for_all_and_numbers_for_each(run: Runner) -> None:
    with FakeServer(stored) as server:
        (first, _) = run(
            server, RequestLoad(templates=[batch_template("T", 0, b"x", 3)], per_request=3)
        )
    keys = [part[:32] for part in server.bodies[0].split(b"UNIQ_KEY\x01")[1:]]
    assert len(set(keys)) == 3
    assert len({key[16:] for key in keys}) == 1
    assert first.messages == 3 * first.requests


def test_what_is_one_way_must_not_be_answered(run: Runner) -> None:
    load = RequestLoad(templates=[send_template("T", 0, b"body", is_oneway=True)], is_oneway=True)
    with FakeServer(lambda _: None) as silent:
        assert len(run(silent, load)) == 2
    assert {header["flag"] for header in silent.headers} == {2}
    with FakeServer(stored) as talking, pytest.raises(LoadError, match="nobody waits for"):
        run(talking, load)


def test_a_reply_to_nothing_ends_the_load(run: Runner) -> None:
    with (
        FakeServer(lambda _: ({"code": 0, "opaque": 999_999_999}, b"")) as server,
        pytest.raises(LoadError, match="nobody waits for"),
    ):
        run(server, sends())


def test_a_server_that_hangs_up_ends_the_load(run: Runner) -> None:
    def hang_up(_: dict[str, Any]) -> Reply:
        raise HangUpError

    with FakeServer(hang_up) as server, pytest.raises(LoadError, match="closed a connection"):
        run(server, sends())


def test_the_one_in_python_does_the_same_for_one_connection() -> None:
    with FakeServer(stored) as server:
        meter, load = ProcessMeter([os.getpid()]), sends(in_flight=4)
        rounds = until_enough(
            server, lambda pace: run_in_python(server.address, load, pace, meter), load
        )
    assert len(rounds) == 2
    assert all(each.messages == each.requests > 0 for each in rounds)
    bodies = {json.dumps(header["extFields"]["b"]) for header in server.headers}
    assert bodies == {'"T"'}


class FakeGroup:
    """A group whose only broker is a made-up server."""

    def __init__(self, server: FakeServer) -> None:
        host, port = server.address
        self._leader = SimpleNamespace(host=host, port=port, pid=os.getpid())

    def make_topic(self, topic: str, queues: int) -> None:
        pass

    def wait_leader(self, topic: str) -> SimpleNamespace:
        return self._leader

    def in_order(self, leader: SimpleNamespace) -> list[SimpleNamespace]:
        return [leader]


@pytest.mark.parametrize("keeps", ["everything", "the key alone", "nothing"])
def test_what_was_acknowledged_must_stand_at_its_place(
    monkeypatch: pytest.MonkeyPatch, keeps: str
) -> None:
    monkeypatch.setattr("bench.load.driver.CHECK_PATIENCE_S", 0.05)
    keys: list[str] = []

    def answer(header: dict[str, Any]) -> Reply:
        if header["code"] == 310:
            keys.append(header["extFields"]["i"].split("\x02")[0])
            return stored(header)
        if keeps == "nothing":
            return {"code": 19}, b""
        body = b"x" * 5 if keeps == "everything" else b"y" * 5
        return {"code": 0}, " ".join(keys).encode() + body

    with FakeServer(answer) as server:
        driver = LoadDriver(FakeGroup(server), "T", queues=2, body_bytes=5)
        for seconds in (0.05, 2.0, 20.0):
            found = driver.measure(driver.sends(1, 1), RoundPlan(0.05, seconds, 1))
            if found.checked:
                break
    assert found.checked > 0
    assert len(found.missing) == (0 if keeps == "everything" else found.checked)
    assert (found.problem is None) == (keeps == "everything")


def test_a_load_begins_when_sends_are_acknowledged() -> None:
    """A master whose follower has not come yet answers 11, and has stored the message."""
    codes = iter((11, 11))

    def at_last(header: dict[str, Any]) -> Reply:
        return {"code": next(codes, 0)}, b""

    with FakeServer(at_last) as server:
        LoadDriver(FakeGroup(server), "T", queues=1, body_bytes=5)
    assert len(server.headers) == 3


def test_a_queue_that_cannot_be_filled_is_told() -> None:
    def full(header: dict[str, Any]) -> Reply:
        if header["code"] == 30:
            return {"code": 0, "extFields": {"offset": "0"}}, b""
        return stored(header) if header["code"] == 310 else ({"code": 1, "remark": "full"}, b"")

    with FakeServer(full) as server:
        driver = LoadDriver(FakeGroup(server), "T", queues=2, body_bytes=5)
        with pytest.raises(LoadError, match="full"):
            driver.fill(10)
