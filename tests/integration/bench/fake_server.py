"""A server that answers what a test wants, to see what the generators make of it."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

Reply = tuple[dict[str, Any], bytes] | None


class HangUpError(Exception):
    """Raised by what answers: the connection is closed."""


class FakeServer:
    """Answers each request on loopback with what `answer` makes of its header; None: not at all."""

    def __init__(self, answer: Callable[[dict[str, Any]], Reply]) -> None:
        self._answer = answer
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._server.getsockname()
        self.headers: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []
        self.connections = 0
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for thread in self._threads:
            thread.join()

    def forget(self) -> None:
        """Begin anew with what is noted."""
        self.headers, self.bodies, self.connections = [], [], 0

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._server.accept()
            except OSError:
                return
            self.connections += 1
            self._threads.append(threading.Thread(target=self._serve, args=(sock,), daemon=True))
            self._threads[-1].start()

    def _serve(self, sock: socket.socket) -> None:
        """Serve one connection; a generator that ends may leave half a frame, or reset it."""
        with suppress(OSError, HangUpError), sock, sock.makefile("rb") as stream:
            while len(head := stream.read(8)) == 8:
                size, header_size = struct.unpack(">ii", head)
                data = stream.read(size - 4)
                if len(data) < size - 4:
                    return
                header = json.loads(data[:header_size])
                self.headers.append(header)
                self.bodies.append(data[header_size:])
                if found := self._answer(header):
                    sock.sendall(self._frame(header, *found))

    @staticmethod
    def _frame(asked: dict[str, Any], fields: dict[str, Any], body: bytes) -> bytes:
        header = {"opaque": asked["opaque"], "flag": 1, **fields}
        text = json.dumps(header, separators=(",", ":")).encode()
        return struct.pack(">ii", 4 + len(text) + len(body), len(text)) + text + body
