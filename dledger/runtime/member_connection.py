"""A client's connection to one member: many calls at once, each answer to its caller."""

from __future__ import annotations

from itertools import count
from typing import Final

import trio

from dledger.codec.client_rpc import (
    Answer,
    AppendCall,
    Call,
    Failure,
    decode_answer,
    error_of,
)
from dledger.codec.frame import FRAME_BYTES_MAX, Buffer, encode_frames, join_frames
from dledger.codec.wire_types import encode_header
from dledger.config import Peer
from dledger.errors import (
    AckTimeoutError,
    ConnectionLostError,
    DeadlineError,
    DLedgerError,
    PeerProtocolError,
    UnreachableError,
)
from dledger.runtime.handshake import Identity, dial_member
from dledger.runtime.sockets import FrameStream

HANDSHAKE_TIMEOUT_S: Final = 1.0
"""A member that hangs must not hold up a client: another may lead."""


class _Waiter:
    """A caller that waits for its answer."""

    __slots__ = ("answer", "blob", "error", "event")

    def __init__(self) -> None:
        self.event = trio.Event()
        self.answer: Answer | None = None
        self.blob: Buffer = b""
        self.error: DLedgerError | None = None


class MemberConnection:
    """An open connection; `run` reads it.

    Invariant: every waiter is woken once, by its answer or by the end of the connection.
    """

    def __init__(self, peer: Peer, stream: FrameStream) -> None:
        self.peer = peer
        self._stream = stream
        self._waiters: dict[int, _Waiter] = {}
        self._tokens = count(1)
        self._batch: list[bytes] = []
        self._has_batch = trio.Event()
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """True once the connection broke or was closed."""
        return self._is_over

    async def run(self) -> None:
        """Read answers until the connection ends."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stream.run_writer)
            nursery.start_soon(self._send_batches)
            reason = await self._read()
            self.close(reason)
            nursery.cancel_scope.cancel()

    async def _read(self) -> str:
        """Take answers; return why the connection ended."""
        while True:
            try:
                frames = await self._stream.receive()
                if not frames:
                    return "closed by the member"
                for frame in frames:
                    self._take(decode_answer(frame.header), frame.blob)
            except OSError as error:
                return str(error.strerror or error)
            except PeerProtocolError as error:
                return str(error)
            except trio.ClosedResourceError:
                return "closed"

    def _take(self, answer: Answer, blob: Buffer) -> None:
        waiter = self._waiters.pop(answer.token, None)
        if waiter is None:
            # Its caller has given up waiting.
            return
        waiter.answer, waiter.blob = answer, blob
        waiter.event.set()

    def close(self, reason: str) -> None:
        """Close the connection; every waiting caller gets ConnectionLostError with the reason."""
        self._is_over = True
        self._stream.close()
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters.values():
            waiter.error = ConnectionLostError(
                f"the connection to {self.peer} was lost before the answer came: {reason}"
            )
            waiter.event.set()

    def _send(self, data: bytes) -> None:
        """Send at once when nothing else is under way, else with everything of this turn of the loop.

        Many callers at once would otherwise pay a system call here and a wake-up there for each.
        """
        if len(self._waiters) == 1:
            self._stream.send_soon(data)
            return
        self._batch.append(data)
        self._has_batch.set()

    async def _send_batches(self) -> None:
        while True:
            await self._has_batch.wait()
            self._has_batch = trio.Event()
            batch, self._batch = self._batch, []
            self._stream.send_soon(b"".join(batch))

    def next_token(self) -> int:
        """Return a token for a call on this connection."""
        return next(self._tokens)

    async def ask(
        self, call: Call, body: bytes = b"", *, timeout_s: float
    ) -> tuple[Answer, Buffer]:
        """Send a call and wait for its answer.

        Raises:
            DeadlineError: the time is over already; it was not sent.
            UnreachableError: it was not sent.
            OutcomeUnknownError: it was sent, and no answer came.
            DLedgerError: what the member answered.
        """
        assert not body or isinstance(call, AppendCall), "only an append has a body"
        if timeout_s <= 0:
            raise DeadlineError(f"the time was over before {self.peer} was asked; nothing was sent")
        if self._is_over:
            raise UnreachableError(f"the connection to {self.peer} is over")
        waiter = _Waiter()
        self._waiters[call.token] = waiter
        self._send(join_frames(encode_frames(encode_header(call), body)))
        try:
            with trio.move_on_after(timeout_s):
                await waiter.event.wait()
        finally:
            self._waiters.pop(call.token, None)
        if waiter.error is not None:
            raise waiter.error
        answer = waiter.answer
        if answer is None:
            raise AckTimeoutError(f"{self.peer} gave no answer within {timeout_s:.3g} s")
        if isinstance(answer, Failure):
            raise error_of(answer)
        return answer, waiter.blob


async def open_member_connection(
    peer: Peer, identity: Identity, *, blob_bytes_max: int
) -> MemberConnection:
    """Connect and shake hands.

    Raises:
        UnreachableError: nobody answers there, or not as a member of this group.
        RefusedError: the handshake was refused.
    """
    try:
        stream, _ = await dial_member(peer, identity, timeout_s=HANDSHAKE_TIMEOUT_S)
    except PeerProtocolError as error:
        raise UnreachableError(f"{peer}: {error}") from error
    stream.decoder.raise_bounds(frame_bytes_max=FRAME_BYTES_MAX, blob_bytes_max=blob_bytes_max)
    return MemberConnection(peer, stream)
