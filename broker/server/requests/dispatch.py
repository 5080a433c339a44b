"""Takes every frame of every connection: finds the handler of its code, and lets it be carried out where it must be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol, TypeVar

from broker.access.guard import AccessGuard
from broker.server.links.private_codes import PrivateCode
from broker.server.requests.origin import ForwardedOrigin, Origin, answer
from broker.server.requests.questions import Question, Questions
from broker.server.requests.request import (
    HOLD_MS,
    AnyHandler,
    Command,
    Handler,
    PendingRequest,
    Where,
)
from broker.server.requests.router import Router, refuse_fault
from broker.service.conclusions import RequestKind
from dledger import EntryDamagedError
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.errors import BodyError, FieldError, FrameError
from dledger_mq.remoting.frame import Frame
from dledger_mq.remoting.header import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    RemotingCommand,
    decode_command,
)
from dledger_mq.remoting.registrant import ASK_REGISTRANT
from dledger_mq.remoting.requests import PullRequest, SendRequest, decode_request

_OF_SERVERS: Final = frozenset({*PrivateCode, ASK_REGISTRANT})
"""Requests of other nodes, which have a proof of their own, and the question of a name server, which has no account."""

_SENDS: Final = frozenset(
    {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}
)


def never() -> bool:
    """Tell that there is time for all."""
    return False


Hot = TypeVar("Hot", SendRequest, PullRequest, contravariant=True)


class RequestLane(Protocol[Hot]):
    """A way for sends, or pulls, that come together, without a request value for each."""

    def take(
        self,
        origin: Origin,
        frames: Sequence[Frame],
        at: int,
        command: Hot,
        *,
        deadline_ms: int,
    ) -> tuple[int, Command | None]:
        """Carry out the first of them from `frames[at]` on, whose header is `command`, as many as are plain.

        Returns:
            The place of the first frame that was not taken, and its header, None if that is still to be decoded.
        """
        ...


class SendsLane(RequestLane[SendRequest], Protocol):
    """The way for sends."""

    def take_together(
        self, origins: Sequence[Origin], frames: list[Frame], *, deadline_ms: int
    ) -> Sequence[int]:
        """Carry out those of some requests, each of another client's own connection, that are plain sends.

        It takes none that `Dispatch.seen` might have to look at.

        Returns:
            The places of those that it took.
        """
        ...


class Dispatch:
    """The table of all codes that this node handles; services register what they take.

    Attributes:
        lane: the way that sends of a client's own connection take first; None: all go the ordinary way.
        pull_lane: the same for pulls.
        unknown: the handler of every code that nobody has registered.
        client_answers: takes what a client says is an answer, with the number of its connection; None: nobody asks.
        seen: is called with the frames of clients that are connected here, before they are carried out; None: nobody.
        guard: decides which requests of clients that are connected here may be carried out; None: all.
    """

    def __init__(self, router: Router, now_ms: Callable[[], int]) -> None:
        self.lane: SendsLane | None = None
        self.pull_lane: RequestLane[PullRequest] | None = None
        self.client_answers: Callable[[int, RemotingCommand], None] | None = None
        self.seen: Callable[[Origin, Sequence[Frame]], None] | None = None
        self.guard: AccessGuard | None = None
        self._router = router
        self._now_ms = now_ms
        self._handlers: dict[int, AnyHandler] = {}
        self._questions = Questions()
        self.unknown: AnyHandler = Handler(-1, _refuse_unknown, RequestKind.READ, Where.HERE)
        self.unknown.calls.now_ms = now_ms

    @property
    def handlers(self) -> tuple[AnyHandler, ...]:
        """All handlers that are registered, in the order of their codes."""
        return tuple(self._handlers[code] for code in sorted(self._handlers))

    def register(self, handlers: Iterable[AnyHandler]) -> None:
        """Add the handlers of a service."""
        for handler in handlers:
            assert handler.code >= 0, f"{handler.code} is no code of a request"
            assert handler.code not in self._handlers, f"two services handle {handler.code}"
            if handler.kind is RequestKind.QUESTION:
                assert issubclass(handler.request_type, Question), f"{handler.code} asks a question"
            handler.calls.now_ms = self._now_ms
            self._handlers[handler.code] = handler

    def longest_ms(self, codes: Iterable[int]) -> int:
        """Return the longest time until an answer to one of these codes, without those that were held; 0 for none."""
        found = (self._handlers[code].calls.longest_ms for code in codes if code in self._handlers)
        return max(found, default=0)

    def handle(
        self, origin: Origin, frames: Sequence[Frame], is_over: Callable[[], bool] = never
    ) -> int:
        """Carry out the requests of a client, or of one behind another node, in the order in which they came.

        Args:
            origin: of all of them.
            frames: one or more.
            is_over: tells that none is to be begun any more; the first is in any case.

        Returns:
            How many of them were carried out.

        Raises:
            FrameError: a header cannot be read; the connection has to be closed.
        """
        if self.guard is None or origin.is_forwarded:
            return self._carry_out(origin, frames, is_over)
        return self._carry_out_admitted(self.guard, origin, frames, is_over)

    def handle_together(self, origins: Sequence[Origin], frames: list[Frame]) -> Sequence[int]:
        """Carry out those of some requests, each of another client's own connection, that are plain.

        The others are for `handle`, which would have done the same with these.

        Returns:
            The places of those that were carried out.
        """
        if self.guard is not None or self.lane is None:
            return ()
        return self.lane.take_together(origins, frames, deadline_ms=self._now_ms() + HOLD_MS)

    def _carry_out_admitted(
        self,
        guard: AccessGuard,
        origin: Origin,
        frames: Sequence[Frame],
        is_over: Callable[[], bool],
    ) -> int:
        """Carry out those requests that may be, and refuse the others; return how many there was time for.

        Each is looked at once, when its turn comes; but sends wait for those behind them, with which they are a burst.
        """
        admitted: list[Frame] = []
        for at, frame in enumerate(frames):
            try:
                command = decode_command(frame)
            except FrameError:
                self._carry_out(origin, admitted, never)
                raise
            refusal = None
            if not command.is_response and command.code not in _OF_SERVERS:
                refusal = guard.refusal(origin.address, frame, command)
            if refusal is None:
                admitted.append(frame)
            elif not command.is_oneway:
                answer(origin, command.opaque, ResponseCode.NO_PERMISSION, refusal)
            if command.code not in _SENDS:
                self._carry_out(origin, admitted, never)
                admitted = []
                if is_over():
                    return at + 1
        self._carry_out(origin, admitted, never)
        return len(frames)

    def _carry_out(
        self, origin: Origin, frames: Sequence[Frame], is_over: Callable[[], bool]
    ) -> int:
        """Carry out requests that may be; return how many, all of them unless it `is_over`."""
        if self.seen is not None and not origin.is_forwarded:
            self.seen(origin, frames)
        deadline_ms = self._now_ms() + HOLD_MS
        lane, pull_lane = (None, None) if origin.is_forwarded else (self.lane, self.pull_lane)
        at, command = 0, None
        while at < len(frames):
            frame = frames[at]
            if command is None:
                try:
                    command = decode_request(frame)
                except FieldError as error:
                    opaque = getattr(error, "opaque", 0)
                    answer(origin, opaque, ResponseCode.SYSTEM_ERROR, str(error))
                    at += 1
                    continue
                taken = at
                if isinstance(command, SendRequest):
                    if lane is not None:
                        taken, command = lane.take(
                            origin, frames, at, command, deadline_ms=deadline_ms
                        )
                elif isinstance(command, PullRequest) and pull_lane is not None:
                    taken, command = pull_lane.take(
                        origin, frames, at, command, deadline_ms=deadline_ms
                    )
                if taken > at:
                    at = taken
                    continue
            assert command is not None, "what was not taken is decoded"
            if not command.flag & FLAG_RESPONSE:
                self._handle(origin, frame, command, deadline_ms)
            elif self.client_answers is not None and not origin.is_forwarded:
                assert isinstance(command, RemotingCommand), "answers are read the general way"
                self.client_answers(origin.number, command)
            at, command = at + 1, None
            if at < len(frames) and is_over():
                break
        return at

    def _handle(self, origin: Origin, frame: Frame, command: Command, deadline_ms: int) -> None:
        """Carry out one request, where it must be."""
        handler = self._handlers.get(command.code, self.unknown)
        assert handler.code == command.code or handler is self.unknown, (
            f"a request of code {command.code} went to the handler of {handler.code}"
        )
        request = handler.request_type(
            origin,
            handler,
            frame,
            command,
            command.opaque,
            command.flag & FLAG_ONEWAY != 0,
            deadline_ms,
        )
        request.arrived_ms = deadline_ms - HOLD_MS
        if origin.is_forwarded:
            _note_forwarded(request)
        if handler.where is Where.LEADER:
            if handler.kind is RequestKind.QUESTION:
                assert isinstance(request, Question), "its handler says so"
                self._questions.add(request)
            self._router.route(request)
        elif handler.where is Where.ANY:
            self._router.carry_out(request)
        else:
            _serve_here(request)

    def expire(self, now_ms: int) -> None:
        """Answer the questions whose clients would give up otherwise, whatever they wait for; `now_ms` is monotonic."""
        why = f"{self._router.without_leader()}; nobody can say within {HOLD_MS} ms"
        self._questions.expire(now_ms, why)


def _note_forwarded(request: PendingRequest) -> None:
    """Take over what the client's own node has said of a request that it passes on."""
    origin = request.origin
    assert isinstance(origin, ForwardedOrigin), f"{origin} says that it is forwarded"
    request.may_be_done = origin.was_tried
    if origin.waited_ms is not None:
        request.was_held, request.waited_ms = True, origin.waited_ms


def _serve_here(request: PendingRequest) -> None:
    """Carry a request out on this node, and answer what goes wrong."""
    try:
        request.handler.serve(request, request.command)
    except (FieldError, BodyError) as error:
        refuse_fault(request, error)
    except EntryDamagedError as error:
        request.answer(ResponseCode.SERVICE_NOT_AVAILABLE, str(error))


def _refuse_unknown(request: PendingRequest, _command: object) -> None:
    request.refuse_as_unknown()
