"""A few requests to name servers and brokers, written by hand: no code of the broker or its client is measured here."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any, Final, Self

from bench.loadgen import FrameTemplate

TIMEOUT_S: Final = 60.0
"""Nobody takes that long who answers at all."""

DEFAULT_TOPIC: Final = "TBW102"
"""Every broker has it: its route tells who leads before there is another topic."""

Address = tuple[str, int]


def address_of(text: str) -> Address:
    """Return what HOST:PORT names."""
    host, _, port = text.rpartition(":")
    return host, int(port)


class RemotingCaller:
    """One connection, on which one request waits for its answer."""

    def __init__(self, address: Address, timeout_s: float = TIMEOUT_S) -> None:
        """Connect.

        Raises:
            OSError: nobody listens.
        """
        self._sock = socket.create_connection(address, timeout=timeout_s)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._sock.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._sock.close()

    def call(self, template: FrameTemplate) -> tuple[dict[str, Any], bytes]:
        """Send a request, and return its response header and body.

        Raises:
            OSError: nobody answers.
        """
        self._sock.sendall(template.frame(0))
        head = self._stream.read(8)
        if len(head) < 8:
            raise ConnectionError("the server closed the connection")
        size, header_size = struct.unpack(">ii", head)
        header_size &= 0xFFFFFF
        header = json.loads(self._stream.read(header_size))
        return header, self._stream.read(size - 4 - header_size)


def call(
    address: Address, template: FrameTemplate, timeout_s: float = TIMEOUT_S
) -> tuple[dict[str, Any], bytes]:
    """Send one request over a connection of its own, and return its response header and body.

    Raises:
        OSError: nobody answers.
    """
    with RemotingCaller(address, timeout_s) as caller:
        return caller.call(template)


def leader_address(name_server: Address, topic: str = DEFAULT_TOPIC) -> str:
    """Return the address that the route names as brokerId 0.

    Raises:
        LookupError: the route has none.
        OSError: the name server does not answer.
    """
    route = FrameTemplate(105, {"topic": topic, "acceptStandardJsonOnly": "true"})
    header, body = call(name_server, route)
    if header["code"] != 0:
        raise LookupError(header.get("remark"))
    return str(json.loads(body)["brokerDatas"][0]["brokerAddrs"]["0"])


def create_topic(address: Address, topic: str, queues: int) -> None:
    """Create a topic at the leader.

    Raises:
        RuntimeError: it was refused.
        OSError: the leader does not answer.
    """
    create = {
        "topic": topic,
        "defaultTopic": DEFAULT_TOPIC,
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    header, _ = call(address, FrameTemplate(17, create))
    if header["code"] != 0:
        raise RuntimeError(f"the topic was not created: {header}")


def max_offset(address: Address, topic: str, queue_id: int) -> int:
    """Return the end of a queue.

    Raises:
        RuntimeError: it was refused.
        OSError: the node does not answer.
    """
    header, _ = call(address, FrameTemplate(30, {"topic": topic, "queueId": str(queue_id)}))
    if header["code"] != 0:
        raise RuntimeError(f"the end of queue {queue_id} is not known: {header}")
    return int(header["extFields"]["offset"])
