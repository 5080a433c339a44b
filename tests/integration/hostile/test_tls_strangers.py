"""Who comes to a broker's port with TLS that is old, broken, slow or another's, and the clients that go on meanwhile.

A group that takes TLS only; those who flood it do so while a good client sends, and its slowest send is judged. How
many connections there are follows from the descriptors that this process may have.
"""

from __future__ import annotations

import resource
import socket
import ssl
import struct
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from dledger_mq.net.tls import TlsEnd
from dledger_mq.remoting.registration import INFLATED_BYTES_MAX
from jepsen.processes import Process, poll
from tests.certificates import HOST, client_side
from tests.integration.hostile.test_bad_input import (
    NO_LEADER,
    frame,
    is_closed_by_server,
    read_answer,
)
from tests.tls_group import PATIENCE_S, TlsGroup, running

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SLOWEST_S = 50.0
"""Of a good client's sends while others misbehave; generous, since this machine has other work."""

PLAIN_MAX, SHAKEN_MAX = 10_000, 300
OURS = 500
"""Descriptors that this process needs for itself."""

GROWN_BYTES_MAX = 300 << 20
"""Of a broker with 10 000 silent connections, 300 encrypted ones, or what unpacks to half a gigabyte."""


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsGroup]:
    yield from running(tmp_path_factory.mktemp("strangers"), "enforcing")


