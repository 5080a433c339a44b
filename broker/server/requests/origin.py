"""The origin of a request: a client's own connection, or a client behind another node. Answers go back through it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Protocol

from broker.server.links.private_codes import NOT_CARRIED_OUT, PERHAPS_CARRIED_OUT
from dledger_mq.message.errors import MessageFormatError
from dledger_mq.message.hosts import pack_host
from dledger_mq.net.frame_socket import UNSENT_BYTES_MAX, FrameSocket
from dledger_mq.remoting.header import encode_command, make_response

TOGETHER_MIN = 4
"""Connections from which on they are written to together."""

_UNKNOWN_HOST = bytes(8)
_numbers = count(1)


class Origin(Protocol):
    """The client that sent a request, and the way back to it."""

    @property
    def number(self) -> int:
        """Number of the connection; unique in the process."""
        ...

    @property
    def address(self) -> str:
        """The client's address, host:port."""
        ...

    @property
    def born_host(self) -> bytes:
        """The same address as a host field of a record."""
        ...

    @property
    def is_closed(self) -> bool:
        """True once nobody can take an answer."""
        ...

    @property
    def is_gone(self) -> bool:
        """True once the connection has ended, though the end may not have been read yet.

        Asks the system, once for all answers that are gathered together.
        """
        ...

    @property
    def is_forwarded(self) -> bool:
        """True if another node passed the request on."""
        ...

    def send(self, frame: bytes) -> None:
        """Add one whole frame to those that the next flush writes."""
        ...

    def send_pieces(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Add one whole frame, which comes in pieces."""
        ...

    def pass_back(self, code: int, remark: str) -> None:
        """Return a forwarded request to the node that sent it; `code` says whether anything may have been done here."""
        ...


def _always() -> bool:
    """Tell that each connection has to be asked whether it has ended."""
    return True


class Outputs:
    """The connections that have something gathered; `flush` writes it, one system call for each.

    Attributes:
        may_have_ended: tells whether any connection may have ended without having been read to its end.
        send_each: writes to several connections at once, to each its own; None: they are written to one by one.
    """

    def __init__(self) -> None:
        self.may_have_ended: Callable[[], bool] = _always
        self.send_each: Callable[[list[FrameSocket], list[bytes]], None] | None = None
        self._dirty: list[ClientOrigin] = []
        self._are_there = False

    @property
    def are_there(self) -> bool:
        """True if no connection has ended but those that are closed; asked once for all that is written together."""
        if not self._are_there:
            self._are_there = not self.may_have_ended()
        return self._are_there

    def mark(self, origin: ClientOrigin) -> None:
        """Add a connection that had nothing to be written, and now has."""
        self._dirty.append(origin)

    def flush(self) -> None:
        """Write everything. Whoever produced answers calls this at the end of a batch of them."""
        self._are_there = False
        if self._dirty:
            dirty, self._dirty = self._dirty, []
            if self.send_each is None or len(dirty) < TOGETHER_MIN:
                for origin in dirty:
                    origin.flush()
            else:
                self._write_each(dirty, self.send_each)

    def _write_each(
        self,
        origins: list[ClientOrigin],
        send_each: Callable[[list[FrameSocket], list[bytes]], None],
    ) -> None:
        """Write to several connections; what came in pieces that are not to be joined goes by itself."""
        connections: list[FrameSocket] = []
        texts: list[bytes] = []
        for origin in origins:
            text = origin.take_joined()
            if text is None:
                origin.flush()
            else:
                connections.append(origin.connection)
                texts.append(text)
        send_each(connections, texts)


class ClientOrigin:
    """A client that is connected here."""

    __slots__ = (
        "_gathered",
        "_had_ended",
        "_has_views",
        "_outputs",
        "address",
        "born_host",
        "connection",
        "number",
    )

    is_forwarded = False

    def __init__(self, connection: FrameSocket, outputs: Outputs) -> None:
        self.number = next(_numbers)
        self.address = connection.peer
        self.born_host = host_field(connection.peer)
        self.connection = connection
        self._outputs = outputs
        self._gathered: list[bytes | memoryview] = []
        self._has_views = False
        self._had_ended: bool | None = None

    @property
    def is_closed(self) -> bool:
        """True once the connection has ended."""
        return self.connection.is_closed

    @property
    def is_gone(self) -> bool:
        """See `Origin`."""
        if self._outputs.are_there:
            return self.connection.is_closed
        if not self._gathered:
            return self.connection.has_ended
        if self._had_ended is None:
            self._had_ended = self.connection.has_ended
        return self._had_ended

    def has_room(self, size_bytes: int) -> bool:
        """Return True if a request of this size may join what is on its way; too much would end the connection."""
        on_its_way = self.connection.unsent_bytes + sum(map(len, self._gathered))
        return not on_its_way or on_its_way + size_bytes <= UNSENT_BYTES_MAX // 2

    def send(self, frame: bytes) -> None:
        """Add one frame to those that the next flush writes."""
        if not self._gathered:
            self._outputs.mark(self)
            self._had_ended = None
        self._gathered.append(frame)

    def send_pieces(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Add one frame to those that the next flush writes."""
        if not self._gathered:
            self._outputs.mark(self)
            self._had_ended = None
        self._gathered.extend(pieces)
        self._has_views = True

    def take_joined(self) -> bytes | None:
        """Take all frames that were added, joined; None: there are none, or they are not to be joined."""
        gathered = self._gathered
        if not gathered or self._has_views:
            return None
        self._gathered = []
        return b"".join(gathered)

    def flush(self) -> None:
        """Write all frames that were added, in one call."""
        if self._gathered:
            gathered, self._gathered = self._gathered, []
            if self._has_views:
                self._has_views = False
                self.connection.send_pieces(gathered)
            else:
                self.connection.send_many(gathered)

    def pass_back(self, code: int, remark: str) -> None:
        """Refuse: a request of a client's own connection was not forwarded."""
        raise AssertionError(f"a client's own request was to be passed back: {code} {remark}")


class ForwardedOrigin:
    """A client of another node; its answer travels as the body of an answer to that node.

    One is made for each forwarded request, so it knows the opaque of the node's own request.

    Attributes:
        was_tried: True if an earlier try of the request is of unknown outcome.
        waited_ms: the time for which its client's node held it; None: it did not.
    """

    __slots__ = (
        "_is_answered",
        "_link",
        "_opaque",
        "address",
        "born_host",
        "waited_ms",
        "was_tried",
    )

    is_forwarded = True

    def __init__(
        self,
        link: ClientOrigin,
        opaque: int,
        *,
        address: str,
        was_tried: bool = False,
        waited_ms: int | None = None,
    ) -> None:
        self.address = address
        self.was_tried = was_tried
        self.waited_ms = waited_ms
        self.born_host = host_field(address)
        self._link = link
        self._opaque = opaque
        self._is_answered = False

    @property
    def number(self) -> int:
        """The number of the link: what is registered under it goes when the other node goes."""
        return self._link.number

    @property
    def is_closed(self) -> bool:
        """True once the link has ended."""
        return self._link.is_closed

    @property
    def is_gone(self) -> bool:
        """See `Origin`."""
        return self._link.is_gone

    def send(self, frame: bytes) -> None:
        """Send the client's answer to its node."""
        self._answer(0, None, frame)

    def send_pieces(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Send the client's answer to its node."""
        self._answer(0, None, b"".join(pieces))

    def pass_back(self, code: int, remark: str) -> None:
        """See `Origin`."""
        assert code in (NOT_CARRIED_OUT, PERHAPS_CARRIED_OUT), (
            f"{code} says nothing of what was done"
        )
        self._answer(code, remark, b"")

    def _answer(self, code: int, remark: str | None, body: bytes) -> None:
        if not self._is_answered:
            self._is_answered = True
            self._link.send(encode_command(make_response(self._opaque, code, remark, body=body)))


def answer(
    origin: Origin,
    opaque: int,
    code: int,
    remark: str | None = None,
    *,
    ext: dict[str, str] | None = None,
    body: bytes = b"",
) -> None:
    """Answer a request of which no `PendingRequest` was made."""
    origin.send(encode_command(make_response(opaque, code, remark, ext=ext, body=body)))


def host_field(address: str) -> bytes:
    """Return host:port as the host field of a record; zeros if it is no IP address."""
    host, _, port = address.rpartition(":")
    try:
        return pack_host(host.strip("[]"), int(port))
    except (MessageFormatError, ValueError):
        return _UNKNOWN_HOST
