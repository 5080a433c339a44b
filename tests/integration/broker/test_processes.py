"""Real processes: a killed leader, an orderly stop, routes that follow, and what users read when it fails."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.remoting.codes import RequestCode
from broker.remoting.frame import FrameDecoder
from broker.remoting.header import RemotingCommand, decode_command, encode_command, make_request
from broker.remoting.route import decode_route
from jepsen.ports import free_ports, is_free
from jepsen.processes import Group, Process, is_running, poll, program
from tests.integration.broker.conftest import send_ext

pytestmark = [pytest.mark.slow, pytest.mark.integration]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with Group(tmp_path) as running:
        running.start()
        running.wait_listening()
        yield running


def ask(port: int, code: int, ext: dict[str, str], body: bytes = b"") -> RemotingCommand:
    with socket.create_connection(("127.0.0.1", port), timeout=15) as sock:
        sock.sendall(encode_command(make_request(code, 1, ext, body)))
        data = b""
        while len(data) < 4 or len(data) < 4 + struct.unpack(">i", data[:4])[0]:
            piece = sock.recv(65536)
            assert piece, "the connection ended without an answer"
            data += piece
    decoder = FrameDecoder()
    decoder.feed(data)
    frame = decoder.next_frame()
    assert frame is not None
    return decode_command(frame)


def brokers_of(group: Group, topic: str = "TBW102") -> dict[int, str]:
    """The broker ids and addresses that a client gets from the name server."""
    answer = ask(group.name_servers[0].port, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    if answer.code != 0:
        return {}
    return {
        key: address
        for broker in decode_route(answer.body).brokers
        for key, address in broker.broker_addrs.items()
    }


def leader_of(group: Group) -> Process:
    assert poll(lambda: 0 in brokers_of(group), 20), "no leader in the route"
    return group.by_address[brokers_of(group)[0]]


def test_a_killed_leader_is_replaced_and_the_route_follows(group: Group) -> None:
    leader = leader_of(group)
    assert poll(lambda: len(brokers_of(group)) == 3, 20), "followers are in the route too"
    assert ask(leader.port, 310, send_ext("T"), b"before").code == 0
    others = [node for node in group.nodes if node is not leader]
    leader.kill()
    answers = [ask(node.port, 310, send_ext("T"), b"after") for node in others]
    assert [answer.code for answer in answers] == [0, 0], "held until there is a leader"
    assert poll(lambda: brokers_of(group).get(0, leader.address) != leader.address, 10)
    leader.start()
    assert poll(lambda: leader.address in brokers_of(group).values(), 20)
    assert brokers_of(group)[0] != leader.address
    assert ask(leader.port, 30, {"topic": "T", "queueId": "0"}).ext == {"offset": "3"}


def test_an_orderly_stop_leaves_the_route_at_once(group: Group) -> None:
    leader = leader_of(group)
    assert leader.stop() == 0
    assert poll(lambda: leader.address not in brokers_of(group).values(), 2)
    assert "Traceback" not in leader.log_tail(100)
    assert leader_of(group) is not leader


def test_two_processes_cannot_share_a_store(group: Group) -> None:
    node = group.nodes[0]
    others = free_ports(2)
    command = [
        program("dledger-broker"),
        *("--group", "broker-a", "--id", "n0", "--peers", f"n0-127.0.0.1:{others[0]}"),
        *("--listen", str(others[1]), "--store", str(group.folder / "n0")),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 1
    assert f"in use by process {node.pid}" in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "dLegerGroup is missing: give --group"),
        (["--dev", "--id", "n0"], "--dev chooses --id itself"),
        (["-c", "/nonexistent/broker.conf"], "cannot be read"),
        (
            ["--group", "g", "--id", "n0", "--peers", "n0", "--store", "s"],
            "not of the form id-host:port",
        ),
        (
            ["--group", "g", "--id", "n0", "--peers", "n0-nowhere.invalid:1", "--store", "s"],
            "nowhere.invalid",
        ),
    ],
)
def test_what_users_read_when_it_cannot_start(arguments: list[str], text: str) -> None:
    ended = subprocess.run(
        [program("dledger-broker"), *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 1
    assert text in ended.stderr
    assert "Traceback" not in ended.stderr


def test_python_o_is_refused() -> None:
    ended = subprocess.run(
        [sys.executable, "-O", "-m", "broker.server.cli", "--dev"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 1
    assert "must not run with -O" in ended.stderr


def test_a_whole_group_to_try(tmp_path: Path) -> None:
    """--dev: ready, a dead child comes back, one signal stops all."""
    ports = free_ports(40)
    # --dev derives its ports: clients 10 apart, members 10 000 above them.
    derived = [step * 10 + distance for step in range(3) for distance in (0, 10_000)]
    first = next(p for p in ports if p < 50_000 and all(is_free(p + more) for more in derived))
    command = [
        program("dledger-broker"),
        *("--dev", "--store", str(tmp_path / "dev")),
        *("--port", str(first), "--namesrv-port", str(ports[-1])),
    ]
    log = tmp_path / "dev.log"
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as running:
        try:
            assert poll(lambda: "ready: name server" in log.read_text(), 30), log.read_text()
            assert ask(first, 310, send_ext("T"), b"x").code == 0
            assert poll(lambda: len(_children(running.pid)) == 4, 15), log.read_text()
            victims = [pid for pid, line in _children(running.pid).items() if "--id n0" in line]
            assert len(victims) == 1, _children(running.pid)
            victim = victims[0]
            subprocess.run(["kill", "-9", str(victim)], check=True)
            assert poll(lambda: "starting it again" in log.read_text(), 15), log.read_text()
            assert poll(lambda: len(_children(running.pid)) == 4, 15)
        finally:
            children = _children(running.pid)
            running.terminate()
            running.terminate()
            status = running.wait(timeout=20)
    assert status == 0
    assert [pid for pid in children if is_running(pid)] == []
    assert "Traceback" not in log.read_text()


def _children(parent: int) -> dict[int, str]:
    """Command lines of the child processes."""
    listed = subprocess.run(
        ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(parent)],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line.strip().split(" ", 1) for line in listed.stdout.splitlines()]
    return {int(pid): command for pid, command in lines}


def test_raw_bodies_are_no_messages_and_surely_not_stored(group: Group) -> None:
    leader_of(group)
    ended = subprocess.run(
        [program("dledger"), "append", "-g", group.group, "-p", group.peers, "--data", "raw"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    assert "takes messages from its broker only" in ended.stderr
