"""Brings a request to the node that leads: here, over the link, or parked until there is one.

The one place that knows who leads. A request that needs an entry which the disk does not give is parked as well, until
that is back. One that needs what is not in memory is carried out again once that was read beside the loop, from its
beginning: so its answer is of one state, no older than the one in which it was confirmed.

A send whose connection has ended is dropped before anything is done: its client may have sent it again elsewhere. So
is one that was still in a socket while this node stood still.

Clients poll routes every 30 s, so after a failover they go on sending to the wrong node for a while; an
election takes about a second. So a node that does not lead passes requests on, and while nobody
serves, requests wait a little. What follows when one is refused, gets lost or is not confirmed stands in
service/conclusions.py.

A mistake of ours (an error that nobody expects) is kept to the request in whose work it came up, whether that had
waited or not: it is answered, and whoever waits with it goes on (broker/server/mistakes.py).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from broker.server.links.link import LeaderLink
from broker.server.links.private_codes import (
    NOT_CARRIED_OUT,
    PERHAPS_CARRIED_OUT,
    TRIED_FIELD,
    WAITED_FIELD,
    PrivateCode,
)
from broker.server.mistakes import Mistakes
from broker.server.requests.commits import Commits, OnCommit
from broker.server.requests.disk_waits import DiskWaits
from broker.server.requests.linear import LinearReads
from broker.server.requests.request import HOLD_MS, PendingRequest
from broker.server.requests.short_waits import ShortWaits
from broker.service.conclusions import AskNext, RequestKind, unanswered, unconfirmed
from broker.service.refusal import Refusal
from broker.service.wait_room import WaitRoom
from broker.store.not_in_memory import NotInMemoryError
from broker.store.staging import StagedEntry
from dledger import DLedgerError, EntryDamagedError, LogServer, Role
from dledger_mq.remoting.codes import DISK_FULL, ResponseCode
from dledger_mq.remoting.errors import BodyError, FieldError
from dledger_mq.remoting.frame import Frame, FrameDecoder, encode_frame
from dledger_mq.remoting.header import RemotingCommand, decode_command

_log = logging.getLogger(__name__)

WAIT_MARGIN_MS: Final = 100
"""A wait counts for less than it was: clients' clocks are read in milliseconds, and drift."""

ANSWER_MS: Final = 10_000
"""Wait of a passed-on request for the leader's answer; at its end the client has given up."""

DISK_WAITS_MAX: Final = 64
"""Reads beside the loop for one request: what is pushed out of memory at once is read on the loop in the end."""


