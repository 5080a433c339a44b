"""Garbage, huge, truncated and hostile input on every port of a real group.

The answer is the protocol's code or a closed connection, one log line, bounded memory, and nobody
else notices (faults.md rows 53-55, 57, 58).
"""

from __future__ import annotations

import json
import random
import selectors
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Any, cast

import pytest

from jepsen.processes import Group, Process, poll

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PATIENCE_S = 180.0
NO_LEADER = 14


def frame(code: int, ext: dict[str, Any], body: bytes = b"", **fields: Any) -> bytes:
    command = {
        "code": code,
        "extFields": ext,
        "flag": 0,
        "language": "JAVA",
        "opaque": 7,
        "version": 409,
    }
    header = json.dumps(command | fields).encode()
    return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body


CLOSED: dict[str, Any] = {"code": "closed", "remark": "the connection was closed without an answer"}


def read_answer(sock: socket.socket) -> dict[str, Any]:
    """The header of one answer; CLOSED when the connection ends instead."""
    with sock.makefile("rb") as stream:
        head = stream.read(8)
        if not head:
            return CLOSED
        size, header_size = struct.unpack(">ii", head)
        header = json.loads(stream.read(header_size))
        stream.read(size - 4 - header_size)
    assert isinstance(header, dict)
    return header


def ask(process: Process, raw: bytes) -> dict[str, Any]:
    """The answer, once there is somebody to give it: an election may come in between on a machine under load."""
    answers: list[dict[str, Any]] = []

    def is_answered() -> bool:
        with socket.create_connection(("127.0.0.1", process.port), timeout=PATIENCE_S) as sock:
            sock.sendall(raw)
            answers.append(read_answer(sock))
        return bool(answers[-1]["code"] != NO_LEADER)

    poll(is_answered, PATIENCE_S)
    return answers[-1]


def is_closed_by_server(sock: socket.socket) -> bool:
    """Whether the server ends the connection (within the socket's timeout)."""
    try:
        while sock.recv(65536):
            pass
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True
    return True


def rss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


@contextmanager
def serving_group(folder: Path) -> Iterator[Group]:
    """A group of three that stores what is sent to any of its nodes."""
    with Group(folder) as processes:
        processes.start()
        processes.wait_listening()
        assert poll(lambda: serves(processes), PATIENCE_S)
        yield processes


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with serving_group(tmp_path_factory.mktemp("hostile")) as processes:
        yield processes


