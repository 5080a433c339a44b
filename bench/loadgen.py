"""A pipelined load generator for remoting servers: one connection, W requests in flight.

It must cost little, or it measures itself: request frames are prebuilt but for the opaque number,
all free slots are filled with one `send`, replies are only cut into frames and their codes checked.
It deliberately shares no code with the broker's client, which is itself a subject of measurement.
"""

from __future__ import annotations

import itertools
import json
import re
import socket
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

OPAQUE_DIGITS = 9
"""Width of the opaque number in a prebuilt frame, so that its length never changes."""
_FIRST_OPAQUE = 10 ** (OPAQUE_DIGITS - 1)
KEY_DIGITS = 16
_KEY_MARK = b"#KEYMARK#KEYMARK"
"""Stands in the UNIQ_KEYs of a prebuilt frame for what makes each frame's keys unique."""
_run_numbers = itertools.count(time.time_ns())
_ONEWAY = 2
"""Bit of a request's flag: nothing is answered."""

_MAY_WAIT, _HAS_SUBSCRIPTION = 2, 4
"""Bits of a pull's sysFlag."""

_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class FrameLayout:
    """A frame with places that differ in each request.

    Attributes:
        frame: the bytes.
        opaque_at: where the OPAQUE_DIGITS of the opaque number are.
        keys_at: where the KEY_DIGITS of each unique key are.
    """

    frame: bytes
    opaque_at: int
    keys_at: tuple[int, ...]


class FrameTemplate:
    """A request whose header and body are fixed but for the opaque number."""

    def __init__(
        self, code: int, ext: dict[str, str], body: bytes = b"", *, is_oneway: bool = False
    ) -> None:
        header = json.dumps(
            {
                "code": code,
                "extFields": ext,
                "flag": _ONEWAY if is_oneway else 0,
                "language": "JAVA",
                "opaque": _FIRST_OPAQUE,
                "serializeTypeCurrentRPC": "JSON",
                "version": 409,
            },
            separators=(",", ":"),  # as Java's clients write it
        ).encode()
        before, mark, after = header.rpartition(str(_FIRST_OPAQUE).encode())
        assert mark, f"no opaque {_FIRST_OPAQUE} in {header!r}"
        size = 4 + len(header) + len(body)
        self._head = struct.pack(">ii", size, len(header)) + before
        self._tail = after + body
        self._has_keys = _KEY_MARK in self._head + self._tail

    def layout(self) -> FrameLayout:
        """Return the frame, and what a generator in another language has to fill in."""
        frame = b"%b%d%b" % (self._head, _FIRST_OPAQUE, self._tail)
        keys = tuple(found.start() for found in re.finditer(re.escape(_KEY_MARK), frame))
        return FrameLayout(frame, len(self._head), keys)

    def frame(self, opaque: int) -> bytes:
        """Return the frame with this opaque number (below 10^8; the width stays constant).

        Its UNIQ_KEYs have never been sent before: a repeated key would be a repeated send.
        """
        frame = b"%b%d%b" % (self._head, _FIRST_OPAQUE + opaque, self._tail)
        return frame.replace(_KEY_MARK, b"%016X" % next(_run_numbers)) if self._has_keys else frame


def send_template(
    topic: str,
    queue_id: int,
    body: bytes,
    *,
    tag: str = "bench",
    more: Mapping[str, str] = _NONE,
    sys_flag: int = 0,
    is_oneway: bool = False,
) -> FrameTemplate:
    """Build a SEND_MESSAGE_V2 request (310) with a UNIQ_KEY, a tag, and more properties."""
    properties = f"UNIQ_KEY\x01{'0' * 16}{_KEY_MARK.decode()}\x02TAGS\x01{tag}\x02WAIT\x01true\x02"
    properties += "".join([f"{name}\x01{value}\x02" for name, value in more.items()])
    ext = {
        "a": "bench",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue_id),
        "f": str(sys_flag),
        "g": "1700000000000",
        "h": "0",
        "i": properties,
        "j": "0",
        "k": "false",
        "m": "false",
    }
    return FrameTemplate(310, ext, body, is_oneway=is_oneway)


