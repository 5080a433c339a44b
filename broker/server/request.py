"""A request from its frame to its answer, and how a service says which requests it handles.

A request is one value, `PendingRequest`. Its code finds a `Handler`, which a service has registered; that decides. What
is not answered at once waits: for a leader (`Router.park`), for a commit (`Router.when_committed`), for confirmation
that this node leads (`Router.when_confirmed`), or for messages (`Pulls`). It is answered once, through `reply`; a
second answer is dropped. Whether somebody still waits for it is asked here, and nowhere else.

How to add a code: docs/adding-a-code.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, TypeVar

import msgspec

from broker.server.origin import Origin
from broker.service.conclusions import Kind, refusal_after
from dledger_mq.remoting.codes import ResponseCode, unsupported_remark
from dledger_mq.remoting.frame import Frame
from dledger_mq.remoting.header import RemotingCommand, encode_command, make_response
from dledger_mq.remoting.requests import PullRequest, SendRequest

HOLD_MS: Final = 2_500
"""How long a request waits for a leader; clients give a send 3 s."""

Command = SendRequest | PullRequest | RemotingCommand
"""A decoded request; which of them is decided by its code (dledger_mq.remoting.requests)."""

C = TypeVar("C", SendRequest, PullRequest, RemotingCommand)


class Where(Enum):
    """Where a request is carried out."""

    LEADER = "by the leader: other nodes pass it on, and hold it while there is none"
    ANY = "by this node as far as it can; the handler routes the rest to the leader"
    HERE = "by this node, at once"


class PendingRequest(msgspec.Struct):
    """A request that is not answered yet.

    Attributes:
        origin: who asked.
        handler: of its code.
        frame: as it came, to be passed on.
        command: the same, decoded.
        deadline_ms: until when it may wait for a leader.
        cause: why the last try was refused.
        may_be_done: a try of unknown outcome was made; harmless to repeat, but no longer surely not done.
        was_held: whether it waited for a leader, here or at the node that passed it on.
        waited_ms: how long it had waited at that node.
        is_answered: nothing more is sent.
    """

    origin: Origin
    handler: Handler[Any]
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

    @property
    def kind(self) -> Kind:
        """What it does."""
        return self.handler.kind

    # Is the connection still there?

    @property
    def is_closed(self) -> bool:
        """Whether nobody wants an answer any more, as far as was read: it was given, or the connection has ended."""
        return self.is_answered or self.origin.is_closed

    @property
    def is_abandoned(self) -> bool:
        """Whether it must not be done any more, if nothing of it was done yet: nobody waits for it.

        What is harmless to repeat, or wants no answer, is done for a client that is gone as well.
        """
        return not self.handler.kind.is_repeatable and not self.is_oneway and self.origin.is_gone

    @property
    def is_received(self) -> bool:
        """Whether its answer finds the client there, as far as this node can know."""
        origin = self.origin
        return not origin.is_forwarded and not origin.is_gone

    @property
    def link(self) -> int | None:
        """The connection to the node that passes its answer on; None for a client's own."""
        return self.origin.number if self.origin.is_forwarded else None

    # Its answer.

    def reply(self, frame: bytes) -> None:
        """Answer with a whole frame, if an answer is wanted and was not given yet."""
        if not (self.is_oneway or self.is_answered):
            self.is_answered = True
            self.origin.send(frame)

    def answer(
        self,
        code: int,
        remark: str | None = None,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> None:
        """Answer with these parts."""
        if not (self.is_oneway or self.is_answered):
            self.reply(encode_command(make_response(self.opaque, code, remark, ext, body)))

    def refuse(self, code: ResponseCode, remark: str) -> None:
        """Answer that it was not done, or not surely, and why."""
        told = refusal_after(code, remark, may_be_done=self.may_be_done)
        self.answer(told.code, told.remark)

    def refuse_as_busy(self) -> None:
        """Turn it away, since `Commits.is_full`; this time nothing of it was done."""
        remark = "[OVERLOAD]system busy: too much waits for its commit"
        end = "" if self.may_be_done else "; nothing was done"
        self.refuse(ResponseCode.SYSTEM_BUSY, f"{remark}{end}")

    def refuse_as_unknown(self) -> None:
        """No handler of this node takes its code."""
        text = unsupported_remark(self.command.code)
        self.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text)

    def give_up(self, code: ResponseCode, remark: str) -> None:
        """Nobody can carry it out in time."""
        self.refuse(code, remark)


@dataclass(frozen=True, slots=True)
class Handler(Generic[C]):
    """What is done with the requests of one code.

    Attributes:
        serve: carries it out. It raises FieldError or BodyError for what the client got wrong, and EntryDamagedError
            when an entry that it reads has yet to come back; nothing was done then.
        kind: what it does, and so what may be concluded when it fails.
        where: who carries it out.
        is_confirmed: only once it is confirmed that this node leads: for answers that come from what is applied here
            and not from the outcome of an entry. What confirms its answers itself needs none.
        request_type: of its requests, where they keep more than others.
    """

    code: int
    serve: Callable[[PendingRequest, C], None]
    kind: Kind
    where: Where = Where.LEADER
    is_confirmed: bool = False
    request_type: type[PendingRequest] = PendingRequest
