"""The connection on which this node sends to one member: the order of messages, and which are dropped.

Messages leave in order, with two exceptions. A message without entries that is not a heartbeat
(votes and answers) may overtake entries: the core bears any order. And while entries wait, a
heartbeat gets a twin that overtakes them: it names the log's place before the oldest append request
that has not left, so it claims only what the follower may already have, and a large body on a slow
line costs no leadership. The heartbeat itself keeps its place, where it uncovers gaps.

The queue is bounded. What does not fit is dropped, as the network may drop it: the core sends again.
"""

from __future__ import annotations

import socket
from collections import deque
from typing import Final

import msgspec

from dledger.codec.frame import Buffer, encode_frame, frames_in_pieces
from dledger.codec.rpc import encode_message, entries_in_pieces
from dledger.raft.entry import Entry
from dledger.raft.ids import EntryId
from dledger.raft.messages import AppendRequest, PeerMessage, RepairAnswer
from dledger.runtime.member_sockets import send_pieces

QUEUE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Entries that wait for one member; a single larger request is still taken when nothing waits."""

SMALL_COUNT_MAX: Final = 1024
"""Messages without entries that wait for one member."""

SEND_BYTES: Final = 256 * 1024
"""Frames go up to this size in one call of the kernel."""

_PIECES_MAX: Final = 512
"""The same for their pieces, of which such a call takes 1024 (IOV_MAX of Linux); a frame has a few."""

FLUSH_BYTES_MAX: Final = 1024 * 1024
"""Handed to the kernel in one go, or a little more; then everybody else has a turn, however fast the member reads."""


_BEARERS: Final = (AppendRequest, RepairAnswer)
"""The messages that may bear entries."""


class FrameCache:
    """A cache of the last encoded entries: the same go to every follower, mostly, and are encoded only once.

    Term and index of the first and the last entry name the bytes between them (log matching).
    """

    __slots__ = ("_first", "_frames", "_header", "_last")

    def __init__(self) -> None:
        self._header = b""
        self._first: EntryId | None = None
        self._last: EntryId | None = None
        self._frames: list[list[Buffer]] = []

    def encode(self, header: bytes, entries: tuple[Entry, ...]) -> list[list[Buffer]]:
        """Return the frames of a message with sealed entries, in pieces."""
        first, last = entries[0].id, entries[-1].id
        if first != self._first or last != self._last or header != self._header:
            self._frames = frames_in_pieces(header, entries_in_pieces(entries))
            self._header, self._first, self._last = header, first, last
        return self._frames


class PeerLink:
    """The messages that wait for one member, and the socket they go to while there is one.

    Invariants: without a socket nothing waits; a frame that was begun is finished before anything
    else is sent; `_queued_bytes` is the size of the entries in `_ordered`.
    """

    __slots__ = (
        "_cache",
        "_chunks",
        "_cut_request",
        "_ordered",
        "_partial",
        "_queued_bytes",
        "_small",
        "_twin",
        "dropped_count",
        "sent_bytes",
        "sock",
    )

    def __init__(self, cache: FrameCache) -> None:
        self._cache = cache
        self.sock: socket.socket | None = None
        self.dropped_count = 0
        self.sent_bytes = 0
        self._reset()

    def _reset(self) -> None:
        self._partial: list[Buffer] = []
        self._small: deque[PeerMessage] = deque()
        self._twin: AppendRequest | None = None
        self._chunks: deque[list[Buffer]] = deque()
        self._cut_request: AppendRequest | None = None
        self._ordered: deque[AppendRequest | RepairAnswer] = deque()
        self._queued_bytes = 0

    def open(self, sock: socket.socket) -> None:
        """Use a fresh connection."""
        assert self.sock is None, "a second connection opens beside the first"
        self._reset()
        self.sock = sock

    def close(self) -> None:
        """Close the connection, and drop everything that waited for it."""
        if self.sock is not None:
            self.sock.close()
        self.sock = None
        self._reset()

    @property
    def has_waiting(self) -> bool:
        """True while `flush` has something to send."""
        return bool(
            self._partial or self._ordered or self._small or self._chunks or self._twin is not None
        )

    def post(self, message: PeerMessage) -> None:
        """Queue a message for the next `flush`; without a connection it is dropped."""
        if self.sock is None:
            self.dropped_count += 1
        elif isinstance(message, _BEARERS) and message.entries:
            self._post_entries(message)
        elif isinstance(message, AppendRequest):
            self._post_heartbeat(message)
        elif len(self._small) >= SMALL_COUNT_MAX:
            self.dropped_count += 1
        else:
            self._small.append(message)

    def _post_entries(self, request: AppendRequest | RepairAnswer) -> None:
        size_bytes = _entries_bytes(request)
        if self._ordered and self._queued_bytes + size_bytes > QUEUE_BYTES_MAX:
            self.dropped_count += 1
            return
        self._ordered.append(request)
        self._queued_bytes += size_bytes

    def _post_heartbeat(self, heartbeat: AppendRequest) -> None:
        # Only what the kernel did not take makes a heartbeat wait; the rest leaves with it.
        oldest = self._oldest_waiting() if self._partial else None
        if oldest is not None and oldest.term == heartbeat.term:
            self._twin = msgspec.structs.replace(
                heartbeat, prev_index=oldest.prev_index, prev_term=oldest.prev_term
            )
        if self._ordered and not self._ordered[-1].entries:
            # Only the newest of several heartbeats in a row says anything.
            self._ordered[-1] = heartbeat
        else:
            self._ordered.append(heartbeat)

    def _oldest_waiting(self) -> AppendRequest | None:
        """Return the oldest request with entries whose frames have not all been handed to the socket."""
        if self._chunks and self._cut_request is not None:
            return self._cut_request
        requests = (each for each in self._ordered if isinstance(each, AppendRequest))
        oldest = next(requests, None)
        return oldest if oldest is not None and oldest.entries else None

    def flush(self) -> bool:
        """Send what the kernel takes, up to a bound; return whether something still waits.

        Raises:
            OSError: the connection is gone; call `close`.
        """
        if self.sock is None:
            return False
        end_bytes = self.sent_bytes + FLUSH_BYTES_MAX
        while True:
            if not self._partial:
                if self.sent_bytes >= end_bytes:
                    return self.has_waiting
                self._partial = self._next_pieces()
                if not self._partial:
                    return False
            try:
                sent = send_pieces(self.sock, self._partial)
            except BlockingIOError:
                return True
            self.sent_bytes += sent
            self._partial = _without(self._partial, sent)
            if self._partial:
                continue
            if not (self._ordered or self._small or self._chunks or self._twin):
                return False

    def _next_pieces(self) -> list[Buffer]:
        """Return whole frames, the overtaking ones first, up to about SEND_BYTES."""
        pieces: list[Buffer] = []
        room = SEND_BYTES
        while (
            room > 0
            and len(pieces) < _PIECES_MAX
            and (self._ordered or self._small or self._chunks or self._twin)
        ):
            frame = self._next_frame()
            pieces += frame
            room -= sum(map(len, frame))
        return pieces

    def _next_frame(self) -> list[Buffer]:
        """Return the next frame of what waits: small messages overtake entries, also between two chunks of one blob."""
        if self._small:
            return [encode_frame(encode_message(self._small.popleft()))]
        if self._twin is not None:
            twin, self._twin = self._twin, None
            return [encode_frame(encode_message(twin))]
        if self._chunks:
            return self._chunks.popleft()
        request = self._ordered.popleft()
        if not request.entries:
            return [encode_frame(encode_message(request))]
        self._queued_bytes -= _entries_bytes(request)
        assert self._queued_bytes >= 0, f"{-self._queued_bytes} bytes more left than were queued"
        frames = self._cache.encode(encode_message(request), request.entries)
        self._chunks.extend(frames[1:])
        self._cut_request = request if isinstance(request, AppendRequest) else None
        return frames[0]


def _without(pieces: list[Buffer], sent_bytes: int) -> list[Buffer]:
    """Return pieces without their first bytes."""
    for place, piece in enumerate(pieces):
        if sent_bytes < len(piece):
            return [memoryview(piece)[sent_bytes:], *pieces[place + 1 :]]
        sent_bytes -= len(piece)
    return []


def _entries_bytes(request: AppendRequest | RepairAnswer) -> int:
    """Return the size of a request's entries; positions have no gaps."""
    entries = request.entries
    if len(entries) == 1:
        return entries[0].size_bytes
    return entries[-1].end_position - entries[0].position if entries else 0
