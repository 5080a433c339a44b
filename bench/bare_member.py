"""A member of a group that does nothing but what no broker in Python can do without: the floor of the rows.

    python -m bench.bare_member follower FOLDER PORT
    python -m bench.bare_member leader FOLDER PORT FOLLOWER_PORT,FOLLOWER_PORT

The leader cuts the frames of its clients, appends their bytes to a file, sends them to the followers, syncs, and
answers once its own sync and one of a follower have ended: so a majority of three has what is acknowledged, as with a
group of brokers. Whatever came while a sync ran is the next group. A request without a body is a pull: it is answered
with as many prepared records as it asks for. Nothing is decoded, checked, ordered, elected or repaired, and a sync
holds the whole member up; it is no log, and a floor only. Files are reserved ahead as a broker's segments are.

All connections end with the leader's; a member runs until it is killed, and says "ready" on its standard output.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import sys
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Final

SEGMENT_BYTES: Final = 256 << 20
READ_BYTES: Final = 4 << 20
RECORD_BYTES: Final = 1190
"""Of a message of 1 KiB as a broker keeps it, nearly."""

KEPT_RECORDS: Final = 1 << 14
"""Those that pulls are answered with, in turn: more than a processor's caches hold."""

_HEAD: Final = struct.Struct(">ii")
_PIECE: Final = struct.Struct(">qi")
"""Before the bytes of a group: its number and size."""

_NUMBER: Final = struct.Struct(">q")
_OPAQUE: Final = b'"opaque":'
_OPAQUE_DIGITS: Final = 9
_COUNT: Final = b'"maxMsgNums":"'
_ANSWER: Final = b'{"code":0,"extFields":{},"flag":1,' + _OPAQUE
_ANSWER_TAIL: Final = b"}"


class BareFile:
    """A file that only grows, reserved a segment ahead."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(folder / "log", os.O_RDWR | os.O_CREAT, 0o600)
        self._end = self._reserved = 0

    def append(self, data: memoryview) -> None:
        """Write, and sync."""
        while self._end + len(data) > self._reserved:
            os.posix_fallocate(self._descriptor, self._reserved, SEGMENT_BYTES)
            self._reserved += SEGMENT_BYTES
        while data:
            written = os.pwrite(self._descriptor, data, self._end)
            data, self._end = data[written:], self._end + written
        os.fdatasync(self._descriptor)


def _answer_head(body_bytes: int) -> bytes:
    """Return what stands before the opaque number of a successful answer; `_ANSWER_TAIL` and the body come after it."""
    size = len(_ANSWER) + _OPAQUE_DIGITS + len(_ANSWER_TAIL)
    return _HEAD.pack(4 + size + body_bytes, size) + _ANSWER


class BareClient:
    """A client's connection: its bytes are cut into frames, and what does not leave at once waits.

    Attributes:
        asked: the opaque numbers of the sends that `take` found, until they are taken from here.
        pulls: the pulls that it found.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.asked: list[bytes] = []
        self.pulls: list[bytes] = []
        self.unsent = b""
        self._rest = b""

    def take(self, room: memoryview) -> bytes | None:
        """Read; return the bytes of the sends that are there whole, and None at the end."""
        size = self.sock.recv_into(room)
        if not size:
            return None
        data = self._rest + room[:size] if self._rest else bytes(room[:size])
        at = 0
        while len(data) - at >= _HEAD.size:
            frame_size, header_size = _HEAD.unpack_from(data, at)
            end = at + 4 + frame_size
            if end > len(data):
                break
            if frame_size > 4 + header_size:
                opaque_at = data.find(_OPAQUE, at) + len(_OPAQUE)
                self.asked.append(data[opaque_at : opaque_at + _OPAQUE_DIGITS])
            else:
                self.pulls.append(data[at:end])
            at = end
        self._rest = data[at:]
        # A connection sends or pulls: where it does both, what is replicated has the pulls in it.
        return data[:at] if self.asked else b""

    def send(self, data: bytes) -> bool:
        """Send what the socket takes; return whether that is all."""
        self.unsent = self.unsent + data if self.unsent else data
        with suppress(BlockingIOError):
            self.unsent = self.unsent[self.sock.send(self.unsent) :]
        return not self.unsent


