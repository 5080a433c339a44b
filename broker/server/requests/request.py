"""A request from its frame to its answer, and how a service says which requests it handles.

A request is one value, `PendingRequest`. Its code finds a `Handler`, which a service has registered; that decides. What
is not answered at once waits: for a leader (`Router.park`), for a commit (`Router.when_committed`), for confirmation
that this node leads (`Router.when_confirmed`), or with pulls and heartbeats, which differ and have reasons to
(docs/adding-a-code.md). It is answered once, through `reply`; a second answer is dropped. Whether somebody still waits
for it is asked here, and nowhere else.

How to add a code: docs/adding-a-code.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Generic, TypeVar

import msgspec

from broker.refused_codes import REFUSED_CODES
from broker.server.requests.calls import Calls
from broker.server.requests.origin import Origin
from broker.service.conclusions import RequestKind, mistaken, refusal_after
from dledger_mq.remoting.codes import ResponseCode, unsupported_remark
from dledger_mq.remoting.frame import Frame
from dledger_mq.remoting.header import RemotingCommand, encode_command, make_response
from dledger_mq.remoting.requests import PullRequest, SendRequest

_HEADER_FACTOR: Final = 3
_FIELD_BYTES: Final = 100
"""A header is kept as it came and as the texts of its fields, each of which takes more than its letters."""

HOLD_MS: Final = 2_500
"""The time for which a request waits for a leader; clients give a send 3 s."""

Command = SendRequest | PullRequest | RemotingCommand
"""A decoded request; which of them is decided by its code (dledger_mq.remoting.requests)."""

C = TypeVar("C", SendRequest, PullRequest, RemotingCommand)


class Where(Enum):
    """The node by which a request is carried out."""

    LEADER = "by the leader: other nodes pass it on, and hold it while there is none"
    ANY = "by this node as far as it can; the handler routes the rest to the leader"
    HERE = "by this node, at once"


class PendingRequest(msgspec.Struct):
    """A request that is not answered yet.

    Attributes:
        origin: the client that sent it, perhaps behind another node.
        handler: the handler of its code.
        frame: the request as it came, to be passed on.
        command: the same, decoded.
        opaque: the client's number of the request; its answer carries the same.
        is_oneway: True if the client wants no answer.
        deadline_ms: end of its wait for a leader, by the monotonic clock.
        cause: the reason why the last try was refused; empty: none was.
        may_be_done: True once a try of unknown outcome was made: harmless to repeat, but no longer surely not done.
        was_held: True once it has waited for a leader, here or at the node that passed it on.
        waited_ms: its wait at that node. Invariant: 0 unless `was_held`.
        is_answered: True once its answer was given; nothing more is sent. Invariant: False while `is_oneway`.
        disk_waits: how often it has waited for the disk.
        arrived_ms: when it came, by the monotonic clock.
    """

    origin: Origin
    handler: AnyHandler
    frame: Frame
    command: Command
    opaque: int
    is_oneway: bool
    deadline_ms: int
    cause: str = ""
    may_be_done: bool = False
    was_held: bool = False
    waited_ms: int = 0
    is_answered: bool = False
    disk_waits: int = 0
    arrived_ms: int = 0

    @property
    def kind(self) -> RequestKind:
        """The kind of its handler."""
        return self.handler.kind

    # What it keeps while it waits, see `wait_room.MemoryKeeper`.

    @property
    def kept_bytes(self) -> int:
        """Roughly the bytes that it keeps in memory by itself."""
        frame, command = self.frame, self.command
        field_count = len(command.ext) if isinstance(command, RemotingCommand) else 0
        return len(frame.header) * _HEADER_FACTOR + len(frame.body) + field_count * _FIELD_BYTES

    @property
    def shared(self) -> tuple[object, int] | None:
        """A thing that it keeps together with others, with its bytes; None: there is none."""
        return None

    # Is the connection still there?

    @property
    def is_closed(self) -> bool:
        """True once nobody wants an answer, as far as was read: it was given, or the connection has ended."""
        return self.is_answered or self.origin.is_closed

    @property
    def is_abandoned(self) -> bool:
        """True if it must not be done any more, provided that nothing of it was done yet: nobody waits for it.

        What is harmless to repeat, or wants no answer, is done for a client that is gone as well.
        """
        return not self.handler.kind.is_repeatable and not self.is_oneway and self.origin.is_gone

    @property
    def is_received(self) -> bool:
        """True if its answer finds the client there, as far as this node can know."""
        origin = self.origin
        return not origin.is_forwarded and not origin.is_gone

    @property
    def link(self) -> int | None:
        """Number of the connection to the node that passes its answer on; None for a client's own."""
        return self.origin.number if self.origin.is_forwarded else None

    # Its answer.

    def reply(self, frame: bytes, code: int = ResponseCode.SUCCESS) -> None:
        """Answer with a whole frame, whose code is `code`, unless none is wanted or one was given."""
        if not (self.is_oneway or self.is_answered):
            assert frame, f"an empty answer to code {self.handler.code}"
            self.is_answered = True
            self.handler.calls.answered(code, self.arrived_ms)
            self.origin.send(frame)

    def pass_on_reply(self, frame: bytes) -> None:
        """Answer with the frame of another node, which carried it out and has counted it."""
        assert not self.is_oneway, f"an answer to a oneway request of code {self.handler.code}"
        if not self.is_answered:
            self.is_answered = True
            self.origin.send(frame)

    def reply_in_pieces(
        self, pieces: Sequence[bytes | memoryview], code: int, *, was_held: bool
    ) -> None:
        """Answer with a whole frame, as `reply` does; the pieces must not change any more."""
        if not (self.is_oneway or self.is_answered):
            self.is_answered = True
            self.handler.calls.answered(code, self.arrived_ms, was_held=was_held)
            self.origin.send_pieces(pieces)

    def answer(
        self,
        code: int,
        remark: str | None = None,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> None:
        """Answer with these parts, unless none is wanted or one was given."""
        if not (self.is_oneway or self.is_answered):
            answer = make_response(self.opaque, code, remark, ext=ext, body=body)
            self.reply(encode_command(answer), code)

    def refuse(self, code: ResponseCode, remark: str) -> None:
        """Answer that it was not done, or may not have been, and why."""
        refusal = refusal_after(code, remark, may_be_done=self.may_be_done)
        self.answer(refusal.code, refusal.remark)

    def refuse_as_busy(self) -> None:
        """Refuse it, since `Commits.is_full`; nothing of this try was done."""
        remark = "[OVERLOAD]system busy: too much waits for its commit"
        end = "" if self.may_be_done else "; nothing was done"
        self.refuse(ResponseCode.SYSTEM_BUSY, f"{remark}{end}")

    def refuse_as_unknown(self) -> None:
        """Answer that this node has no handler for its code, and why, if that is known."""
        code = self.command.code
        why = REFUSED_CODES.get(code)
        if why is None:
            self.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, unsupported_remark(code))
        else:
            self.answer(ResponseCode.SYSTEM_ERROR, why)

    def give_up(self, code: ResponseCode, remark: str) -> None:
        """Answer that nobody can carry it out in time. Questions are answered in a way of their own."""
        self.refuse(code, remark)

    # Mistakes of ours.

    @property
    def described(self) -> str:
        """See `Answerable`."""
        return f"a request of {self.origin.address}, code {self.handler.code}"

    def answer_mistake(self, error: Exception) -> None:
        """See `Answerable`; a read has changed nothing, of all else the outcome is unknown."""
        refusal = mistaken(self.kind, error)
        self.give_up(refusal.code, refusal.remark)


