"""The leader's end of the links between nodes: who may speak there, and requests that other nodes pass on.

The other end is link.py; what is said stands in docs/formats/broker_link.md. A connection opens with HELLO; everything
else of another node is refused before that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from broker.server.links.private_codes import (
    OUTDATED_HELLO,
    TRIED_FIELD,
    WAITED_FIELD,
    HelloRefusal,
    PrivateCode,
    refuse_hello,
)
from broker.server.requests.origin import ClientOrigin, ForwardedOrigin, Origin, answer
from broker.server.requests.request import AnyHandler, Handler, PendingRequest, Where
from broker.service.conclusions import RequestKind
from dledger import GroupSecret
from dledger_mq.remoting import fields
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.frame import Frame, FrameDecoder
from dledger_mq.remoting.header import RemotingCommand

_log = logging.getLogger(__name__)

OfNode = Callable[[ClientOrigin, RemotingCommand], None]
"""The function that carries out a request of another node, and answers it."""


class LinkServer:
    """Receives the requests of the other nodes of the group."""

    def __init__(
        self,
        *,
        group: str,
        is_member: Callable[[str], bool],
        secret: GroupSecret | None,
        nonce: str,
        needs_secret: bool,
        frame_bytes_max: int,
        handle: Callable[[Origin, Sequence[Frame]], object],
        delivered: Callable[[str], None],
        sync_clients: OfNode,
        read_point: OfNode,
        client_answered: OfNode,
    ) -> None:
        """Set up the leader's end of the links.

        Args:
            group: name of the group that this node belongs to.
            is_member: whether a node id is that of a member of `group`.
            secret: that the members share.
            nonce: of this process, which a HELLO must mean.
            needs_secret: whether links are refused where there is no secret: what comes over them is not checked again.
            frame_bytes_max: of what is passed on.
            handle: takes requests of clients that are passed on.
            delivered: takes message ids of answers that find their clients at the other node.
            sync_clients: SYNC_CLIENTS.
            read_point: READ_POINT.
            client_answered: CLIENT_ANSWERED.
        """
        self._group = group
        self._is_member = is_member
        self._secret = secret
        self._nonce = nonce
        self._needs_secret = needs_secret
        self._frame_bytes_max = frame_bytes_max
        self._handle = handle
        self._delivered = delivered
        self._sync_clients = sync_clients
        self._read_point = read_point
        self._client_answered = client_answered
        self._trusted: set[int] = set()

    def handlers(self) -> tuple[AnyHandler, ...]:
        """Return the handlers of its codes."""
        known: dict[PrivateCode, OfNode] = {
            PrivateCode.FORWARD: self._forward,
            PrivateCode.DELIVERED: lambda _link, command: self._delivered(
                fields.text(command.ext, "msgId")
            ),
            PrivateCode.SYNC_CLIENTS: self._sync_clients,
            PrivateCode.READ_POINT: self._read_point,
            PrivateCode.CLIENT_ANSWERED: self._client_answered,
        }

        def serve(request: PendingRequest, command: RemotingCommand) -> None:
            link = request.origin
            if not isinstance(link, ClientOrigin):
                request.refuse_as_unknown()
            elif command.code == PrivateCode.HELLO:
                self._hello(link, command)
            elif link.number not in self._trusted:
                text = "a request between nodes on a connection that did not say hello"
                answer(link, command.opaque, ResponseCode.NO_PERMISSION, text)
            else:
                act = known.get(PrivateCode(command.code))
                if act is None:
                    request.refuse_as_unknown()
                else:
                    act(link, command)

        return tuple(Handler(code, serve, RequestKind.READ, Where.HERE) for code in PrivateCode)

    @property
    def link_count(self) -> int:
        """The count of open links from other nodes."""
        return len(self._trusted)

    def connection_closed(self, number: int) -> bool:
        """Trust a connection no longer, since it ended; return True if it was another node's."""
        was_link = number in self._trusted
        self._trusted.discard(number)
        return was_link

    def _hello(self, link: ClientOrigin, command: RemotingCommand) -> None:
        """Trust a connection whose HELLO proves the group's secret, a member's id and this process's nonce."""
        refusal = self._refusal(command)
        if refusal is None:
            self._trusted.add(link.number)
            answer(link, command.opaque, ResponseCode.SUCCESS)
            return
        # Whoever knows the secret of this node's last process is no stranger.
        level = logging.INFO if refusal.code == OUTDATED_HELLO else logging.WARNING
        _log.log(level, "refused a node's link from %s: %s", link.address, refusal.problem)
        answer(link, command.opaque, refusal.code, refusal.problem)

    def _refusal(self, command: RemotingCommand) -> HelloRefusal | None:
        if self._secret is None and self._needs_secret:
            text = "access control is on and this group has no secret: a link would pass on what nobody has checked"
            return HelloRefusal(ResponseCode.NO_PERMISSION, text)
        return refuse_hello(
            command.ext,
            accepted=(None,) if self._secret is None else self._secret.accepted,
            group=self._group,
            is_member=self._is_member,
            nonce=self._nonce,
        )

    def _forward(self, link: ClientOrigin, command: RemotingCommand) -> None:
        ext = command.ext
        origin = ForwardedOrigin(
            link,
            command.opaque,
            address=fields.text(ext, "address"),
            was_tried=fields.boolean(ext, TRIED_FIELD, default=False),
            waited_ms=fields.int64(ext, WAITED_FIELD, None),
        )
        decoder = FrameDecoder(self._frame_bytes_max)
        decoder.feed(command.body)
        self._handle(origin, decoder.frames())
