"""The generators' processes: the plan that they read, the lines that they print, and how they fail."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from bench.load import java, native
from bench.load.native import CompileError, lacking_generator, write_plan
from bench.load.results import AckSample
from bench.load.running import LoadError, ProcessMeter, RoundPlan, run_generator
from bench.loadgen import FrameTemplate, batch_template, send_template
from bench.systems.brokers import Setup
from bench.systems.rocketmq import KINDS

REPLY = {"code": 0, "extFields": {"queueId": "3", "queueOffset": "17"}}
LINE = {
    "seconds": 2.0,
    "requests": 10,
    "refused": 2,
    "records": 96,
    "p50_us": 5.0,
    "p99_us": 7.0,
    "max_us": 9.0,
    "generator_cpu_s": 0.000_008,
    "error_hex": b"full".hex(),
    "samples": [
        {"key": "KEY", "header_hex": json.dumps(REPLY).encode().hex()},
        {"key": "PULL", "header_hex": b'{"code":0,"extFields":{"nextBeginOffset":"1"}}'.hex()},
    ],
}


def saying(*lines: object, status: int = 0) -> list[str]:
    """A generator that prints these lines."""
    text = "\n".join(json.dumps(line) for line in lines)
    program = (
        f"import sys; print({text!r}, flush=True); sys.stderr.write('gone'); sys.exit({status})"
    )
    return [sys.executable, "-c", program]


def meter() -> ProcessMeter:
    return ProcessMeter([os.getpid()])


def test_a_line_becomes_a_round() -> None:
    command = saying({"warm": True}, LINE, {"sent": 10})
    (found,) = run_generator(command, RoundPlan(0, 0, 1), meter(), per_request=4)
    assert (found.requests, found.refused, found.messages) == (10, 2, 32)
    assert found.generator_us == pytest.approx(0.25)
    assert (found.error, found.follower_us) == ("full", None)
    assert found.samples == [AckSample("KEY", 3, 17)], "a reply to a pull names no place"


def test_records_of_replies_are_counted_where_requests_have_no_messages() -> None:
    (found,) = run_generator(saying(LINE), RoundPlan(0, 0, 1), meter(), per_request=None)
    assert found.messages == 96


def test_a_generator_that_ends_early_says_why() -> None:
    with pytest.raises(LoadError, match="gone"):
        run_generator(saying(LINE, status=1), RoundPlan(0, 0, 2), meter(), per_request=1)


def test_the_plan_says_where_numbers_and_keys_are(tmp_path: Path) -> None:
    templates = [
        send_template("T", 3, b"body"),
        batch_template("T", 0, b"x", 2),
        FrameTemplate(11, {"a": "b"}),
    ]
    write_plan(tmp_path / "plan", templates)
    data = (tmp_path / "plan").read_bytes()
    count, _, rest = data.partition(b"\n")
    keys: list[int] = []
    for _ in range(int(count)):
        line, _, rest = rest.partition(b"\n")
        size, opaque_at, key_count, *key_at = map(int, line.split())
        frame, rest = rest[:size], rest[size:]
        assert frame[opaque_at - 9 : opaque_at + 10] == b'"opaque":100000000,'
        assert len(key_at) == key_count
        assert all(frame[at : at + 16] == b"#KEYMARK#KEYMARK" for at in key_at)
        keys.append(key_count)
    assert (keys, rest) == ([1, 2, 0], b"")


def test_without_a_compiler_the_reason_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert lacking_generator() == "no C compiler (cc) for the load generator"


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_what_does_not_compile_is_told_in_the_compilers_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.c"
    broken.write_text("int main(void) { return nothing; }")
    monkeypatch.setattr(native, "SOURCE", broken)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    native.program.cache_clear()
    try:
        with pytest.raises(CompileError, match=r"broken\.c cannot be compiled: "):
            native.program()
        assert "broken.c" in str(lacking_generator())
    finally:
        native.program.cache_clear()


def test_what_a_machine_lacks_for_java_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    setup = Setup(interop=tmp_path)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert (
        java.lacking_client(tmp_path)
        == f"the Java client 4.9.8 is not in {tmp_path} (make interop)"
    )
    assert {kind.lacking(setup) for kind in KINDS} == {
        f"RocketMQ {version} is not in {tmp_path} (make peers)" for version in ("4.9.7", "5.3.3")
    }
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert java.lacking_client(tmp_path) == "no Java on this machine"
    assert {kind.lacking(setup) for kind in KINDS} == {"no Java on this machine"}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_settings_of_a_rocketmq_group(kind: object, tmp_path: Path) -> None:
    (found,) = [each for each in KINDS if each is kind]
    group = found.make(tmp_path, Setup(interop=tmp_path))
    confs = [(tmp_path / f"{broker.name}.conf").read_text() for broker in group.brokers]
    assert len(confs) == (3 if found.fails_over else 2)
    for conf, broker in zip(confs, group.brokers, strict=True):
        assert f"listenPort={broker.port}\nhaListenPort={broker.port + 1}\n" in conf
        assert f"namesrvAddr={group.namesrv}\n" in conf
        assert (
            "SYNC_FLUSH" if "sync" in found.name or "flush" in found.name else "ASYNC_FLUSH"
        ) in conf
    if not found.fails_over:
        assert f"haMasterAddress=127.0.0.1:{group.brokers[0].port + 1}\n" in confs[1]
    ports = {broker.port + near for broker in group.brokers for near in (-2, 0, 1)}
    assert len(ports) == 3 * len(confs), "each broker listens at three ports"
