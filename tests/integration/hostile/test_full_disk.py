"""A disk that is really full: small tmpfs mounts as stores (faults.md rows 37 and 38). Needs root."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dledger.cli import main as dledger_command
from dledger_mq import ClientError, Message, SendRefusedError
from dledger_mq.blocking import Producer
from dledger_mq.remoting.codes import DISK_FULL
from jepsen.processes import Group, Process, poll
from tests.integration.commands import run_here
from tests.interop.conftest import RunningGroup, request

PATIENCE_S = 180.0

pytestmark = [pytest.mark.integration, pytest.mark.slow]

DISK_MIB = 24
SEGMENT_BYTES = 2 << 20
ROOM_BYTES = 64 * 1024
FILL_PAUSE_S = 0.3
SEND_PAUSE_S = 0.01

# A leader that sees its disk nearly full refuses, and those of a majority that have met their end do.
FULL = re.compile(r"the disks of .* are full|the disk is nearly full \(.* in use\)")


def mount_tmpfs(folder: Path) -> None:
    folder.mkdir(parents=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(folder)],
        check=True,
        capture_output=True,
    )


@pytest.fixture
def group(tmp_path: Path) -> Iterator[RunningGroup]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    folders = [tmp_path / "group" / f"n{i}" for i in range(3)]
    mounted: list[Path] = []
    try:
        for folder in folders:
            try:
                mount_tmpfs(folder)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"this machine mounts no tmpfs: {error.stderr.decode().strip()}")
            mounted.append(folder)
        settings = f"mappedFileSizeCommitLog={SEGMENT_BYTES}\n"
        with Group(tmp_path / "group", settings=settings) as processes:
            processes.start()
            processes.wait_listening()
            running = RunningGroup(processes)
            running.wait_leader()
            yield running
    finally:
        for folder in mounted:
            subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)


def fill(folder: Path) -> Path:
    """Leave less room than the next segment needs, also while a node writes."""
    ballast = folder / "ballast"
    piece = b"\0" * ROOM_BYTES
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(piece) == len(piece):
            pass
    os.truncate(ballast, max(0, ballast.stat().st_size - ROOM_BYTES))
    return ballast


def send(address: str, number: int, body: bytes) -> dict[str, Any]:
    properties = f"UNIQ_KEY\x01{number:032X}\x02WAIT\x01true\x02"
    ext = {
        "a": "full", "b": "Full", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0",
        "i": properties, "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    header, _ = request(address, 310, ext, body)
    return header


def send_until(
    group: RunningGroup, node: Process, code: int, *, timeout_s: float
) -> dict[str, Any]:
    """Send 64 KiB messages to a node until one is answered with `code`."""
    deadline = time.monotonic() + timeout_s
    answer: dict[str, Any] = {}
    number = time.monotonic_ns()
    while time.monotonic() < deadline:
        number += 1
        with contextlib.suppress(OSError):
            answer = send(node.address, number, b"x" * 65536)
            if answer["code"] == code:
                return answer
    raise AssertionError(f"no answer with code {code} in {timeout_s} s, last: {answer}")


def max_offset(node: Process) -> int:
    headers: list[dict[str, Any]] = []

    def is_told() -> bool:
        headers[:] = [request(node.address, 30, {"topic": "Full", "queueId": "0"})[0]]
        return bool(headers[0]["code"] == 0)

    assert poll(is_told, PATIENCE_S), headers
    return int(headers[0]["extFields"]["offset"])


def test_a_leader_with_a_full_disk_hands_over(group: RunningGroup) -> None:
    leader = group.wait_leader()
    other = next(node for node in group.processes.nodes if node is not leader)
    send_until(group, leader, 0, timeout_s=PATIENCE_S)
    ballast = fill(group.processes.folder / leader.name)
    # More than a segment: somebody else must have taken over for these to be stored.
    stored = [
        send_until(group, other, 0, timeout_s=PATIENCE_S) for _ in range(2 * SEGMENT_BYTES // 65536)
    ]
    assert group.wait_leader(other_than=leader) is not leader
    assert max_offset(other) >= len(stored)
    assert "Traceback" not in leader.log_tail(200)
    ballast.unlink()
    assert poll(lambda: applied(group, leader) == applied(group, other) > 0, PATIENCE_S), (
        leader.log_tail()
    )


def applied(group: RunningGroup, node: Process) -> int:
    """The node's applied index; a process that ended is started again, as its operator would."""
    if node.pid is None:
        node.start()
    processes = group.processes
    listing = run_here(
        dledger_command, "status", "--json", "-g", processes.group, "-p", processes.peers
    )
    try:
        members = json.loads(listing.stdout)["members"]
    except (ValueError, KeyError):
        return -1
    return next(
        (
            int(m["applied_index"])
            for m in members
            if m.get("id") == node.name and "applied_index" in m
        ),
        -2,
    )


