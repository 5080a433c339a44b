"""Pins of the log: an archive, or an operator, asks that the log is kept from a place on for a while.

What a pin means is the fold's (broker/store/pins.py); that retention waits for it, and for how long, is the leader's
and the fold's (broker/store/needs.py, docs/retention.md).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from broker.server.requests.commits import Commits
from broker.server.requests.request import Handler, PendingRequest
from broker.server.requests.router import Router
from broker.service.conclusions import RequestKind
from broker.store.control import DropPin, PutPin
from broker.store.pins import NAME_CHARS_MAX, PINS_MAX
from broker.store.retention import Retention
from broker.store.staging import StagedEntry
from broker.store.state import BrokerState
from dledger.raft.ids import Position
from dledger_mq.remoting import fields
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand

KEEP_MS_MAX: Final = 90 * 24 * 3_600_000
"""An archive that has not come for so long will not come."""


class PinRequests:
    """Puts and removes pins while this node leads."""

    def __init__(self, commits: Commits, router: Router, state: BrokerState) -> None:
        self._commits = commits
        self._router = router
        self._state = state

    def handlers(self) -> tuple[Handler[RemotingCommand], ...]:
        """Return the handlers of its codes."""
        code, kind = RequestCode, RequestKind.ADMIN
        return (
            Handler(code.PIN_LOG, self.put, kind, is_confirmed=True),
            Handler(code.UNPIN_LOG, self.drop, kind, is_confirmed=True),
        )

    def put(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out PIN_LOG; without a position the pin is put where the log begins. The answer says where it stands.

        Raises:
            FieldError: a field is missing, or no number.
        """
        ext = command.ext
        name = fields.text(ext, "name")
        beginning = self._state.retention.position
        position = Position(fields.int64(ext, "position", beginning))
        keep_ms, keep_bytes = fields.int64(ext, "keepMs"), fields.int64(ext, "keepBytes")
        problem = _problem(name, position, keep_ms, keep_bytes)
        if problem is not None:
            request.refuse(ResponseCode.INVALID_PARAMETER, problem)
            return
        if self._commits.is_full:
            request.refuse_as_busy()
            return
        by = request.origin.address[:256]
        place = self._commits.stage_control(PutPin(name, position, keep_ms, keep_bytes, by))
        self._router.when_committed(request, place, partial(self._put, request, position))

    def _put(
        self, request: PendingRequest, position: Position, staged: StagedEntry, place: int
    ) -> None:
        refusal = self._state.refusals.at(staged.physical_offset(place))
        if refusal is None:
            request.answer(ResponseCode.SUCCESS, ext={"position": str(position)})
        else:
            text = _why_refused(position, self._state.retention)
            request.answer(ResponseCode.SYSTEM_ERROR, text)

    def drop(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out UNPIN_LOG.

        Raises:
            FieldError: the name is missing.
        """
        name = fields.text(command.ext, "name")
        pins = dict(self._state.retention.pins.items())
        if name not in pins:
            known = ", ".join(map(repr, pins)) or "none"
            text = f"there is no pin {name[:NAME_CHARS_MAX]!r}; there are: {known}"
            request.refuse(ResponseCode.INVALID_PARAMETER, text)
            return
        if self._commits.is_full:
            request.refuse_as_busy()
            return
        place = self._commits.stage_control(DropPin(name))
        self._router.when_committed(request, place, partial(self._dropped, request))

    def _dropped(self, request: PendingRequest, staged: StagedEntry, place: int) -> None:
        request.answer(ResponseCode.SUCCESS)


def _problem(name: str, position: Position, keep_ms: int, keep_bytes: int) -> str | None:
    """Return what is wrong with the fields of a pin; None: nothing."""
    if not 0 < len(name) <= NAME_CHARS_MAX or not name.isprintable():
        return (
            f"the name of a pin has 1 to {NAME_CHARS_MAX} printable characters, not {name[:100]!r}"
        )
    if position < 0:
        return f"position {position} is before every log"
    if not 0 < keep_ms <= KEEP_MS_MAX:
        return f"keepMs={keep_ms} is not a number from 1 to {KEEP_MS_MAX}"
    if keep_bytes < 1:
        return f"keepBytes={keep_bytes} is not above 0"
    return None


def _why_refused(position: Position, retention: Retention) -> str:
    if position < retention.position:
        return (
            f"position {position} is forgotten: the log begins with entry {retention.index}, at position "
            f"{retention.position} ({retention.cause})"
        )
    if len([*retention.pins.items()]) >= PINS_MAX:
        return f"there are {PINS_MAX} pins already: remove one (dledger-admin retention --drop-pin NAME)"
    return f"position {position} is beyond the end of the log"