@dataclass(frozen=True, slots=True)
class Handler(Generic[C]):
    """The service of the requests of one code.

    Attributes:
        code: the request code.
        serve: carries a request out. It raises FieldError or BodyError for what the client got wrong, and
            EntryDamagedError when an entry that it reads has yet to come back; nothing was done then.
        kind: the effect of a request, and so what may be concluded when it fails.
        where: the node that carries it out.
        is_confirmed: True to serve only once it is confirmed that this node leads: for answers that come from what is
            applied here and not from the outcome of an entry. What confirms its answers itself needs none.
            Invariant: only with `Where.LEADER`.
        counts_offsets: True to serve only once the offsets are applied that consumers told this node before, which
            gather for a while. Invariant: only where `is_confirmed`.
        request_type: the class of its requests, where they keep more than others.
        calls: what was answered.
    """

    code: int
    serve: Callable[[PendingRequest, C], None]
    kind: RequestKind
    where: Where = Where.LEADER
    is_confirmed: bool = False
    counts_offsets: bool = False
    request_type: type[PendingRequest] = PendingRequest
    calls: Calls = field(default_factory=Calls, compare=False, repr=False)

    def __post_init__(self) -> None:
        assert not self.is_confirmed or self.where is Where.LEADER, (
            f"code {self.code} is served {self.where.value}, where nobody asks for a confirmation"
        )
        assert self.is_confirmed or not self.counts_offsets, (
            f"code {self.code} waits for offsets, but not for it to be confirmed who leads"
        )


AnyHandler = Handler[Any]
"""A handler of any code. Which type of command it takes follows from its code, which types cannot express;
`tests/unit/server/test_handlers.py` holds the two together."""
