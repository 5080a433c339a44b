"""Many clients of one real broker at once, of which most behave badly: a sync sender gets its answers all the same."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count

import pytest

from jepsen.processes import Group, Process, poll
from tests.integration.hostile.test_bad_input import (
    NO_LEADER,
    PATIENCE_S,
    ask,
    frame,
    read_answer,
    rss_bytes,
    serves,
    serving_group,
)

pytestmark = [pytest.mark.integration, pytest.mark.slow]

_keys = count(1)

BURST_BYTES = 64 << 20


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with serving_group(tmp_path_factory.mktemp("many")) as processes:
        yield processes


def send_frame(body: bytes) -> bytes:
    properties = f"UNIQ_KEY\x01{next(_keys):032X}\x02WAIT\x01true\x02"
    ext = {
        "a": "many", "b": "Many", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0",
        "i": properties, "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    return frame(310, ext, body)


def connect(process: Process) -> socket.socket:
    return socket.create_connection(("127.0.0.1", process.port), timeout=PATIENCE_S)


def stored(process: Process) -> bool:
    """Whether a client with a new connection gets a message stored."""
    return bool(ask(process, send_frame(b"fine"))["code"] == 0)


def answered(client: socket.socket) -> int:
    """The code of an answer, or of those to the same again: an election may come in between on a machine under load."""
    codes: list[int] = []

    def is_led() -> bool:
        if codes:
            client.sendall(send_frame(b"x" * 100))
        codes.append(read_answer(client)["code"])
        return codes[-1] != NO_LEADER

    poll(is_led, PATIENCE_S)
    return codes[-1]


def test_two_thousand_connections_get_an_answer_each(group: Group) -> None:
    node = group.nodes[0]
    with ExitStack() as stack:
        clients = [stack.enter_context(connect(node)) for _ in range(2000)]
        for client in clients:
            client.sendall(send_frame(b"x" * 100))
        codes = [answered(client) for client in clients]
    assert codes == [0] * len(clients)


def test_ends_in_the_middle_of_a_frame_leave_nothing_behind(group: Group) -> None:
    node = group.nodes[0]
    assert node.pid is not None
    before = rss_bytes(node.pid)
    for number in range(300):
        whole = send_frame(b"x" * 100_000)
        with connect(node) as client:
            client.sendall(send_frame(b"whole") + whole[: 1 + number * 300])
            if number % 2:  # ends with a reset
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert stored(node)
    assert rss_bytes(node.pid) - before < 100 << 20


@contextmanager
def flooding(node: Process) -> Iterator[None]:
    """A client that sends a burst of 64 MiB, and reads its answers."""
    portion = b"".join(send_frame(b"x" * 4096) for _ in range(256))

    def send(client: socket.socket) -> None:
        with suppress(OSError):
            for _ in range(BURST_BYTES // len(portion)):
                client.sendall(portion)

    def drain(client: socket.socket) -> None:
        with suppress(OSError):
            while client.recv(1 << 20):
                pass

    with connect(node) as client:
        threads = [threading.Thread(target=each, args=(client,)) for each in (send, drain)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            client.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join(PATIENCE_S)


def test_bursts_and_clients_that_do_not_read_hold_up_no_sync_sender(group: Group) -> None:
    node = group.nodes[0]
    pull = frame(
        11,
        {
            "consumerGroup": "many", "topic": "Many", "queueId": "0", "queueOffset": "0",
            "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
            "subscription": "*", "subVersion": "0", "expressionType": "TAG",
        },
    )  # fmt: skip
    assert stored(node)
    with ExitStack() as stack:
        for _ in range(5):
            deaf = stack.enter_context(connect(node))
            deaf.setblocking(False)
            with suppress(OSError):  # the broker takes no more of it, or has cut it off
                for _ in range(10):
                    deaf.send(pull * 100)
        stack.enter_context(flooding(node))
        for _ in range(20):
            assert poll(lambda: stored(node), PATIENCE_S), node.log_tail()
    assert serves(group)