class BareLeader:
    """The one whom clients ask."""

    def __init__(self, folder: Path, port: int, followers: list[int]) -> None:
        self._file = BareFile(folder)
        self._epoll = select.epoll()
        self._server = _listening(port)
        self._server.setblocking(False)
        self._clients: dict[int, BareClient] = {}
        self._followers = {sock.fileno(): sock for sock in map(_connected, followers)}
        for descriptor in (self._server.fileno(), *self._followers):
            self._epoll.register(descriptor, select.EPOLLIN)
        self._waiting: deque[tuple[int, list[tuple[BareClient, list[bytes]]]]] = deque()
        self._room = memoryview(bytearray(READ_BYTES))
        self._number = self._acknowledged = 0
        self._head = _answer_head(0)
        self._records = memoryview(
            RECORD_BYTES.to_bytes(4, "big").ljust(RECORD_BYTES, b"\0") * KEPT_RECORDS
        )
        self._next_record = 0

    def run(self) -> None:
        """Serve until killed."""
        while True:
            data: list[bytes] = []
            asking: list[BareClient] = []
            for descriptor, mask in self._epoll.poll():
                if descriptor in self._followers:
                    self._take_numbers(self._followers[descriptor])
                elif descriptor in self._clients:
                    client = self._clients[descriptor]
                    sent = self._take_client(client, mask)
                    if sent:
                        data.append(sent)
                        asking.append(client)
                else:
                    self._accept()
            if data:
                self._replicate(data, asking)
            self._answer_waiting()

    def _accept(self) -> None:
        sock, _ = self._server.accept()
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._clients[sock.fileno()] = BareClient(sock)
        self._epoll.register(sock, select.EPOLLIN)

    def _take_client(self, client: BareClient, mask: int) -> bytes:
        """Return what has to be replicated; pulls are answered."""
        if mask & select.EPOLLOUT:
            self._send(client, b"")
        if not mask & select.EPOLLIN:
            return b""
        sent = client.take(self._room)
        if sent is None:
            del self._clients[client.sock.fileno()]
            client.sock.close()
            return b""
        if client.pulls:
            pulls, client.pulls = client.pulls, []
            self._send(client, b"".join(map(self._pull_answer, pulls)))
        return sent

    def _pull_answer(self, frame: bytes) -> bytes:
        count_at = frame.find(_COUNT) + len(_COUNT)
        count = int(frame[count_at : frame.index(b'"', count_at)])
        if self._next_record + count > KEPT_RECORDS:
            self._next_record = 0
        begin, self._next_record = self._next_record, self._next_record + count
        body = self._records[begin * RECORD_BYTES : self._next_record * RECORD_BYTES]
        opaque_at = frame.find(_OPAQUE) + len(_OPAQUE)
        opaque = frame[opaque_at : opaque_at + _OPAQUE_DIGITS]
        return b"".join((_answer_head(len(body)), opaque, _ANSWER_TAIL, body))

    def _replicate(self, data: list[bytes], asking: list[BareClient]) -> None:
        self._number += 1
        piece = b"".join((_PIECE.pack(self._number, sum(map(len, data))), *data))
        for follower in self._followers.values():
            follower.sendall(piece)
        self._waiting.append((self._number, [(client, client.asked) for client in asking]))
        for client in asking:
            client.asked = []
        self._file.append(memoryview(piece)[_PIECE.size :])

    def _take_numbers(self, follower: socket.socket) -> None:
        data = follower.recv(4096)
        if not data:
            sys.exit("a follower is gone")
        newest = _NUMBER.unpack_from(data, len(data) - _NUMBER.size)[0]
        self._acknowledged = max(self._acknowledged, newest)

    def _answer_waiting(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._acknowledged:
            _, asked = self._waiting.popleft()
            for client, opaques in asked:
                answers = [opaque.join((self._head, _ANSWER_TAIL)) for opaque in opaques]
                self._send(client, b"".join(answers))

    def _send(self, client: BareClient, data: bytes) -> None:
        was_waiting = bool(client.unsent)
        is_waiting = not client.send(data)
        if is_waiting != was_waiting:
            writes = select.EPOLLOUT if is_waiting else 0
            self._epoll.modify(client.sock, select.EPOLLIN | writes)


def follow(folder: Path, port: int) -> None:
    """Take pieces, write and sync each, and tell the leader its number, until it is gone."""
    file = BareFile(folder)
    leader, _ = _listening(port).accept()
    leader.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    room = memoryview(bytearray(READ_BYTES))
    while len(head := leader.recv(_PIECE.size, socket.MSG_WAITALL)) == _PIECE.size:
        number, size = _PIECE.unpack(head)
        if size > len(room):
            room = memoryview(bytearray(size))
        if leader.recv_into(room, size, socket.MSG_WAITALL) < size:
            break
        file.append(room[:size])
        leader.sendall(_NUMBER.pack(number))


def _listening(port: int) -> socket.socket:
    server = socket.create_server(("127.0.0.1", port))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    return server


def _connected(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


if __name__ == "__main__":
    role, home, own_port = sys.argv[1:4]
    if role == "leader":
        ports = [int(each) for each in sys.argv[4].split(",")]
        BareLeader(Path(home), int(own_port), ports).run()
    else:
        follow(Path(home), int(own_port))