class Router:
    """Carries requests out where the leader is, and keeps those that wait for one.

    Invariant: of the requests in `_waiting`, nothing was done that may not be done again.

    Attributes:
        passed_on_ms: when a client's request was passed on last, by the monotonic clock; None: never.
        disk_waits: the requests that wait for the disk.
        mistakes: what becomes of errors that nobody expects.
    """

    def __init__(
        self,
        log: LogServer,
        link: LeaderLink,
        linear: LinearReads,
        commits: Commits,
        *,
        waiting_max: int,
        now_ms: Callable[[], int],
        mistakes: Mistakes | None = None,
    ) -> None:
        """Set up the waiting; requests come by `route`.

        Args:
            log: who leads.
            link: to the leader, while that is another node.
            linear: confirms that this node still leads.
            commits: what was staged and is not committed.
            waiting_max: requests of each kind of wait; more are refused as busy.
            now_ms: a clock that never goes back.
            mistakes: what becomes of errors that nobody expects; None: they go up.
        """
        self.mistakes = mistakes or Mistakes()
        self._log = log
        self._link = link
        self._linear = linear
        self._commits = commits
        self._waiting_max = waiting_max
        self._now_ms = now_ms
        self._waiting: deque[PendingRequest] = deque()
        self._room = WaitRoom()  # for these
        self._confirming = ShortWaits("to have it confirmed who leads", waiting_max)
        self._behind_staged = ShortWaits("for what is on its way", waiting_max)
        self._delivered: list[str] = []
        self.passed_on_ms: int | None = None
        self.disk_waits = DiskWaits[PendingRequest](
            log.reader, self._not_read_in_time, most=waiting_max
        )
        link.watch(opened=self.unpark, settled=self.report_delivered)

    @property
    def is_serving(self) -> bool:
        """True while requests for the leader are carried out by this node."""
        return self._log.is_serving

    @property
    def waiting_count(self) -> int:
        """The count of requests that wait for a leader, or for the disk."""
        return len(self._waiting) + self.disk_waits.count

    # Carrying out.

    def route(self, request: PendingRequest) -> None:
        """Carry out a request where the leader is."""
        begun = self._commits.staged_end
        try:
            self._route(request)
        except Exception as error:
            if not self._keep(error, request, begun):
                raise

    def _keep(self, error: Exception, request: PendingRequest, begun: int) -> bool:
        """Keep a mistake to the request in whose act it came up, and drop what that has staged by halves.

        Args:
            error: that is being handled.
            request: is answered, unless it was.
            begun: what is staged from here on is of the act.

        Returns:
            False if it is not to be kept in, but to go up.
        """
        if not self.mistakes.answer(error, request):
            return False
        self._commits.drop_unfinished(begun)
        return True

    def _route(self, request: PendingRequest) -> None:
        """Carry a request out here, pass it on, or park it."""
        if self._log.is_serving:
            if request.handler.counts_offsets:
                self._when_offsets_counted(request)
            elif request.handler.is_confirmed:
                self.when_confirmed(
                    request, partial(request.handler.serve, request, request.command)
                )
            else:
                self.carry_out(request)
        elif request.is_abandoned:
            _drop(request)
        elif not self._pass_on(request):
            self.park(request)

    def _when_offsets_counted(self, request: PendingRequest) -> None:
        """Serve a request, confirmed, once the offsets that consumers told before are applied."""
        if self._commits.is_full:
            self.park(request)
            return
        self._commits.stage_gathered()
        self.when_staged_confirmed(
            request, partial(request.handler.serve, request, request.command)
        )

    def carry_out(self, request: PendingRequest) -> None:
        """Serve a request on this node; answer what its client got wrong, and let what cannot be read now wait."""
        self.attempt(request, partial(request.handler.serve, request, request.command))

    def attempt(self, request: PendingRequest, act: Callable[[], None]) -> None:
        """Run `act`, which answers, and again each time that something it lacks was read from the disk.

        What else keeps it from answering is dealt with here, too.
        """
        begun = self._commits.staged_end
        try:
            self._attempt(request, act)
        except Exception as error:
            if not self._keep(error, request, begun):
                raise

    def _attempt(self, request: PendingRequest, act: Callable[[], None]) -> None:
        try:
            act()
        except NotInMemoryError as error:
            request.disk_waits += 1
            self.disk_waits.wait_for(request, error, partial(self.attempt, request, act))
        except (FieldError, BodyError) as error:
            refuse_fault(request, error)
        except EntryDamagedError as error:
            self._park_for(request, error)

    def may_wait_for_disk(self, request: PendingRequest) -> bool:
        """Return whether a request may raise `NotInMemoryError` now, instead of reading the disk on the loop."""
        return request.disk_waits < DISK_WAITS_MAX and self.disk_waits.has_room_for(request)

    def _not_read_in_time(self, request: PendingRequest) -> None:
        """Refuse a request for which the disk was not read in time; nothing is denied."""
        text = "the disk has not given in time what this asks for; nothing is said of it, ask again"
        self._fail(request, ResponseCode.SERVICE_NOT_AVAILABLE, text)

    def when_confirmed(self, request: PendingRequest, act: Callable[[], None]) -> None:
        """Run `act`, which answers, once it is confirmed that this node leads; else park for the next leader.

        Nothing may have been done for the request: it is refused as busy where too much waits.
        """
        if self._may_wait(request, self._confirming):
            self._linear.read(
                partial(self._confirmed, request, act), partial(self._not_confirmed, request)
            )

    def _not_confirmed(self, request: PendingRequest, error: DLedgerError) -> None:
        self._confirming.leave(request)
        self._park_for(request, error)

    def _confirmed(self, request: PendingRequest, act: Callable[[], None]) -> None:
        """Run `act` unless nobody waits for it."""
        self._confirming.leave(request)
        if not request.is_abandoned:
            self.attempt(request, act)

    def when_committed(
        self,
        request: PendingRequest,
        place: int,
        act: Callable[[StagedEntry, int], None],
        *,
        ended: Callable[[DLedgerError | None], None] | None = None,
    ) -> None:
        """Run `act`, which answers, once the record that was staged at `place` is committed and applied.

        `ended` is called first in any case, with the error if there is one: for services that count what is in flight.
        """

        def answer(staged: StagedEntry, place: int) -> None:
            begun = self._commits.staged_end
            try:
                act(staged, place)
            except Exception as error:
                if not self._keep(error, request, begun):
                    raise

        if ended is None:
            waiter = OnCommit(answer, partial(self.unconfirmed, request))
        else:
            waiter = OnCommit(
                partial(_committed, ended, answer), partial(self._not_committed, ended, request)
            )
        self._commits.wait(place, waiter, request.kept_bytes)

    def _not_committed(
        self,
        ended: Callable[[DLedgerError | None], None],
        request: PendingRequest,
        error: DLedgerError,
    ) -> None:
        """Report the end to a service, then conclude what it means for the request."""
        ended(error)
        self.unconfirmed(request, error)

    def when_staged_committed(self, request: PendingRequest, act: Callable[[], None]) -> None:
        """Run `act` once all is applied that is staged or in flight now; there must be something.

        Nothing of that may be of this request: it is refused as busy where too much waits.
        """
        if self._may_wait(request, self._behind_staged):
            self._commits.wait_for_staged(
                OnCommit(
                    lambda _staged, _place: self._again(request, act),
                    partial(self._staged_failed, request),
                )
            )

    def when_staged_confirmed(self, request: PendingRequest, act: Callable[[], None]) -> None:
        """Run `act` once all is applied that is staged or in flight now, and it is then confirmed that this node leads.

        Nothing may have been done for the request, see `when_confirmed`.
        """
        confirm = partial(self.when_confirmed, request, act)
        if self._commits.is_idle:
            confirm()
        else:
            self.when_staged_committed(request, confirm)

    def _staged_failed(self, request: PendingRequest, error: DLedgerError) -> None:
        self._behind_staged.leave(request)
        self.unconfirmed(request, error)

    def _may_wait(self, request: PendingRequest, waits: ShortWaits) -> bool:
        """Let a request wait, or refuse it if too much does."""
        if waits.enter(request):
            return True
        remark = f"[OVERLOAD]system busy: {waits.describe()}"
        self._fail(request, ResponseCode.SYSTEM_BUSY, remark)
        return False

    def _again(self, request: PendingRequest, act: Callable[[], None]) -> None:
        """Run `act`; an entry that cannot be read now counts as one that is not confirmed."""
        self._behind_staged.leave(request)
        begun = self._commits.staged_end
        try:
            act()
        except EntryDamagedError as error:  # nothing was done
            self.unconfirmed(request, error)
        except Exception as error:
            if not self._keep(error, request, begun):
                raise

    # Waiting for a leader.

    def park(self, request: PendingRequest) -> None:
        """Keep a request until there is a leader; nothing of it was done yet, or it may be done again."""
        assert request.kind is RequestKind.QUESTION or not request.is_answered, (
            f"a request of code {request.handler.code} was answered, and is to be carried out again"
        )
        request.was_held = True
        if request.is_abandoned:
            _drop(request)
        elif request.kind is RequestKind.SEND and self._log.full_disks.leave_no_majority:
            # An election does not help.
            self._give_up(request)
        elif request.origin.is_forwarded and self._log.role is not Role.LEADER:
            # The other node holds it and will find the new leader by itself.
            self._pass_back(request)
        elif len(self._waiting) >= self._waiting_max:
            self._fail(
                request,
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD]system busy: {len(self._waiting)} requests wait for a leader",
            )
        elif not self._room.enter(request):
            self._fail(
                request,
                ResponseCode.SYSTEM_BUSY,
                f"[OVERLOAD]system busy: requests of {self._room.used_bytes} bytes wait for a leader",
            )
        else:
            self._waiting.append(request)

    def _park_for(self, request: PendingRequest, error: DLedgerError) -> None:
        """Park a request, and keep the reason for its client."""
        request.cause = str(error)
        self.park(request)

    def unpark(self) -> None:
        """Route the waiting requests again, if there is a leader to bring them to."""
        if not self._waiting or not (self._log.is_serving or self._link.is_open):
            return
        waiting, self._waiting = self._waiting, deque()
        for request in waiting:
            self._room.leave(request)
            if request.is_abandoned:
                _drop(request)
            else:
                self.route(request)

    def expire(self, now_ms: int) -> None:
        """Give up requests that waited long enough, and sends that wait in vain; `now_ms` is monotonic."""
        self.disk_waits.expire(now_ms)
        if not self._waiting:
            return
        has_no_room = self._log.full_disks.leave_no_majority
        waiting, self._waiting = self._waiting, deque()
        for request in waiting:
            if request.deadline_ms <= now_ms or (has_no_room and request.kind is RequestKind.SEND):
                self._room.leave(request)
                try:
                    self._give_up(request)
                except Exception as error:
                    if not self.mistakes.answer(error, request):
                        raise
            else:
                self._waiting.append(request)

    def waited_until_ms(self, request: PendingRequest, born_ms: int) -> int:
        """Return the time up to which its client surely had no answer, by the client's clock, which showed `born_ms`.

        What it sent up to then was a retry: on purpose nobody sends a message again without an answer.
        """
        if not request.was_held:
            return born_ms
        return born_ms + max(0, self.age_ms(request) - WAIT_MARGIN_MS)

    def age_ms(self, request: PendingRequest) -> int:
        """Return how long ago a request came: the time for which it has waited, at its client's own node and here."""
        return request.waited_ms + self._now_ms() - (request.deadline_ms - HOLD_MS)

    # What a failed try means.

    def unconfirmed(self, request: PendingRequest, error: DLedgerError) -> None:
        """Conclude what follows for a request: what was staged for it, or what it waited for, is not confirmed."""
        try:
            self._conclude(request, unconfirmed(request.kind, error), str(error))
        except Exception as mistake:
            if not self.mistakes.answer(mistake, request):
                raise

    def _conclude(self, request: PendingRequest, end: AskNext | Refusal, cause: str) -> None:
        """Refuse a request, or park it for the next leader."""
        if isinstance(end, Refusal):
            self._fail(request, end.code, end.remark)
            return
        request.may_be_done = request.may_be_done or end.may_be_done
        request.cause = cause or request.cause
        self.park(request)

    def _give_up(self, request: PendingRequest) -> None:
        """Refuse a request that found no leader in time, or return it to the node that passed it on."""
        if request.origin.is_forwarded:
            self._pass_back(request)
        else:
            obstacle = self._obstacle(request)
            is_said = not request.cause or obstacle == request.cause
            cause = "" if is_said else f" (last try: {request.cause})"
            end = "" if request.may_be_done else "; nothing was done"
            text = f"{obstacle}{end}{cause}"
            self._fail(request, ResponseCode.SERVICE_NOT_AVAILABLE, text)

    def _fail(self, request: PendingRequest, code: ResponseCode, remark: str) -> None:
        """Refuse a request, in the way that its client understands."""
        if request.origin.is_forwarded and request.kind is RequestKind.QUESTION:
            self._pass_back(request)  # the client's own node knows which answer that is
        else:
            request.give_up(code, remark)

    def _obstacle(self, request: PendingRequest) -> str:
        """Return why a request cannot be carried out: nobody leads, or this node does and lacks what it needs."""
        return request.cause if request.cause and self._log.is_serving else self.without_leader()

    def without_leader(self) -> str:
        """Return why nobody leads, for people; the remark's tag, if it has one, is for programs."""
        if self._log.lost_votes.problem:
            return f"{self._log.lost_votes.problem}; {self._role()}"
        disks = self._log.full_disks
        if disks.leave_no_majority:
            return f"{DISK_FULL}{disks.describe()}: without them there is no majority to store anything"
        return f"{self._role()}{'; ' + disks.describe() if disks.full else ''}"

    def _role(self) -> str:
        """Describe what this node knows of the leader."""
        view = f"this node, {self._log.config.raft.node_id}, is {self._log.role.value} in term {self._log.term}"
        leader_id = self._log.leader_id
        if leader_id is None:
            return f"no leader is known; {view}"
        if self._log.role is Role.LEADER:
            return f"the new leader does not serve yet; {view}"
        return f"the leader {leader_id} cannot be reached; {view}"

    # Passing on.

    def _pass_on(self, request: PendingRequest) -> bool:
        """Pass a request on to the leader, or refuse it for want of room; return False if there is no leader."""
        if request.origin.is_forwarded:
            return False
        self.passed_on_ms = self._now_ms()
        frame = _whole(request.frame)
        if not self._link.has_room(len(frame)):
            self._fail(
                request,
                ResponseCode.SYSTEM_BUSY,
                "[OVERLOAD]system busy: too much is on its way to the leader",
            )
            return True
        ext = {"address": request.origin.address}
        if request.may_be_done:
            ext[TRIED_FIELD] = "true"
        if request.was_held:
            ext[WAITED_FIELD] = str(self.age_ms(request))
        if request.is_oneway:
            return self._link.send(PrivateCode.FORWARD, ext=ext, body=frame)
        return self._link.ask(
            PrivateCode.FORWARD, _PassedOn(self, request), ext=ext, body=frame, timeout_ms=ANSWER_MS
        )

    def _pass_back(self, request: PendingRequest) -> None:
        """Return a forwarded request to the node that sent it, which looks for the leader itself."""
        assert request.origin.is_forwarded, "a client's own request has no other node to return to"
        if not request.is_oneway:
            code = PERHAPS_CARRIED_OUT if request.may_be_done else NOT_CARRIED_OUT
            request.origin.pass_back(code, self._obstacle(request))

    def answered(self, request: PendingRequest, response: RemotingCommand) -> None:
        """Take the leader's answer to a request that was passed on."""
        assert not request.is_oneway, "an answer to a request that wants none"
        if response.code == 0:
            request.pass_on_reply(response.body)
            msg_id = _msg_id(response.body) if request.kind is RequestKind.SEND else ""
            if msg_id and not request.origin.is_gone:
                self._delivered.append(msg_id)
        elif response.code in (NOT_CARRIED_OUT, PERHAPS_CARRIED_OUT):
            request.may_be_done = request.may_be_done or response.code == PERHAPS_CARRIED_OUT
            request.cause = response.remark or request.cause
            if request.deadline_ms > self._now_ms():
                self.park(request)
            else:
                self._give_up(request)
        else:
            self._fail(
                request,
                ResponseCode.SYSTEM_ERROR,
                f"the leader could not take the request: {response.remark}",
            )

    def broken(self, request: PendingRequest, reason: str) -> None:
        """Conclude what follows for a request that was passed on to a leader which does not answer."""
        self._conclude(request, unanswered(request.kind, reason), "")

    def send_to_leader(self, address: str, frame: bytes) -> None:
        """Pass a oneway request on for the client at that address, if there is a leader to take it now."""
        self._link.send(PrivateCode.FORWARD, ext={"address": address}, body=frame)

    def report_delivered(self) -> None:
        """Report to the leader, ahead of the clients, which answers to sends find them connected.

        For the leader a send that another node passed on is confirmed only then: its client may be gone, and retry.
        """
        if self._delivered:
            ext = {"msgId": ",".join(self._delivered)}
            self._delivered.clear()
            self._link.send(PrivateCode.DELIVERED, ext=ext, body=b"")


