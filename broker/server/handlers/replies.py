"""Hands replies to request messages on to whoever asked (324, 325 with 326), on whichever node that client is.

The node that gets a reply gives it to a requester of its own; else the leader does, which asks the other nodes whether
the client is theirs, and has the first that says so give it on. Nothing is stored (docs/adr/0237). Whoever replies
hears what is true: it was taken, nobody here has such a client, or that is not known. After an election, or when a node
is gone, clients come back one by one: until then a reply waits, for as long as a request waits for a leader.

Replies on their way are bounded in number, bytes and time. Where clients are connected is the requesters' to know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from broker.server.handlers.client_calls import ClientCalls, End
from broker.server.handlers.requesters import Requesters
from broker.server.requests.origin import ClientOrigin
from broker.server.requests.request import HOLD_MS, Handler, PendingRequest, Where
from broker.server.requests.router import Router
from broker.service.conclusions import RequestKind
from broker.service.refusal import Refusal
from broker.service.reply import Reply, read_reply
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.replies import SendReplies
from dledger_mq.remoting.requests import send_request_of

REPLIES_MAX: Final = 1024
"""Replies on their way through one node."""

REPLY_BYTES_MAX: Final = 64 << 20
"""Of all of them; one alone may be larger."""

LOOK_MS: Final = 1_000
"""Wait for a node that is asked whether a client is connected to it."""

PUSH_MS_MIN: Final = 1_000
"""Wait for a requester, however long the reply has waited before."""

RETURN_MS: Final = 35_000
"""Time in which clients have come back after a change of leader or the end of a node: real ones beat every 30 s."""

RETRY_MS: Final = 100
"""Pause between two looks for a requester that is to come back."""


@dataclass(slots=True)
class _Delivery:
    """A reply on its way.

    Attributes:
        tried: the connections over which it was pushed.
        found: links of nodes that have the requester, and were not tried.
        asked: nodes that have not said yet whether they have it.
        silent: nodes that have not said it in time.
        is_pushing: True while the answer of a requester is awaited.
        has_no_room: a connection to the requester, or to its node, has too much on its way.
        look_ms: when to look again; 0: it does not wait.
    """

    request: PendingRequest
    reply: Reply
    tried: set[int] = field(default_factory=set)
    found: list[ClientOrigin] = field(default_factory=list)
    asked: int = 0
    silent: int = 0
    is_pushing: bool = False
    has_no_room: bool = False
    look_ms: int = 0


class Replies:
    """The replies on their way through one node."""

    def __init__(
        self,
        router: Router,
        calls: ClientCalls,
        requesters: Requesters,
        *,
        nodes: Callable[[], list[ClientOrigin]],
        replies: SendReplies,
        body_bytes_max: Callable[[], int],
        store_host: str,
        wall_ms: Callable[[], int],
        now_ms: Callable[[], int],
    ) -> None:
        """Set up the way of replies.

        Args:
            router: knows who leads.
            calls: asks clients, here and at other nodes.
            requesters: the clients that are connected here.
            nodes: returns the links of the other nodes, while this one leads.
            replies: encodes answers to sends, which those to replies are.
            body_bytes_max: returns the bound of a body.
            store_host: host:port of this node, as the requester is told.
            wall_ms: the time that the requester is told.
            now_ms: a clock that never goes back.
        """
        self._router = router
        self._calls = calls
        self._requesters = requesters
        self._nodes = nodes
        self._replies = replies
        self._body_bytes_max = body_bytes_max
        self._store_host = store_host
        self._wall_ms = wall_ms
        self._now_ms = now_ms
        self._open: dict[int, _Delivery] = {}
        self._open_bytes = 0
        self._returning_until_ms: int | None = None

    def handlers(self) -> tuple[Handler[RemotingCommand], ...]:
        """Return the handlers of its codes. A client drops a reply that it has, so twice is as once."""
        code = RequestCode
        return tuple(
            Handler(each, self.reply, RequestKind.UPDATE, Where.ANY)
            for each in (code.SEND_REPLY_MESSAGE, code.SEND_REPLY_MESSAGE_V2)
        )

    def reply(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out SEND_REPLY_MESSAGE: answered when the requester has the reply, or cannot be given it.

        Raises:
            FieldError: a field of a send is missing or impossible.
        """
        found = read_reply(
            send_request_of(command).fields,
            request.frame.body,
            body_bytes_max=self._body_bytes_max(),
            born_host=request.origin.address,
            store_host=self._store_host,
            now_ms=self._wall_ms(),
        )
        if isinstance(found, Refusal):
            request.refuse(found.code, found.remark)
        elif not self._router.is_serving and not self._requesters.origins(found.requester):
            self._router.route(request)
        elif len(self._open) >= REPLIES_MAX or (
            self._open and self._open_bytes + found.size_bytes > REPLY_BYTES_MAX
        ):
            request.refuse_as_busy()
        else:
            delivery = self._open[id(request)] = _Delivery(request, found)
            self._open_bytes += found.size_bytes
            self._go_on(delivery)

    # What happens around.

    def leadership_began(self) -> None:
        """Begin to lead: clients of the last leader come here."""
        self._returning_until_ms = self._now_ms() + RETURN_MS

    def node_lost(self) -> None:
        """Note that the link of another node ended; its clients may be about to come back elsewhere."""
        self._returning_until_ms = self._now_ms() + RETURN_MS

    def tick(self, now_ms: int) -> None:
        """Look again for requesters that are to come back."""
        for delivery in [one for one in self._open.values() if 0 < one.look_ms <= now_ms]:
            delivery.look_ms = 0
            self._go_on(delivery)

    @property
    def open_count(self) -> int:
        """The count of replies on their way."""
        return len(self._open)

    # The ways to a requester.

    def _go_on(self, delivery: _Delivery) -> None:
        """Give a reply to a requester of this node; without one, to whoever leads, or to another node."""
        reply = delivery.reply
        for origin in self._requesters.origins(reply.requester):
            if origin.number not in delivery.tried and self._has_room(delivery, origin):
                delivery.is_pushing = True
                self._calls.ask_at(
                    origin,
                    reply.requester,
                    reply.push,
                    wait_ms=self._left_ms(delivery),
                    then=partial(self._pushed, delivery),
                )
                return
        if not self._router.is_serving:
            self._end(delivery)
            self._router.route(delivery.request)
            return
        links = [link for link in self._nodes() if link.number not in delivery.tried]
        delivery.asked, delivery.silent = len(links), 0
        for link in links:
            then = partial(self._looked, delivery, link)
            self._calls.ask_node(link, reply.requester, None, wait_ms=LOOK_MS, then=then)
        if not links:
            self._not_found(delivery)

    def _looked(self, delivery: _Delivery, link: ClientOrigin, end: End) -> None:
        """Take from a node whether it has the requester."""
        delivery.asked -= 1
        if not isinstance(end, Refusal):
            delivery.found.append(link)
        elif end.code == ResponseCode.CONSUME_MSG_TIMEOUT:
            delivery.silent += 1
        if not delivery.is_pushing:
            self._try_found(delivery)

    def _try_found(self, delivery: _Delivery) -> None:
        """Have a node that has the requester give it the reply."""
        if self._open.get(id(delivery.request)) is not delivery:
            return  # another node has given it on
        reply = delivery.reply
        while delivery.found:
            link = delivery.found.pop(0)
            if self._has_room(delivery, link):
                delivery.is_pushing = True
                self._calls.ask_node(
                    link,
                    reply.requester,
                    reply.push,
                    wait_ms=self._left_ms(delivery),
                    then=partial(self._pushed, delivery),
                )
                return
        if not delivery.asked:
            self._not_found(delivery)

    def _has_room(self, delivery: _Delivery, origin: ClientOrigin) -> bool:
        """Return True if the reply may go over a connection, and note that it was tried there."""
        delivery.tried.add(origin.number)
        has_room = origin.has_room(delivery.reply.size_bytes)
        delivery.has_no_room = delivery.has_no_room or not has_room
        return has_room

    def _left_ms(self, delivery: _Delivery) -> int:
        """Return how long to wait for a requester: whoever replies does not wait for ever either."""
        return max(PUSH_MS_MIN, HOLD_MS - self._router.age_ms(delivery.request))

    # The ends.

    def _pushed(self, delivery: _Delivery, end: End) -> None:
        """Take a requester's answer, or why there is none."""
        delivery.is_pushing = False
        request, requester = delivery.request, delivery.reply.requester
        if not isinstance(end, Refusal):
            self._end(delivery)
            if end.code == ResponseCode.SUCCESS:
                frame = self._replies.encode(
                    request.opaque,
                    msg_id=b"0",
                    queue_id=delivery.reply.queue_id,
                    queue_offset=0,
                )
                request.reply(frame)
            else:
                text = f"the requester {requester} refused the reply with {end.code}: {end.remark}"
                request.answer(ResponseCode.SYSTEM_ERROR, text)
        elif end.code == ResponseCode.CONSUME_MSG_TIMEOUT:
            self._end(delivery)
            text = f"outcome unknown: the requester {requester} was given the reply and has not confirmed it in time"
            request.answer(ResponseCode.SYSTEM_ERROR, text)
        else:
            # The connection, or its node, ended meanwhile: elsewhere a second one is dropped by the client.
            request.may_be_done = True
            if delivery.found or delivery.asked:
                self._try_found(delivery)
            else:
                self._go_on(delivery)

    def _not_found(self, delivery: _Delivery) -> None:
        """Wait a little for a requester that may come back; answer that there is none."""
        request, now_ms = delivery.request, self._now_ms()
        if delivery.has_no_room:
            self._end(delivery)
            request.refuse_as_busy()
            return
        until_ms = self._returning_until_ms
        is_returning = until_ms is not None and now_ms < until_ms
        if is_returning and self._router.age_ms(request) + RETRY_MS < HOLD_MS:
            delivery.look_ms = now_ms + RETRY_MS
            return
        self._end(delivery)
        requester = delivery.reply.requester
        if request.may_be_done:
            text = f"outcome unknown: the connection of the requester {requester} ended before it confirmed the reply"
        elif delivery.silent:
            text = (
                f"the requester {requester} was not found: {delivery.silent} nodes did not say whether it is connected "
                "to them; the reply was given to nobody"
            )
        else:
            text = f"the requester {requester} is connected to no node of this group: the reply was given to nobody"
        request.answer(ResponseCode.SYSTEM_ERROR, text)

    def _end(self, delivery: _Delivery) -> None:
        del self._open[id(delivery.request)]
        self._open_bytes -= delivery.reply.size_bytes
        assert self._open_bytes >= 0, f"{self._open_bytes} bytes of replies are on their way"