@pytest.fixture(scope="module")
def hello(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The first message of a handshake."""
    folder = tmp_path_factory.mktemp("hello")
    return TlsEnd(client_side(folder), is_server=False, host=HOST).begin()


def rss_bytes(process: Process) -> int:
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def connect(process: Process) -> socket.socket:
    return socket.create_connection((HOST, process.port), timeout=PATIENCE_S)


class GoodClient:
    """A connection of TLS that was there before, and how long its sends take."""

    def __init__(self, group: TlsGroup, node: Process) -> None:
        self._sock = group.tls.wrap_socket(connect(node), server_hostname=HOST)
        self._number = 0
        self.slowest_s = 0.0

    def send(self) -> None:
        self._number += 1
        ext = {
            "a": "good", "b": "Good", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0",
            "i": f"UNIQ_KEY\x01{id(self):016X}{self._number:016X}\x02WAIT\x01true\x02", "j": "0",
            "k": "false", "m": "false",
        }  # fmt: skip
        begun = 0.0
        answers: list[dict[str, Any]] = []

        def is_led() -> bool:
            """An election may come in between on a machine under load; it is no matter of who misbehaves."""
            nonlocal begun
            begun = time.monotonic()
            self._sock.sendall(frame(310, ext, b"fine"))
            answers[:] = [read_answer(self._sock)]
            return bool(answers[0]["code"] != NO_LEADER)

        assert poll(is_led, PATIENCE_S), answers
        assert answers[0]["code"] == 0, answers
        self.slowest_s = max(self.slowest_s, time.monotonic() - begun)

    def close(self) -> None:
        self._sock.close()


@contextmanager
def undisturbed(group: TlsGroup) -> Iterator[GoodClient]:
    """A good client whose sends, those in the block and one after it, are stored in time; no log has a traceback."""
    node = group.processes.nodes[0]
    assert poll(lambda: group.sends(group.tls), PATIENCE_S), group.logs()[-3000:]
    good = GoodClient(group, node)
    try:
        good.send()
        good.slowest_s = 0.0
        yield good
        good.send()
        assert good.slowest_s < SLOWEST_S
    finally:
        good.close()
    assert poll(lambda: group.sends(group.tls), PATIENCE_S), group.logs()[-3000:]
    assert "Traceback" not in group.logs()


def old_versions(tls: ssl.SSLContext) -> ssl.SSLContext:
    """A client that knows nothing newer than TLS 1.1."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        tls.minimum_version = ssl.TLSVersion.TLSv1
        tls.maximum_version = ssl.TLSVersion.TLSv1_1
    tls.set_ciphers("ALL:@SECLEVEL=0")
    return tls


def test_old_tls_and_plain_text_are_kept_out(group: TlsGroup, tmp_path: Path) -> None:
    node = group.processes.nodes[0]
    server = group.processes.name_servers[0]
    old = old_versions(client_side(tmp_path))
    with undisturbed(group):
        for process in (node, server):
            with connect(process) as near, pytest.raises((ssl.SSLError, ConnectionError)):
                old.wrap_socket(near, server_hostname=HOST)
            with connect(process) as near:
                near.sendall(frame(105, {"topic": "TBW102"}))
                assert is_closed_by_server(near)
    assert poll(lambda: "offers no TLS version from 1.2 on" in group.logs(), PATIENCE_S)
    assert poll(lambda: "plain text on a port that takes TLS only" in group.logs(), PATIENCE_S)


@pytest.mark.parametrize("cut", [1, 3, 5, 6, 60, -1])
def test_a_handshake_that_is_cut_off_ends_alone(group: TlsGroup, hello: bytes, cut: int) -> None:
    with undisturbed(group):
        for process in (group.processes.nodes[0], group.processes.name_servers[0]):
            with connect(process) as near:
                near.sendall(hello[:cut])
                near.shutdown(socket.SHUT_WR)
                assert is_closed_by_server(near)


def test_records_that_are_none_end_their_connection(group: TlsGroup, hello: bytes) -> None:
    """A record longer than any, a hello that claims more than it has, data before keys, and an alert."""
    claims = hello[:3] + b"\xff\xff" + hello[5:]
    longer = hello[:6] + b"\xff\xff\xff" + hello[9:]
    broken = (
        claims,
        longer,
        b"\x16\x03\x01\x00\x00" * 50,
        b"\x17\x03\x03\x00\x05hello",
        b"\x15\x03\x03\x00\x02\x02\x28",
    )
    with undisturbed(group):
        for sent in broken:
            with connect(group.processes.nodes[0]) as near:
                near.sendall(sent)
                near.shutdown(socket.SHUT_WR)
                assert is_closed_by_server(near), sent[:20]


def count_of(wanted: int) -> int:
    """How many connections this process, and a broker with the same limit, may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return min(wanted, (hard - OURS) * 3 // 4)


def open_all(
    stack: ExitStack, count: int, make: Callable[[], socket.socket], good: GoodClient
) -> list[socket.socket]:
    """Open connections, between which the good client sends."""
    made = []
    for number in range(count):
        made.append(stack.enter_context(make()))
        if number % 200 == 0:
            good.send()
    return made


def test_ten_thousand_silent_connections_keep_nobody_out(group: TlsGroup, hello: bytes) -> None:
    """As many as a broker takes, of which some have begun a handshake; who comes then is served."""
    node = group.processes.nodes[0]
    before = rss_bytes(node)
    count = count_of(PLAIN_MAX)
    with undisturbed(group) as good, ExitStack() as stack:
        crowd = open_all(stack, count, lambda: connect(node), good)
        for near in crowd[::20]:
            with suppress(OSError):  # the oldest have made room
                near.sendall(hello[:40])
        good.send()
        newcomer = GoodClient(group, node)
        newcomer.send()
        newcomer.close()
        assert rss_bytes(node) - before < GROWN_BYTES_MAX


def test_encrypted_connections_are_answered_each(group: TlsGroup) -> None:
    node = group.processes.nodes[0]
    before = rss_bytes(node)

    def shaken() -> socket.socket:
        return group.tls.wrap_socket(connect(node), server_hostname=HOST)

    with undisturbed(group) as good, ExitStack() as stack:
        crowd = open_all(stack, count_of(SHAKEN_MAX), shaken, good)
        for near in crowd:
            near.sendall(frame(105, {"topic": "TBW102"}))
        good.send()
        codes = {read_answer(near)["code"] for near in crowd}
        assert len(codes) == 1
        assert rss_bytes(node) - before < GROWN_BYTES_MAX


def test_a_slow_handshake_and_a_slow_reader_hold_up_nobody(group: TlsGroup, hello: bytes) -> None:
    node = group.processes.nodes[0]
    listing = frame(21, {}) * 2_000
    with undisturbed(group) as good, ExitStack() as stack:
        slow = [stack.enter_context(connect(node)) for _ in range(50)]
        deaf = [
            stack.enter_context(group.tls.wrap_socket(connect(node), server_hostname=HOST))
            for _ in range(5)
        ]
        for listener in deaf:
            listener.settimeout(1.0)
            with suppress(OSError):  # it takes no more of this
                listener.sendall(listing)
        for byte in hello[:60]:
            for near in slow:
                with suppress(OSError):
                    near.sendall(bytes([byte]))
            good.send()


def bomb(unpacked_bytes: int) -> bytes:
    """What unpacks to so many zeros."""
    packer, zeros = zlib.compressobj(1), bytes(1 << 20)
    return b"".join(packer.compress(zeros) for _ in range(unpacked_bytes >> 20)) + packer.flush()


def ask(process: Process, group: TlsGroup, sent: Sequence[bytes]) -> list[object]:
    with group.tls.wrap_socket(connect(process), server_hostname=HOST) as near:
        codes = []
        for each in sent:
            near.sendall(each)
            codes.append(read_answer(near)["code"])
        return codes


def test_what_unpacks_to_half_a_gigabyte_is_unpacked_nowhere(group: TlsGroup) -> None:
    """Brokers store compressed bodies as they come, alone and in batches; name servers unpack up to a bound."""
    packed = bomb(512 << 20)
    assert len(packed) < 4 << 20
    assert INFLATED_BYTES_MAX < 512 << 20
    compressed = {"f": "1"}  # sysFlag: the body is compressed
    ext = {
        "a": "p", "b": "Packed", "c": "TBW102", "d": "4", "e": "0", "g": "1", "h": "0",
        "i": f"UNIQ_KEY\x01{7:032X}\x02", "j": "0", "k": "false", "m": "false",
    } | compressed  # fmt: skip
    properties = b"UNIQ_KEY\x01%032X" % 8
    item = struct.pack(">iiiii", 0, 0, 0, 1, len(packed)) + packed
    item += struct.pack(">h", len(properties)) + properties
    batch = struct.pack(">i", len(item) + 4) + item
    node, server = group.processes.nodes[0], group.processes.name_servers[0]
    before = rss_bytes(node), rss_bytes(server)
    registration = {
        "brokerName": "broker-z", "brokerAddr": "127.0.0.1:1", "clusterName": "c", "brokerId": "0",
        "haServerAddr": "", "compressed": "true", "bodyCrc32": "0",
    }  # fmt: skip
    with undisturbed(group):
        codes = ask(
            node, group, [frame(310, ext, packed), frame(320, ext | {"m": "true", "f": "0"}, batch)]
        )
        assert codes[0] == 0
        assert ask(server, group, [frame(103, registration, packed)]) != [0]
        assert rss_bytes(node) - before[0] < GROWN_BYTES_MAX
        assert rss_bytes(server) - before[1] < GROWN_BYTES_MAX
