"""The proxy does to real connections what a shape says, in one direction and not in the other."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from broker.server.links.private_codes import PrivateCode
from dledger.codec.frame import encode_frame
from dledger.config import parse_peers
from dledger_mq.remoting.header import encode_command, make_request
from jepsen.nemeses.proxy import ProxiedMember, ProxyError, ProxyLinks
from jepsen.ports import free_ports
from jepsen.processes import is_running, poll
from jepsen.systems.api import CLIENTS, CUT, WHOLE, Shape

pytestmark = pytest.mark.integration

SILENCE_S = 0.3  # how long nothing must come; a healthy machine needs a millisecond
PATIENCE_S = 60.0


def frame(number: int) -> bytes:
    return encode_frame(b"%06d" % number)


FRAME_BYTES = len(frame(0))


def receive(sock: socket.socket, count: int = 1) -> list[int]:
    """The numbers of the next frames."""
    numbers: list[int] = []
    for _ in range(count):
        data = receive_bytes(sock, FRAME_BYTES)
        numbers.append(int(data[12:]))
    return numbers


def receive_bytes(sock: socket.socket, count: int) -> bytes:
    """Exactly so many, or TimeoutError."""
    data = b""
    while len(data) < count:
        more = sock.recv(count - len(data))
        if not more:
            raise ConnectionResetError
        data += more
    return data


def receives_nothing(sock: socket.socket) -> bool:
    sock.settimeout(SILENCE_S)
    try:
        return not sock.recv(1)
    except TimeoutError:
        return True
    finally:
        sock.settimeout(PATIENCE_S)


def is_over(sock: socket.socket) -> bool:
    """Whether the connection ends; what still arrives is read."""
    try:
        while sock.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


class Pair:
    """Members n0 and n1 with proxies between them; n0 has opened a connection to n1."""

    def __init__(self, links: ProxyLinks, listener: socket.socket) -> None:
        self.links = links
        self._listener = listener
        self.n0, self.n1 = self.connect("n0")

    def connect(self, source: str) -> tuple[socket.socket, socket.socket]:
        text = self.links.client_peers() if source == CLIENTS else self.links.peers_of(source)
        address = next(peer for peer in parse_peers(text) if peer.node_id == "n1")
        near = socket.create_connection((address.host, address.port), timeout=PATIENCE_S)
        far, _ = self._listener.accept()
        far.settimeout(PATIENCE_S)
        return near, far

    def accepts_nothing(self) -> bool:
        self._listener.settimeout(SILENCE_S)
        try:
            self._listener.accept()
        except TimeoutError:
            return True
        finally:
            self._listener.settimeout(PATIENCE_S)
        return False


@contextmanager
def pair_of_members() -> Iterator[Pair]:
    one, two = free_ports(2)
    with socket.create_server(("127.0.0.1", two)) as listener:
        listener.settimeout(PATIENCE_S)
        with ProxyLinks([ProxiedMember("n0", one), ProxiedMember("n1", two)], seed=1) as links:
            pair = Pair(links, listener)
            with pair.n0, pair.n1:
                yield pair


@pytest.fixture
def pair() -> Iterator[Pair]:
    with pair_of_members() as made:
        yield made


def test_a_whole_link_passes_bytes_both_ways_and_the_end_too(pair: Pair) -> None:
    pair.n0.sendall(b"".join(map(frame, range(1000))))
    assert receive(pair.n1, 1000) == list(range(1000))
    pair.n1.sendall(frame(7))
    assert receive(pair.n0) == [7]
    pair.n0.shutdown(socket.SHUT_WR)
    assert pair.n1.recv(1) == b""
    pair.n1.sendall(frame(8))
    assert receive(pair.n0) == [8]


def test_a_large_frame_passes(pair: Pair) -> None:
    data = encode_frame(b"h", bytes(256 * 1024))
    pair.n0.sendall(data * 10)
    got = bytearray()
    while len(got) < 10 * len(data):
        got += pair.n1.recv(1 << 20)
    assert got == data * 10


def test_a_one_way_cut_swallows_one_way_and_ends_the_connection_when_healed(pair: Pair) -> None:
    pair.links.shape("n0", "n1", CUT)
    pair.n0.sendall(frame(1))
    pair.n1.sendall(frame(2))
    assert receive(pair.n0) == [2]
    assert poll(lambda: pair.links.swallowed_bytes("n0", "n1") == FRAME_BYTES, PATIENCE_S)
    assert receives_nothing(pair.n1)
    pair.links.heal()
    assert is_over(pair.n0)
    assert is_over(pair.n1)


def test_a_connection_that_said_nothing_over_a_cut_survives_it(pair: Pair) -> None:
    pair.links.shape("n0", "n1", CUT)
    pair.links.shape("n0", "n1", WHOLE)
    pair.n0.sendall(frame(1))
    assert receive(pair.n1) == [1]


def test_over_a_cut_link_nobody_arrives(pair: Pair) -> None:
    pair.links.shape("n1", "n0", CUT)  # the answers of a new connection go this way
    address = next(peer for peer in parse_peers(pair.links.peers_of("n0")) if peer.node_id == "n1")
    with socket.create_connection((address.host, address.port), timeout=PATIENCE_S) as late:
        assert pair.accepts_nothing()
        pair.links.heal()
        assert is_over(late)
    assert pair.accepts_nothing()


def test_a_stalled_link_keeps_everything_for_later(pair: Pair) -> None:
    pair.links.shape("n0", "n1", Shape(flow="stall"))
    pair.n0.sendall(frame(1))
    assert receives_nothing(pair.n1)
    pair.n0.sendall(frame(2))
    pair.links.heal()
    assert receive(pair.n1, 2) == [1, 2]


def test_a_reset_link_breaks_and_refuses_connections(pair: Pair) -> None:
    pair.links.shape("n0", "n1", Shape(flow="reset"))
    assert is_over(pair.n0)
    assert is_over(pair.n1)


def test_delayed_bytes_come_later_and_in_order(pair: Pair) -> None:
    pair.links.shape("n0", "n1", Shape(delay_ms=400, jitter_ms=50))
    begin = time.monotonic()
    for number in range(20):
        pair.n0.sendall(frame(number))
    assert receive(pair.n1) == [0]
    assert time.monotonic() - begin >= 0.35
    assert receive(pair.n1, 19) == list(range(1, 20))


def test_what_was_delayed_is_lost_in_a_cut(pair: Pair) -> None:
    pair.links.shape("n0", "n1", Shape(delay_ms=60_000))
    pair.n0.sendall(frame(1))
    pair.links.shape("n0", "n1", CUT)
    pair.n0.sendall(frame(2))
    assert poll(lambda: pair.links.swallowed_bytes("n0", "n1") == 2 * FRAME_BYTES, PATIENCE_S)
    pair.links.heal()
    assert is_over(pair.n1)


def test_frames_are_lost_doubled_swapped_between_members(pair: Pair) -> None:
    pair.links.shape("n0", "n1", Shape(duplicate=1.0))
    pair.n0.sendall(frame(1) + frame(2))
    assert receive(pair.n1, 4) == [1, 1, 2, 2]
    pair.links.shape("n0", "n1", Shape(reorder=1.0))
    pair.n0.sendall(frame(3) + frame(4))  # what is held back follows the next one
    assert receive(pair.n1, 2) == [4, 3]
    pair.links.shape("n0", "n1", Shape(lose=1.0))
    pair.n0.sendall(frame(5))
    assert receives_nothing(pair.n1)
    pair.links.heal()
    pair.n0.sendall(frame(6))
    assert receive(pair.n1) == [6]


def test_old_frames_come_again(pair: Pair) -> None:
    for number in range(10):
        pair.n0.sendall(frame(number))
        assert receive(pair.n1) == [number]
    count = pair.links.replay("n0", "n1", 6)
    again = receive(pair.n1, count)
    assert count > 0
    assert set(again) <= set(range(2, 10))
    assert pair.links.replay("n1", "n0", 6) == 0  # n1 has opened no connection


@pytest.mark.slow
def test_a_slow_line_is_slow(pair: Pair) -> None:
    pair.links.shape("n0", "n1", Shape(bytes_per_s=50_000))
    begin = time.monotonic()
    pair.n0.sendall(frame(0) * 2000)
    receive(pair.n1, 2000)
    assert time.monotonic() - begin > 0.5  # 36 000 bytes; a whole link takes a millisecond


def test_brokers_that_forward_are_told_from_clients() -> None:
    one, two, clients = free_ports(3)
    with (
        socket.create_server(("127.0.0.1", clients)) as listener,
        ProxyLinks([ProxiedMember("n0", one), ProxiedMember("n1", two, clients)]) as links,
    ):
        listener.settimeout(PATIENCE_S)
        links.shape("n0", "n1", CUT)
        hello = encode_command(
            make_request(PrivateCode.HELLO, 1, {"node": "n0", "group": "g"}, b"")
        )
        question = encode_command(make_request(105, 1, {"topic": "t"}, b""))
        address = (links.advertised_host("n1"), clients)
        with (
            socket.create_connection(address, timeout=PATIENCE_S) as broker,
            socket.create_connection(address, timeout=PATIENCE_S) as client,
        ):
            broker.sendall(hello)
            client.sendall(question)
            arrived, _ = listener.accept()
            with arrived:
                arrived.settimeout(PATIENCE_S)
                assert receive_bytes(arrived, len(question)) == question


def test_clients_are_an_end_of_their_own(pair: Pair) -> None:
    pair.links.shape(CLIENTS, "n1", Shape(flow="stall"))
    pair.n0.sendall(frame(1))
    assert receive(pair.n1) == [1]
    pair.links.heal()
    near, far = pair.connect(CLIENTS)
    with near, far:
        near.sendall(frame(2))
        assert receive(far) == [2]


def test_a_taken_port_is_an_error_and_leaves_no_process() -> None:
    one, two = free_ports(2)
    members = [ProxiedMember("n0", one), ProxiedMember("n1", two)]
    with ProxyLinks(members) as links:
        second = ProxyLinks(members)
        with pytest.raises(ProxyError, match="cannot listen"):
            second.start()
        assert second.pid is None
        pid = links.pid
    assert pid is not None
    assert not is_running(pid)