def serves(group: Group) -> bool:
    """A well-behaved client gets a message stored through any node."""
    properties = "UNIQ_KEY\x01%s\x02WAIT\x01true\x02" % ("A" * 32)
    ext = {
        "a": "good", "b": "Good", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0",
        "i": properties, "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    return all(ask(node, frame(310, ext, b"fine"))["code"] == 0 for node in group.nodes)


def ports(group: Group) -> list[tuple[str, int]]:
    peer_ports = [int(item.rsplit(":", 1)[1]) for item in group.peers.split(";")]
    return [
        ("name server", group.name_servers[0].port),
        ("broker", group.nodes[0].port),
        ("member", peer_ports[0]),
    ]


RNG = random.Random(7)
GARBAGE = {
    "random bytes": RNG.randbytes(5000),
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a TLS hello": bytes.fromhex("16030100a5010000a10303") + RNG.randbytes(160),
    "a huge length": struct.pack(">ii", 2**31 - 1, 100) + b"x" * 100,
    "a length of zero": struct.pack(">ii", 0, 0),
    "a negative length": struct.pack(">ii", -5, 10) + b"x" * 20,
    "a header longer than its frame": struct.pack(">ii", 20, 4000) + b"x" * 4000,
    "a header that is not JSON": struct.pack(">ii", 4 + 40, 40) + b"{" * 40,
    "deep JSON": struct.pack(">ii", 4 + 60000, 60000) + b"[" * 60000,
    "an unknown serialize type": struct.pack(">iI", 4 + 10, 0x7F00000A) + b"x" * 10,
    "bad UTF-8": struct.pack(">ii", 4 + 12, 12) + b'{"code":"\xff\xfe',
}


@pytest.mark.parametrize("kind", GARBAGE)
@pytest.mark.parametrize("place", [0, 1, 2], ids=["name server", "broker", "member"])
def test_garbage_ends_its_connection_and_nothing_else(group: Group, kind: str, place: int) -> None:
    _, port = ports(group)[place]
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as sock:
        with suppress(OSError):  # the connection may be over before all is said
            sock.sendall(GARBAGE[kind])
            sock.shutdown(socket.SHUT_WR)
        assert is_closed_by_server(sock)
    assert serves(group)


HELD_SOCKETS = 40
HELD = struct.pack(">ii", (14 << 20) - 4, 100) + bytes((14 << 20) - 9)
"""A frame of 14 MiB but for its last byte: what 40 connections hold of it would be 560 MiB."""


def fill(sockets: list[socket.socket], rss: Callable[[], int]) -> int:
    """Send HELD over all sockets, until it is sent or the server has closed one; returns the largest memory seen.

    Whoever is to share a bounded room, and does not go on, is closed.
    """
    largest = rss()
    end = monotonic() + PATIENCE_S
    with selectors.DefaultSelector() as unsent:  # `select` knows no descriptor beyond 1 023
        for sock in sockets:
            unsent.register(sock, selectors.EVENT_WRITE, memoryview(HELD))
        while unsent.get_map() and monotonic() < end:
            for key, _ in unsent.select(0.1):
                sock = cast("socket.socket", key.fileobj)
                try:
                    rest = key.data[sock.send(key.data) :]
                except OSError:
                    return max(largest, rss())
                if rest:
                    unsent.modify(sock, selectors.EVENT_WRITE, rest)
                else:
                    unsent.unregister(sock)
            largest = max(largest, rss())
    return largest


@pytest.mark.parametrize("name", ["name server", "broker"])
def test_large_frames_that_never_end_have_a_budget(group: Group, name: str) -> None:
    """`unfinishedFramesBytesMax`, 64 MiB over all connections of a port; with what reading takes, below 150 MiB."""
    process = group.name_servers[0] if name == "name server" else group.nodes[0]
    pid = process.pid
    assert pid is not None
    before = rss_bytes(pid)
    address = ("127.0.0.1", process.port)
    with ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_connection(address, timeout=PATIENCE_S))
            for _ in range(HELD_SOCKETS)
        ]
        for sock in sockets:
            sock.setblocking(False)
        largest = fill(sockets, lambda: rss_bytes(pid))
        assert serves(group)
        assert max(largest, rss_bytes(pid)) - before < 150 << 20
    assert serves(group)


def test_claims_of_huge_frames_cost_no_memory(group: Group) -> None:
    _, port = ports(group)[2]
    pid = group.nodes[0].pid
    assert pid is not None
    before = rss_bytes(pid)
    with ExitStack() as stack:
        for _ in range(100):
            sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
            stack.enter_context(sock)
            with suppress(OSError):  # a member turns away what is too much
                sock.sendall(struct.pack(">ii", 16_000_000, 100) + b"x" * 1000)
        assert serves(group)
        assert rss_bytes(pid) - before < 150 << 20
    assert serves(group)