def batch_template(topic: str, queue_id: int, body: bytes, count: int) -> FrameTemplate:
    """Build a SEND_BATCH_MESSAGE request (320) of `count` messages."""

    def item(number: int) -> bytes:
        properties = b"UNIQ_KEY\x01%016d%b\x02WAIT\x01true\x02" % (number, _KEY_MARK)
        head = struct.pack(">iiiii", 22 + len(body) + len(properties), 0, 0, 0, len(body))
        return head + body + struct.pack(">h", len(properties)) + properties

    ext = {
        "a": "bench",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": str(queue_id),
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": "WAIT\x01true\x02",
        "j": "0",
        "k": "false",
        "m": "true",
    }
    return FrameTemplate(320, ext, b"".join([item(number) for number in range(count)]))


def pull_template(
    topic: str,
    queue_id: int,
    queue_offset: int,
    count: int,
    *,
    tags: str = "*",
    sql: str = "",
    wait_ms: int = 0,
) -> FrameTemplate:
    """Build a PULL_MESSAGE request (11) that carries its own subscription; it waits for messages for so long."""
    ext = {
        "consumerGroup": "bench",
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(queue_offset),
        "maxMsgNums": str(count),
        "sysFlag": str(_HAS_SUBSCRIPTION | (_MAY_WAIT if wait_ms else 0)),
        "commitOffset": "0",
        "suspendTimeoutMillis": str(wait_ms),
        "subscription": sql or tags,
        "subVersion": "0",
        "expressionType": "SQL92" if sql else "TAG",
    }
    return FrameTemplate(11, ext)


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The measurements of one run. Latencies in microseconds, from the send of a request to its whole reply."""

    requests: int
    seconds: float
    p50_us: float
    p99_us: float
    max_us: float
    refused: int
    reply_bytes: int

    @property
    def per_second(self) -> float:
        """Answered requests per second."""
        return self.requests / self.seconds


def _taken(buffer: bytearray) -> list[tuple[int, bytes]]:
    """Take the whole replies out of a buffer: the size of each, and its header."""
    taken: list[tuple[int, bytes]] = []
    at = 0
    while len(buffer) - at >= 8:
        size, header_size = struct.unpack_from(">ii", buffer, at)
        if len(buffer) - at < size + 4:
            break
        taken.append((size, bytes(buffer[at + 8 : at + 8 + header_size])))
        at += size + 4
    del buffer[:at]
    return taken


def _ignore(_header: bytes) -> None:
    """Want nothing of a reply."""


def run_load(
    address: tuple[str, int],
    next_frame: Callable[[int], bytes],
    *,
    in_flight: int,
    seconds: float,
    count: int | None = None,
    answered: Callable[[bytes], None] = _ignore,
) -> LoadResult:
    """Keep `in_flight` requests outstanding for `seconds`, or until `count` were sent; then wait for the rest.

    `next_frame` is given the running number of the request, `answered` the header of each reply before that. Raises
    OSError when the server closes the connection, TimeoutError when it is silent for 10 s.
    """
    with socket.create_connection(address, timeout=10) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sent_at: list[float] = []
        latencies: list[float] = []
        refused = reply_bytes = done = 0
        buffer = bytearray()
        started = time.perf_counter()
        stop_at = started + seconds
        free = in_flight
        while True:
            now = time.perf_counter()
            first = len(sent_at)
            if count is not None:
                free = min(free, count - first)
            if free and now < stop_at:
                sock.sendall(b"".join(map(next_frame, range(first, first + free))))
                sent_at.extend([now] * free)
                free = 0
            if done == len(sent_at):
                break
            data = sock.recv(1 << 20)
            if not data:
                raise ConnectionError("the server closed the connection")
            now = time.perf_counter()
            buffer += data
            for size, header in _taken(buffer):
                opaque = int(header.split(b'"opaque":', 1)[1].lstrip()[:OPAQUE_DIGITS])
                latencies.append(now - sent_at[opaque - _FIRST_OPAQUE])
                refused += b'"code":0,' not in header.replace(b" ", b"")
                answered(header)
                reply_bytes += size
                done += 1
                free += 1
        elapsed = time.perf_counter() - started
    return _result_of(latencies, elapsed, refused=refused, reply_bytes=reply_bytes)


def _result_of(
    latencies: list[float], elapsed: float, *, refused: int, reply_bytes: int
) -> LoadResult:
    """Sum a run up; latencies come in seconds, one for each answered request, and are sorted here."""
    latencies.sort()
    return LoadResult(
        requests=len(latencies),
        seconds=elapsed,
        p50_us=1e6 * latencies[len(latencies) // 2],
        p99_us=1e6 * latencies[min(len(latencies) - 1, len(latencies) * 99 // 100)],
        max_us=1e6 * latencies[-1],
        refused=refused,
        reply_bytes=reply_bytes,
    )
