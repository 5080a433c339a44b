"""Brings a request to the node that leads: here, over the link, or held until there is one.

A request that needs an entry which the disk does not give is held as well, until that is back.

A send that waits for nobody any more, because its connection has ended, is dropped before anything is done: its client
may have sent it again elsewhere. What waits in a socket while this node stands still is looked at in the same way.

Clients poll routes every 30 s, so after a failover they go on sending to the wrong node for a while; an
election takes about a second. So a node that does not lead passes requests on, and while nobody
serves, requests wait a little. A request that was passed on and got lost is repeated only if that is
harmless; for the others the truth is that nobody knows (code 1).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

import msgspec

from broker.server.link import LeaderLink
from broker.server.origin import Origin, answer
from broker.server.private_codes import (
    NOT_CARRIED_OUT,
    PERHAPS_CARRIED_OUT,
    TRIED_FIELD,
    WAITED_FIELD,
    PrivateCode,
)
from dledger import DLedgerError, LogServer, RefusedError, Role
from dledger_mq.remoting.codes import DISK_FULL, RequestCode, ResponseCode, is_definite
from dledger_mq.remoting.frame import Frame, FrameDecoder, encode_frame
from dledger_mq.remoting.header import RemotingCommand, decode_command
from dledger_mq.remoting.requests import SendRequest

_log = logging.getLogger(__name__)

HOLD_MS = 2_500
"""How long a request waits for a leader; clients give a send 3 s."""

WAIT_MARGIN_MS = 100
"""A wait counts for less than it was: clients' clocks are read in milliseconds, and drift."""

ANSWER_MS = 10_000
"""How long a passed-on request waits for the leader's answer; by then its client has given up."""

SEND_CODES = frozenset(
    {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}
)

QUESTION_CODES = frozenset(
    {RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.GET_CONSUMER_LIST_BY_GROUP}
)
"""What a client must not be left alone with, and not be told a plain refusal of: see `Questions`."""

READ_CODES = QUESTION_CODES | {
    RequestCode.QUERY_MESSAGE,
    RequestCode.VIEW_MESSAGE_BY_ID,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.GET_EARLIEST_MSG_STORETIME,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_TOPIC_STATS_INFO,
    RequestCode.GET_CONSUME_STATS,
}
"""What changes nothing, so that it is never of unknown outcome."""

Request = SendRequest | RemotingCommand


class Errand(msgspec.Struct, gc=False):
    """A request on its way to the leader.

    Attributes:
        frame: as it came, to be passed on or decoded again.
        deadline_ms: until when it may wait for a leader.
        is_repeatable: whether doing it twice is the same as once.
        give_up: answers in its own way that nobody can say, given the usual code and text; None: just these.
        cause: why the last try was refused.
        may_be_done: a try of unknown outcome was made; harmless to repeat, but no longer surely not done.
        was_held: whether it waited for a leader, here or at the node that passed it on.
        waited_ms: how long it had waited at that node.
    """

    origin: Origin
    frame: Frame
    code: int
    opaque: int
    is_oneway: bool
    deadline_ms: int
    is_repeatable: bool
    give_up: Callable[[ResponseCode, str], None] | None = None
    cause: str = ""
    may_be_done: bool = False
    was_held: bool = False
    waited_ms: int = 0

    @property
    def is_abandoned(self) -> bool:
        """Whether it must not be done any more, if nothing of it was done yet.

        What is harmless to repeat, or wants no answer, is done for a client that is gone as well.
        """
        return not self.is_repeatable and not self.is_oneway and self.origin.is_gone

    def refuse(self, code: ResponseCode, remark: str) -> None:
        """Answer that it was not done, or not surely, and why; what may be done is never told to be undone."""
        if self.is_oneway:
            return
        if self.may_be_done and is_definite(code):
            code = ResponseCode.SYSTEM_ERROR
            remark = f"outcome unknown: {remark}; an earlier try may have been carried out"
        answer(self.origin, self.opaque, code, remark)

    def refuse_as_busy(self) -> None:
        """Turn it away, since `Commits.is_full`; this time nothing of it was done."""
        remark = "[OVERLOAD]system busy: too much waits for its commit"
        end = "" if self.may_be_done else "; nothing was done"
        self.refuse(ResponseCode.SYSTEM_BUSY, f"{remark}{end}")