def test_half_a_frame_does_not_hold_up_others(group: Group) -> None:
    whole = frame(105, {"topic": "TBW102"})
    sockets = []
    for _, port in ports(group):
        sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        sock.sendall(whole[: len(whole) // 2])
        sockets.append(sock)
    assert serves(group)
    for sock in sockets:
        sock.close()


def test_an_unknown_code_is_told_so(group: Group) -> None:
    for process in (group.name_servers[0], group.nodes[0], group.nodes[1]):
        answer = ask(process, frame(29999, {}))
        assert (answer["code"], answer["remark"]) == (3, " request type 29999 not supported")


HOSTILE_SENDS: dict[str, dict[str, Any]] = {
    "a path for a topic": {"b": "../../../tmp/evil"},
    "an absolute path": {"b": "/etc/passwd"},
    "control characters": {"b": "a\x00b"},
    "an endless topic": {"b": "x" * 300},
    "an empty topic": {"b": ""},
    "a queue that is not there": {"e": "100000"},
    "a queue beyond all numbers": {"e": str(2**63)},
    "a queue that is no number": {"e": "NaN"},
    "a list for a field": {"e": [1, 2]},
    "too many properties": {"i": "K\x01" + "v" * 40000 + "\x02"},
    "a system topic": {"b": "SCHEDULE_TOPIC_XXXX"},
}


@pytest.mark.parametrize("kind", HOSTILE_SENDS)
def test_a_hostile_send_is_refused_with_a_reason(group: Group, kind: str) -> None:
    ext = {
        "a": "bad", "b": "Bad", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0",
        "i": "", "j": "0", "k": "false", "m": "false",
    } | HOSTILE_SENDS[kind]  # fmt: skip
    for node in group.nodes:
        answer = ask(node, frame(310, ext, b"evil"))
        # A list is no field value at all: that header is not of the protocol, so it may be cut.
        assert answer["code"] in (1, 13, 16, 29) or (
            kind == "a list for a field" and answer is CLOSED
        ), answer
        assert answer["remark"], "a refusal says why"
        assert "Traceback" not in answer["remark"]
    assert serves(group)


@pytest.mark.parametrize(
    "code", [10, 11, 12, 14, 15, 17, 29, 30, 31, 32, 33, 34, 35, 36, 38, 41, 42, 46, 310, 320]
)
def test_a_request_without_its_fields_is_refused(group: Group, code: int) -> None:
    for node in group.nodes[:2]:
        answer = ask(node, frame(code, {}))
        assert answer["code"] != 0 or code == 35, answer
        assert answer.get("remark") or code == 35, f"code {code}: a refusal says why"
    assert serves(group)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"clientID":5}', b"\xff\xff", b"[" * 50000])
def test_a_heartbeat_that_is_none_is_refused(group: Group, body: bytes) -> None:
    assert ask(group.nodes[0], frame(34, {}, body))["code"] != 0
    assert serves(group)


def test_a_second_process_on_the_same_store_refuses_to_start(group: Group) -> None:
    node = group.nodes[0]
    twin = Process("twin", node.command, log=node.log.with_name("twin.log"), port=node.port)
    twin.start()
    try:
        assert poll(lambda: twin.pid is None, PATIENCE_S), "it still runs"
        assert "Traceback" not in twin.log_tail(50)
        assert "n0" in twin.log_tail(50)
    finally:
        twin.kill()
    assert serves(group)


def test_a_second_process_with_the_same_id_refuses_to_start(group: Group, tmp_path: Path) -> None:
    node = group.nodes[0]
    command = [*node.command]
    command[command.index("--store") + 1] = str(tmp_path / "other")
    twin = Process("twin", command, log=tmp_path / "twin.log", port=node.port)
    twin.start()
    try:
        assert poll(lambda: twin.pid is None, PATIENCE_S), "it still runs"
        assert "Traceback" not in twin.log_tail(50)
    finally:
        twin.kill()
    assert serves(group)


def test_the_logs_name_the_connection_and_show_no_traceback(group: Group) -> None:
    for process in (group.name_servers[0], group.nodes[0]):
        with socket.create_connection(("127.0.0.1", process.port), timeout=PATIENCE_S) as sock:
            sock.sendall(b"\xff" * 8)
            assert is_closed_by_server(sock)
            line = f"closed the connection of 127.0.0.1:{sock.getsockname()[1]}: frame of 4294967299 bytes"
            assert poll(lambda: line in process.log.read_text(errors="replace"), PATIENCE_S), line  # noqa: B023
    texts = [process.log.read_text(errors="replace") for process in group.processes()]
    assert len(texts) == 4
    for text in texts:
        assert "Traceback" not in text, text[text.index("Traceback") - 500 :][:3000]
        assert len(text) < 1 << 20
