"""Where the clients that wait for replies are connected to this node.

Two things tell: a heartbeat, and a message that asks for a reply. The second matters after a failover: a client that
sends here again says nothing of itself before its next heartbeat, up to 30 s later. What a message says counts only on
a connection over which no heartbeat has named another client: one that copies a message repeats what asks for a reply.
Bounded by the connections, and the clients of each. It must not know what replies are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from broker.server.requests.origin import ClientOrigin, Origin
from broker.service.reply import CLIENT_ID_CHARS_MAX, requester_of
from dledger_mq.message.properties import MSG_TYPE, REPLY_TO_CLIENT
from dledger_mq.remoting.errors import FieldError, FrameError
from dledger_mq.remoting.frame import Frame
from dledger_mq.remoting.requests import SendRequest, decode_request

CLIENTS_MAX: Final = 16
"""Clients of one connection; the one that was named longest ago is forgotten. Real clients share theirs with nobody."""

_REPLY: Final = f"{MSG_TYPE.decode()}\x01reply"


class _Connection:
    """One connection, and the clients on it: each with whether a heartbeat has named it.

    Attributes:
        has_beaten: a heartbeat has come over it. Then one of the clients is known for sure, and none is guessed.
    """

    __slots__ = ("clients", "has_beaten", "origin")

    def __init__(self, origin: ClientOrigin) -> None:
        self.origin = origin
        self.clients: dict[str, bool] = {}
        self.has_beaten = False


class Requesters:
    """The clients of this node by their id."""

    def __init__(self) -> None:
        self._connections: dict[int, _Connection] = {}
        self._by_client: dict[str, dict[int, ClientOrigin]] = {}
        """Invariant: the same pairs of client and connection as in `_connections`; no client without a connection."""

    @property
    def count(self) -> int:
        """The count of clients."""
        return len(self._by_client)

    def beat(self, origin: ClientOrigin, client_id: str) -> None:
        """Note the client that a heartbeat has named."""
        known = self._connections.get(origin.number)
        if known is not None:
            for guessed in [each for each, is_sure in known.clients.items() if not is_sure]:
                if guessed != client_id:
                    self._forget(known, guessed)
        self._note(origin, client_id, is_sure=True)

    def seen(self, origin: Origin, frames: Sequence[Frame]) -> None:
        """Look at requests of a client, which may be messages that ask for a reply.

        Called for every frame, so that what is not the case is found without decoding; and where a heartbeat has told
        who is there, which is so on nearly all connections, nothing is looked at.
        """
        known = self._connections.get(origin.number)
        if known is not None and known.has_beaten:
            return
        for frame in frames:
            if REPLY_TO_CLIENT in frame.header and isinstance(origin, ClientOrigin):
                self._seen(origin, frame)

    def _seen(self, origin: ClientOrigin, frame: Frame) -> None:
        """Guess whose connection it is from a message that asks for a reply."""
        try:
            command = decode_request(frame)
        except (FieldError, FrameError):
            return  # whoever carries it out says so
        if not isinstance(command, SendRequest):
            return
        properties = command.fields.properties
        client_id = requester_of(properties)
        if client_id is None or _REPLY in (properties or ""):
            return
        self._note(origin, client_id, is_sure=False)

    def origins(self, client_id: str) -> list[ClientOrigin]:
        """Return the open connections of a client to this node, the newest first; those of heartbeats go before."""
        found = reversed(self._by_client.get(client_id, {}).values())
        live = [origin for origin in found if not origin.is_closed]
        return sorted(
            live, key=lambda origin: not self._connections[origin.number].clients[client_id]
        )

    def connection_closed(self, number: int) -> None:
        """Forget the clients of a connection that ended."""
        known = self._connections.get(number)
        if known is not None:
            for client_id in tuple(known.clients):
                self._forget(known, client_id)

    def _note(self, origin: ClientOrigin, client_id: str, *, is_sure: bool) -> None:
        if not client_id or len(client_id) > CLIENT_ID_CHARS_MAX:
            return
        known = self._connections.setdefault(origin.number, _Connection(origin))
        known.has_beaten |= is_sure
        was_sure = known.clients.pop(client_id, False)
        known.clients[client_id] = is_sure or was_sure
        connections = self._by_client.setdefault(client_id, {})
        connections.pop(origin.number, None)
        connections[origin.number] = origin
        while len(known.clients) > CLIENTS_MAX:
            self._forget(known, next(iter(known.clients)))

    def _forget(self, known: _Connection, client_id: str) -> None:
        number = known.origin.number
        del known.clients[client_id]
        if not known.clients:
            del self._connections[number]
        connections = self._by_client[client_id]
        del connections[number]
        if not connections:
            del self._by_client[client_id]