def is_refused(producer: Producer) -> bool:
    """Send once: True if it surely did not happen, and the disks are said to be the cause."""
    try:
        producer.send(Message("Full", b"x"))
    except SendRefusedError as error:
        return FULL.search(str(error)) is not None
    except ClientError:
        pass  # it was on its way when the disks became full, or an election was on
    return False


def refuses(node: Process) -> bool:
    """Send once to a node: whether it says that the disks are full; an election may be on, or a segment have room."""
    answer = send(node.address, time.monotonic_ns(), b"x")
    return answer["code"] == 14 and names_the_cause(answer)


@contextlib.contextmanager
def sending_to(node: Process, *, pause_s: float = 0.0) -> Iterator[list[dict[str, Any]]]:
    """Keep one send to a node in flight, but for the pauses; yields the answers that have come."""
    answers: list[dict[str, Any]] = []
    has_ended = threading.Event()

    def go_on() -> None:
        while not has_ended.is_set():
            with contextlib.suppress(OSError):
                answers.append(send(node.address, time.monotonic_ns(), b"x" * 65536))
            time.sleep(pause_s)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield answers
    finally:
        has_ended.set()
        thread.join()


def names_the_cause(answer: dict[str, Any]) -> bool:
    """Whether a send was stored, or was refused or ended unknown for the true reason."""
    remark = answer.get("remark") or ""
    if answer["code"] == 14:
        return remark.startswith(DISK_FULL) and FULL.search(remark) is not None
    return answer["code"] == 0 or (
        answer["code"] == 1 and re.search("disks? .*(is|are) (nearly )?full", remark) is not None
    )


def test_when_all_disks_are_full_sends_are_refused_with_the_cause(group: RunningGroup) -> None:
    leader = group.wait_leader()
    stored = 1
    send_until(group, leader, 0, timeout_s=PATIENCE_S)
    with sending_to(leader) as answers:
        with ThreadPoolExecutor() as pool:
            folders = [group.processes.folder / node.name for node in group.processes.nodes]
            ballast = list(pool.map(fill, folders))
        assert poll(lambda: any(answer["code"] == 14 for answer in answers), PATIENCE_S), answers
    assert [answer["remark"] for answer in answers if not names_the_cause(answer)] == []
    with Producer(group.processes.namesrv, "full") as producer:
        assert poll(lambda: is_refused(producer), PATIENCE_S)
    for node in group.processes.nodes:
        assert poll(lambda: refuses(node), PATIENCE_S), node.log_tail()  # noqa: B023
    for file in ballast:
        file.unlink()
    for node in group.processes.nodes:
        if node.pid is None:
            node.start()
    send_until(group, leader, 0, timeout_s=PATIENCE_S)
    assert max_offset(group.wait_leader()) > stored
    assert all("Traceback" not in node.log_tail(300) for node in group.processes.nodes)


@pytest.mark.parametrize("order", ["followers only", "followers first", "leader first"])
def test_disks_that_fill_one_after_the_other_are_named(group: RunningGroup, order: str) -> None:
    """Whoever leads meanwhile: it may have room itself, and hear of the others' disks only from them."""
    leader = group.wait_leader()
    followers = [node for node in group.processes.nodes if node is not leader]
    nodes = {
        "followers only": followers,
        "followers first": [*followers, leader],
        "leader first": [leader, *followers],
    }[order]
    send_until(group, leader, 0, timeout_s=PATIENCE_S)
    ballast = []
    # Slowly, so that a leader's disk is not full of what it stores.
    with sending_to(leader, pause_s=SEND_PAUSE_S) as answers:
        for node in nodes:
            ballast.append(fill(group.processes.folder / node.name))
            time.sleep(FILL_PAUSE_S)
        assert poll(lambda: any(answer["code"] == 14 for answer in answers), PATIENCE_S), answers
    assert [answer["remark"] for answer in answers if not names_the_cause(answer)] == []
    for node in nodes:
        assert poll(lambda: refuses(node), PATIENCE_S), node.log_tail()  # noqa: B023
    for file in ballast:
        file.unlink()
    send_until(group, leader, 0, timeout_s=PATIENCE_S)
    assert all("Traceback" not in node.log_tail(300) for node in group.processes.nodes)
