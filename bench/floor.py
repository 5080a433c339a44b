"""The floor: what the machine itself takes, at this moment, for what no broker can do without. No broker is involved.

An acknowledged send needs at least a durable write and a round trip; its leader at least parses a header and sums up a
body. Figures of a broker divided by these say more than figures alone, which differ from machine to machine and hour to
hour.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

WRITES: Final = 200
ROUND_TRIPS: Final = 2000
PARSES: Final = 20_000
WRITE_BYTES: Final = 1200
"""A message of 1 KiB with its header and properties."""

REPLY_BYTES: Final = 200
HEADER: Final = (
    b'{"code":310,"extFields":{"a":"bench","b":"Bench","c":"TBW102","d":"4","e":"3","f":"0","g":"1700000000000",'
    b'"h":"0","i":"UNIQ_KEY\\u00010123456789ABCDEF0123456789ABCDEF\\u0002TAGS\\u0001bench\\u0002","j":"0","k":"false"},'
    b'"flag":0,"language":"JAVA","opaque":100000000,"serializeTypeCurrentRPC":"JSON","version":409}'
)
ECHO: Final = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as sock:
    while data := sock.recv(65536):
        sock.sendall(data[:int(sys.argv[2])])
"""


class Floor(msgspec.Struct, frozen=True):
    """The machine's own times, medians in microseconds.

    Attributes:
        write_us: an append of one message and its fdatasync.
        round_trip_us: a message there, and an answer back, between two processes.
        parse_us: processor time for decoding a header and summing up a body of 1 KiB in Python.
    """

    write_us: float
    round_trip_us: float
    parse_us: float


def measure_floor(folder: Path | None = None) -> Floor:
    """Measure, in a second; files are written in `folder`, on whose device the stores are."""
    return Floor(_write_us(folder), _round_trip_us(), _parse_us())


def _median_us(times: int, work: Callable[[], object]) -> float:
    spent: list[float] = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        spent.append(time.perf_counter() - began)
    return 1e6 * statistics.median(spent)


def _write_us(folder: Path | None) -> float:
    body = b"x" * WRITE_BYTES
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:

        def write() -> None:
            file.write(body)
            os.fdatasync(file.fileno())

        return _median_us(WRITES, write)


def _round_trip_us() -> float:
    """Exchange a message and an answer with a process of our own, again and again."""
    body = b"x" * WRITE_BYTES
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, "-c", ECHO, str(server.getsockname()[1]), str(REPLY_BYTES)]
        with subprocess.Popen(command) as child:
            try:
                sock, _ = server.accept()
                with sock:
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

                    def exchange() -> None:
                        sock.sendall(body)
                        sock.recv(65536)

                    return _median_us(ROUND_TRIPS, exchange)
            finally:
                child.kill()


def _parse_us() -> float:
    body = b"x" * 1024
    decode = msgspec.json.Decoder().decode
    began = time.process_time()
    for _ in range(PARSES):
        decode(HEADER)
        zlib.crc32(body)
    return 1e6 * (time.process_time() - began) / PARSES