def _committed(
    ended: Callable[[DLedgerError | None], None],
    act: Callable[[StagedEntry, int], None],
    staged: StagedEntry,
    place: int,
) -> None:
    """Report the end to a service, then answer."""
    ended(None)
    act(staged, place)


def refuse_fault(request: PendingRequest, error: Exception) -> None:
    """Answer bad fields and bodies, the client's fault: code 1 with the reason; nothing was done."""
    request.answer(ResponseCode.SYSTEM_ERROR, str(error))


def _drop(request: PendingRequest) -> None:
    """Forget a request whose client is gone."""
    _log.info("a send from %s is dropped: its client is gone", request.origin.address)


def _msg_id(answer_frame: bytes) -> str:
    """Return the message ids in the answer to a send; empty for a refusal."""
    decoder = FrameDecoder()
    decoder.feed(answer_frame)
    (frame,) = decoder.frames()
    return decode_command(frame).ext.get("msgId", "")


def _whole(frame: Frame) -> bytes:
    """Return a frame as it came, with its length."""
    return encode_frame(frame.header, frame.body, frame.serialize_type)


class _PassedOn:
    """The waiter for the leader's answer to one request."""

    __slots__ = ("_request", "_router")

    def __init__(self, router: Router, request: PendingRequest) -> None:
        self._router = router
        self._request = request

    def answered(self, response: RemotingCommand) -> None:
        """See `LinkWaiter`."""
        router, request = self._router, self._request
        try:
            router.answered(request, response)
        except Exception as error:
            if not router.mistakes.answer(error, request):
                raise

    def broken(self, reason: str) -> None:
        """See `LinkWaiter`."""
        router, request = self._router, self._request
        try:
            router.broken(request, reason)
        except Exception as error:
            if not router.mistakes.answer(error, request):
                raise