class Gate:
    """Who leads, and the requests that wait for somebody to do so."""

    def __init__(
        self,
        log: LogServer,
        link: LeaderLink,
        *,
        waiting_max: int,
        now_ms: Callable[[], int],
        serve: Callable[[Errand, Request | None], None],
    ) -> None:
        """Prepare. `serve` carries out a request on this node, which leads."""
        self._log = log
        self._link = link
        self._waiting_max = waiting_max
        self._now_ms = now_ms
        self._serve = serve
        self._waiting: deque[Errand] = deque()
        self._delivered: list[str] = []

    @property
    def waiting_count(self) -> int:
        """Requests that wait for a leader."""
        return len(self._waiting)

    def bring(self, errand: Errand, request: Request | None = None) -> None:
        """Carry out a request where the leader is; `request` is its decoded form, if at hand."""
        if self._log.is_serving:
            self._serve(errand, request)
        elif errand.is_abandoned:
            _drop(errand)
        elif not self._pass_on(errand):
            self.hold(errand)

    def hold(self, errand: Errand) -> None:
        """Let a request wait until there is a leader; nothing of it was done yet."""
        errand.was_held = True
        if errand.is_abandoned:
            _drop(errand)
        elif errand.code in SEND_CODES and self._log.full_disks.leave_no_majority:
            # An election does not help.
            self._give_up(errand)
        elif errand.origin.is_forwarded and self._log.role is not Role.LEADER:
            # The other node holds it and will find the new leader by itself.
            self._pass_back(errand)
        elif len(self._waiting) >= self._waiting_max:
            self._fail(
                errand,
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD]system busy: {len(self._waiting)} requests wait for a leader",
            )
        else:
            self._waiting.append(errand)

    def waited_until_ms(self, errand: Errand, born_ms: int) -> int:
        """Until when its client surely had no answer, by the clock by which it was made at `born_ms`.

        It may have given up meanwhile and sent the same again; on purpose it cannot have done that.
        """
        if not errand.was_held:
            return born_ms
        return born_ms + max(0, self._waited_ms(errand) - WAIT_MARGIN_MS)

    def _waited_ms(self, errand: Errand) -> int:
        return errand.waited_ms + self._now_ms() - (errand.deadline_ms - HOLD_MS)

    def unconfirmed(self, errand: Errand, error: DLedgerError) -> None:
        """A message is not confirmed; one that surely was not stored goes to the next leader."""
        if isinstance(error, RefusedError) and error.retriable:
            errand.cause = str(error)
            self.hold(errand)
        elif isinstance(error, RefusedError):
            errand.refuse(ResponseCode.MESSAGE_ILLEGAL, f"the message was not stored: {error}")
        else:
            text = f"outcome unknown: {error}; the message may have been stored"
            errand.refuse(ResponseCode.SYSTEM_ERROR, text)

    def again(self, errand: Errand, error: DLedgerError) -> None:
        """Something is not confirmed that may be done twice: it goes to the next leader, unless none would take it."""
        if isinstance(error, RefusedError) and not error.retriable:
            self._fail(errand, ResponseCode.MESSAGE_ILLEGAL, f"nothing was done: {error}")
            return
        errand.cause = str(error)
        errand.may_be_done = errand.may_be_done or not isinstance(error, RefusedError)
        self.hold(errand)

    def retry(self) -> None:
        """Somebody may lead now: bring the waiting requests there."""
        if not self._waiting or not (self._log.is_serving or self._link.is_open):
            return
        waiting, self._waiting = self._waiting, deque()
        for errand in waiting:
            if errand.is_abandoned:
                _drop(errand)
            else:
                self.bring(errand)

    def expire(self, now_ms: int) -> None:
        """Give up requests that waited long enough, and sends that wait in vain."""
        if not self._waiting:
            return
        has_no_room = self._log.full_disks.leave_no_majority
        waiting, self._waiting = self._waiting, deque()
        for errand in waiting:
            if errand.deadline_ms <= now_ms or (has_no_room and errand.code in SEND_CODES):
                self._give_up(errand)
            else:
                self._waiting.append(errand)

    def without_leader(self) -> str:
        """Why nobody leads, for people; the remark's tag, if it has one, is for programs."""
        if self._log.lost_votes.problem:
            return f"{self._log.lost_votes.problem}; {self._role()}"
        disks = self._log.full_disks
        if disks.leave_no_majority:
            return f"{DISK_FULL}{disks.describe()}: without them there is no majority to store anything"
        return f"{self._role()}{'; ' + disks.describe() if disks.full else ''}"

    def _role(self) -> str:
        """How this node sees who leads."""
        view = f"this node, {self._log.config.raft.node_id}, is {self._log.role.value} in term {self._log.term}"
        leader_id = self._log.leader_id
        if leader_id is None:
            return f"no leader is known; {view}"
        if self._log.role is Role.LEADER:
            return f"the new leader does not serve yet; {view}"
        return f"the leader {leader_id} cannot be reached; {view}"

    def _pass_on(self, errand: Errand) -> bool:
        """Hand it to the leader, or refuse it for want of room; False when there is nobody to hand it to."""
        if errand.origin.is_forwarded:
            return False
        frame = _whole(errand.frame)
        if not self._link.has_room(len(frame)):
            self._fail(
                errand,
                ResponseCode.SYSTEM_BUSY,
                "[OVERLOAD]system busy: too much is on its way to the leader",
            )
            return True
        ext = {"address": errand.origin.address}
        if errand.may_be_done:
            ext[TRIED_FIELD] = "true"
        if errand.was_held:
            ext[WAITED_FIELD] = str(self._waited_ms(errand))
        if errand.is_oneway:
            return self._link.tell(PrivateCode.FORWARD, ext=ext, body=frame)
        return self._link.ask(
            PrivateCode.FORWARD, _Passed(self, errand), ext=ext, body=frame, timeout_ms=ANSWER_MS
        )

    def _give_up(self, errand: Errand) -> None:
        if errand.origin.is_forwarded:
            self._pass_back(errand)
        else:
            obstacle = self._obstacle(errand)
            is_told = not errand.cause or obstacle == errand.cause
            cause = "" if is_told else f" (last try: {errand.cause})"
            end = "" if errand.may_be_done else "; nothing was done"
            text = f"{obstacle}{end}{cause}"
            self._fail(errand, ResponseCode.SERVICE_NOT_AVAILABLE, text)

    def _obstacle(self, errand: Errand) -> str:
        """Why a request cannot be carried out: nobody leads, or this node does and lacks what it needs."""
        return errand.cause if errand.cause and self._log.is_serving else self.without_leader()

    def _pass_back(self, errand: Errand) -> None:
        code = PERHAPS_CARRIED_OUT if errand.may_be_done else NOT_CARRIED_OUT
        errand.origin.pass_back(code, self._obstacle(errand))

    def answered(self, errand: Errand, response: RemotingCommand) -> None:
        """The leader's answer to a request that was passed on."""
        if response.code == 0:
            errand.origin.send(response.body)
            msg_id = _msg_id(response.body) if errand.code in SEND_CODES else ""
            if msg_id and not errand.origin.is_gone:
                self._delivered.append(msg_id)
        elif response.code in (NOT_CARRIED_OUT, PERHAPS_CARRIED_OUT):
            errand.may_be_done = errand.may_be_done or response.code == PERHAPS_CARRIED_OUT
            errand.cause = response.remark or errand.cause
            if errand.deadline_ms > self._now_ms():
                self.hold(errand)
            else:
                self._give_up(errand)
        else:
            self._fail(
                errand,
                ResponseCode.SYSTEM_ERROR,
                f"the leader could not take the request: {response.remark}",
            )

    def tell_delivered(self) -> None:
        """Tell the leader, ahead of the clients, which answers to sends find them there.

        For it a send that another node passed on is confirmed only then: its client may be gone, and send again.
        """
        if self._delivered:
            ext = {"msgId": ",".join(self._delivered)}
            self._delivered.clear()
            self._link.tell(PrivateCode.DELIVERED, ext=ext, body=b"")

    def broken(self, errand: Errand, reason: str) -> None:
        """The leader was asked, and is silent."""
        if errand.is_repeatable:
            errand.may_be_done = errand.code not in READ_CODES
            self.hold(errand)
        else:
            self._fail(
                errand,
                ResponseCode.SYSTEM_ERROR,
                f"outcome unknown: {reason} after the request was passed on; it may have been carried out",
            )

    def _fail(self, errand: Errand, code: ResponseCode, remark: str) -> None:
        if errand.give_up is not None:
            errand.give_up(code, remark)
        elif errand.origin.is_forwarded and errand.code in QUESTION_CODES:
            self._pass_back(errand)  # the client's own node knows how to tell it
        else:
            errand.refuse(code, remark)


def _drop(errand: Errand) -> None:
    _log.info("a send from %s is dropped: its client is gone", errand.origin.address)


def _msg_id(answer_frame: bytes) -> str:
    """What the answer to a send names as stored; empty for a refusal."""
    decoder = FrameDecoder()
    decoder.feed(answer_frame)
    (frame,) = decoder.frames()
    return decode_command(frame).ext.get("msgId", "")


def _whole(frame: Frame) -> bytes:
    return encode_frame(frame.header, frame.body, frame.serialize_type)


class _Passed:
    """Waits for the leader's answer to one request."""

    __slots__ = ("_errand", "_gate")

    def __init__(self, gate: Gate, errand: Errand) -> None:
        self._gate = gate
        self._errand = errand

    def answered(self, response: RemotingCommand) -> None:
        """See `LinkWaiter`."""
        self._gate.answered(self._errand, response)

    def broken(self, reason: str) -> None:
        """See `LinkWaiter`."""
        self._gate.broken(self._errand, reason)
