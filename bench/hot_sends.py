"""Sends at a steady rate beside something else, and how long each took: what hot traffic feels.

Each send has its time; how long it took is counted from there, so that one that waits for another counts in full. It
must not know what goes on beside it.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from dataclasses import dataclass
from typing import Final

from bench.loadgen import send_template
from bench.real_group import BODY_BYTES, QUEUE_COUNT

TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Felt:
    """The times that sends took, in microseconds."""

    count: int
    p50_us: float
    p99_us: float

    @classmethod
    def of(cls, latencies_s: list[float]) -> Felt:
        """Sum up how long sends took, in seconds.

        Raises:
            ValueError: there was none.
        """
        if not latencies_s:
            raise ValueError("no send was measured: measure for longer")
        ordered = sorted(latencies_s)
        place = min(len(ordered) - 1, len(ordered) * 99 // 100)
        return cls(len(ordered), 1e6 * ordered[len(ordered) // 2], 1e6 * ordered[place])


class HotSends:
    """One producer, in a thread of its own, until it is closed.

    Attributes:
        error: the reason for which it has ended by itself; None: it has not.
    """

    def __init__(self, address: tuple[str, int], topic: str, per_s: float) -> None:
        """Connect to the leader, and begin.

        Args:
            address: of the leader.
            topic: with the queues of bench.real_group.
            per_s: sends in a second.

        Raises:
            OSError: it cannot be reached.
        """
        self.error: Exception | None = None
        self._pause_s = 1 / per_s
        self._templates = [
            send_template(topic, each, b"h" * BODY_BYTES) for each in range(QUEUE_COUNT)
        ]
        self._latencies_s: list[float] = []
        self._is_to_end = threading.Event()
        self._sock = socket.create_connection(address, timeout=TIMEOUT_S)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._thread = threading.Thread(target=self._run, name="hot sends", daemon=True)
        self._thread.start()

    def take(self) -> Felt:
        """Return what was felt since the last call.

        Raises:
            RuntimeError: the producer has ended.
            ValueError: there was no send.
        """
        if self.error is not None:
            raise RuntimeError(f"the producer has ended: {self.error}") from self.error
        taken, self._latencies_s = self._latencies_s, []
        return Felt.of(taken)

    def forget(self) -> None:
        """Drop what was felt since the last call of this or of `take`, if anything was."""
        self._latencies_s = []

    def close(self) -> None:
        """End, after the send that is under way."""
        self._is_to_end.set()
        self._thread.join(TIMEOUT_S)
        self._sock.close()

    def _run(self) -> None:
        try:
            self._send_all()
        except (OSError, ValueError) as error:
            self.error = error

    def _send_all(self) -> None:
        """Send and note, until it is to end.

        Raises:
            OSError: the connection broke.
            ValueError: a send was refused.
        """
        stream = self._sock.makefile("rb")
        due_s, number = time.perf_counter(), 0
        while not self._is_to_end.wait(max(0.0, due_s - time.perf_counter())):
            self._sock.sendall(self._templates[number % QUEUE_COUNT].frame(number))
            size, header_size = struct.unpack(">ii", stream.read(8))
            header = stream.read(header_size)
            stream.read(size - 4 - header_size)
            if b'"code":0,' not in header.replace(b" ", b""):
                raise ValueError(f"a send was refused: {header.decode(errors='replace')}")
            self._latencies_s.append(time.perf_counter() - due_s)
            due_s += self._pause_s
            number += 1
