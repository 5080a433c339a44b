"""Which code means what, and on which node it is carried out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from broker.server.admin import Admin
from broker.server.gate import HOLD_MS, QUESTION_CODES, Errand, Gate
from broker.server.linear import LinearReads
from broker.server.locks import Locks
from broker.server.members import Members
from broker.server.offsets import Offsets
from broker.server.origin import ClientOrigin, ForwardedOrigin, Origin, SilentOrigin, answer
from broker.server.private_codes import (
    OUTDATED_HELLO,
    TRIED_FIELD,
    WAITED_FIELD,
    PrivateCode,
    refuse_hello,
)
from broker.server.pulls import Pulls
from broker.server.questions import Questions
from broker.server.sends import Sends
from broker.server.timers import Timers
from broker.server.transaction_resumes import TransactionResumes
from broker.server.transactions import TransactionEnds
from broker.service.transactions import is_undecided
from dledger import EntryDamagedError
from dledger_mq.remoting import fields
from dledger_mq.remoting.codes import RequestCode as Code
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.errors import BodyError, FieldError
from dledger_mq.remoting.frame import Frame, FrameDecoder
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.registrant import ASK_REGISTRANT
from dledger_mq.remoting.requests import PullRequest, SendRequest, decode_request

_log = logging.getLogger(__name__)

_PRIVATE = frozenset(PrivateCode)
OnErrand = Callable[[Errand, RemotingCommand], None]
OnOrigin = Callable[[Origin, RemotingCommand], None]


@dataclass(frozen=True, slots=True)
class _ByLeader:
    """Carried out by the leader.

    Attributes:
        is_repeatable: twice is the same as once.
        tells_state: the answer may come from what is applied here, not from the outcome of an entry: it is given
            only once this node is confirmed as the leader. What confirms its answers itself needs none.
    """

    handle: OnErrand
    is_repeatable: bool = True
    tells_state: bool = False


class Dispatch:
    """Takes every frame of every connection."""

    def __init__(
        self,
        gate: Gate,
        linear: LinearReads,
        sends: Sends,
        pulls: Pulls,
        offsets: Offsets,
        members: Members,
        locks: Locks,
        ends: TransactionEnds,
        resumes: TransactionResumes,
        timers: Timers,
        admin: Admin,
        *,
        group: str,
        node_ids: frozenset[str],
        secret: str | None,
        link_nonce: str,
        frame_bytes_max: int,
        now_ms: Callable[[], int],
    ) -> None:
        self._gate = gate
        self._linear = linear
        self._questions = Questions()
        self._sends = sends
        self._pulls = pulls
        self._members = members
        self._group = group
        self._node_ids = node_ids
        self._secret = secret
        self._link_nonce = link_nonce
        self._frame_bytes_max = frame_bytes_max
        self._now_ms = now_ms
        self._trusted: set[int] = set()
        self._by_leader: dict[int, _ByLeader] = {
            Code.CONSUMER_SEND_MSG_BACK: _ByLeader(
                sends.send_back, is_repeatable=False, tells_state=True
            ),
            Code.QUERY_CONSUMER_OFFSET: _ByLeader(offsets.query),
            Code.UPDATE_CONSUMER_OFFSET: _ByLeader(offsets.update),
            Code.SEARCH_OFFSET_BY_TIMESTAMP: _ByLeader(offsets.by_time),
            Code.GET_MAX_OFFSET: _ByLeader(offsets.max_offset),
            Code.GET_MIN_OFFSET: _ByLeader(offsets.min_offset),
            Code.GET_EARLIEST_MSG_STORETIME: _ByLeader(offsets.earliest_time),
            Code.GET_CONSUMER_LIST_BY_GROUP: _ByLeader(members.consumer_list, tells_state=True),
            Code.END_TRANSACTION: _ByLeader(ends.end, tells_state=True),
            Code.RESUME_CHECK_HALF_MESSAGE: _ByLeader(resumes.resume, tells_state=True),
            Code.RECALL_MESSAGE: _ByLeader(timers.recall, tells_state=True),
            Code.LOCK_BATCH_MQ: _ByLeader(locks.lock),
            Code.UNLOCK_BATCH_MQ: _ByLeader(locks.unlock),
            Code.UPDATE_AND_CREATE_TOPIC: _ByLeader(admin.put_topic),
            Code.DELETE_TOPIC_IN_BROKER: _ByLeader(admin.delete_topic, tells_state=True),
            Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _ByLeader(admin.put_group),
            Code.DELETE_SUBSCRIPTIONGROUP: _ByLeader(admin.delete_group, tells_state=True),
            Code.GET_ALL_CONSUMER_OFFSET: _ByLeader(admin.all_offsets, tells_state=True),
            Code.GET_TOPIC_STATS_INFO: _ByLeader(admin.topic_stats, tells_state=True),
            Code.GET_CONSUME_STATS: _ByLeader(admin.consume_stats, tells_state=True),
        }
        self._here: dict[int, OnErrand] = {
            Code.VIEW_MESSAGE_BY_ID: admin.view,
            Code.QUERY_MESSAGE: admin.query,
        }
        self._plain: dict[int, OnOrigin] = {
            Code.UNREGISTER_CLIENT: members.unregister,
            Code.CHECK_CLIENT_CONFIG: members.check_config,
            Code.GET_ALL_TOPIC_CONFIG: admin.all_topics,
            Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: admin.all_groups,
            Code.GET_ALL_DELAY_OFFSET: admin.delay_offsets,
            Code.GET_BROKER_CONFIG: admin.config,
            Code.GET_BROKER_RUNTIME_INFO: admin.runtime_info,
            Code.GET_CONSUMER_CONNECTION_LIST: admin.consumer_connections,
            Code.GET_PRODUCER_CONNECTION_LIST: admin.producer_connections,
            Code.QUERY_TOPIC_CONSUME_BY_WHO: admin.groups_of_topic,
            ASK_REGISTRANT: admin.confirm_registration,
        }

    def handle(self, origin: Origin, frame: Frame) -> None:
        """One frame of a client, or of a client behind another node.

        Raises:
            FrameError: the header cannot be read; the connection has to be closed.
        """
        try:
            request = decode_request(frame)
        except FieldError as error:
            answer(origin, getattr(error, "opaque", 0), ResponseCode.SYSTEM_ERROR, str(error))
            return
        if isinstance(request, SendRequest):
            self._gate.bring(self._errand(origin, frame, request, is_repeatable=False), request)
        elif isinstance(request, PullRequest):
            self._pulls.pull(origin, request)
        elif not request.is_response:
            self._command(origin, frame, request)

    def serve(self, errand: Errand, request: SendRequest | RemotingCommand | None) -> None:
        """Carry out on this node, which leads. The request is decoded again if it had to wait."""
        decoded = request if request is not None else decode_request(errand.frame)
        if isinstance(decoded, SendRequest):
            self._patiently(errand, lambda: self._sends.send(errand, decoded))
        elif isinstance(decoded, RemotingCommand):
            by_leader = self._by_leader.get(decoded.code)
            handle = by_leader.handle if by_leader is not None else self._here[decoded.code]

            def act() -> None:
                self._guarded(
                    errand.origin,
                    decoded,
                    lambda: self._patiently(errand, lambda: handle(errand, decoded)),
                )

            if by_leader is not None and by_leader.tells_state:
                self._linear.read(errand, act)
            else:
                act()

    def _patiently(self, errand: Errand, act: Callable[[], None]) -> None:
        """Do it, or hold it until the damaged entry that it has to read is back: nothing was done yet."""
        try:
            act()
        except EntryDamagedError as error:
            errand.cause = str(error)
            self._gate.hold(errand)

    def expire(self, now_ms: int) -> None:
        """Answer the questions whose clients would lose their patience, whatever they wait for."""
        why = f"{self._gate.without_leader()}; nobody can say within {HOLD_MS} ms"
        self._questions.expire(now_ms, why)

    def connection_closed(self, number: int) -> None:
        """A connection ended; its trust with it."""
        self._trusted.discard(number)

    def _command(self, client: Origin, frame: Frame, request: RemotingCommand) -> None:
        code = request.code
        origin = SilentOrigin(client) if request.is_oneway else client
        by_leader = self._by_leader.get(code)
        if by_leader is not None:
            if code == Code.END_TRANSACTION and is_undecided(request.ext):
                return
            errand = self._errand(origin, frame, request, is_repeatable=by_leader.is_repeatable)
            if code in QUESTION_CODES and not (origin.is_forwarded or request.is_oneway):
                question = self._questions.ask(origin, request, errand.deadline_ms)
                errand.origin, errand.give_up = question, question.give_up
            self._gate.bring(errand, request)
            return
        here = self._here.get(code)
        if here is not None:
            errand = self._errand(origin, frame, request, is_repeatable=True)
            self._guarded(
                origin, request, lambda: self._patiently(errand, lambda: here(errand, request))
            )
            return
        if code == Code.HEART_BEAT and isinstance(client, ClientOrigin):
            self._guarded(origin, request, lambda: self._members.heartbeat(client, origin, request))
            return
        plain = self._plain.get(code)
        if plain is not None:
            self._guarded(origin, request, lambda: plain(origin, request))
        elif isinstance(client, ClientOrigin) and code in _PRIVATE:
            self._guarded(client, request, lambda: self._private(client, request))
        else:
            _unknown(origin, request)

    def _private(self, origin: ClientOrigin, request: RemotingCommand) -> None:
        """Another node of the group."""
        if request.code == PrivateCode.HELLO:
            self._hello(origin, request)
        elif origin.number not in self._trusted:
            text = "a request between nodes on a connection that did not say hello"
            answer(origin, request.opaque, ResponseCode.NO_PERMISSION, text)
        elif request.code == PrivateCode.FORWARD:
            address = fields.text(request.ext, "address")
            was_tried = fields.boolean(request.ext, TRIED_FIELD, default=False)
            waited_ms = fields.int64(request.ext, WAITED_FIELD, None)
            forwarded = ForwardedOrigin(
                origin, request.opaque, address=address, was_tried=was_tried, waited_ms=waited_ms
            )
            decoder = FrameDecoder(self._frame_bytes_max)
            decoder.feed(request.body)
            for frame in decoder.frames():
                self.handle(forwarded, frame)
        elif request.code == PrivateCode.DELIVERED:
            self._sends.delivered(fields.text(request.ext, "msgId"))
        elif request.code == PrivateCode.SYNC_CLIENTS:
            self._members.exchange.sync_from(origin, request)
        else:
            _unknown(origin, request)

    def _hello(self, origin: ClientOrigin, request: RemotingCommand) -> None:
        refusal = refuse_hello(
            request.ext,
            secret=self._secret,
            group=self._group,
            node_ids=self._node_ids,
            nonce=self._link_nonce,
        )
        if refusal is None:
            self._trusted.add(origin.number)
            answer(origin, request.opaque, ResponseCode.SUCCESS)
            return
        # Whoever knows the secret of this node's last process is no stranger.
        level = logging.INFO if refusal.code == OUTDATED_HELLO else logging.WARNING
        _log.log(level, "refused a node's link from %s: %s", origin.address, refusal.problem)
        answer(origin, request.opaque, refusal.code, refusal.problem)

    def _errand(
        self,
        origin: Origin,
        frame: Frame,
        request: SendRequest | RemotingCommand,
        *,
        is_repeatable: bool,
    ) -> Errand:
        errand = Errand(
            origin,
            frame,
            request.code,
            request.opaque,
            request.is_oneway,
            self._now_ms() + HOLD_MS,
            is_repeatable,
        )
        if isinstance(origin, ForwardedOrigin):
            errand.may_be_done = origin.was_tried
            if origin.waited_ms is not None:
                errand.was_held, errand.waited_ms = True, origin.waited_ms
        return errand

    @staticmethod
    def _guarded(origin: Origin, request: RemotingCommand, act: Callable[[], None]) -> None:
        """Bad fields and bodies are the client's fault: code 1 with the reason, nothing was done."""
        try:
            act()
        except (FieldError, BodyError) as error:
            answer(origin, request.opaque, ResponseCode.SYSTEM_ERROR, str(error))
        except EntryDamagedError as error:
            answer(origin, request.opaque, ResponseCode.SERVICE_NOT_AVAILABLE, str(error))


def _unknown(origin: Origin, request: RemotingCommand) -> None:
    answer(
        origin,
        request.opaque,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        f" request type {request.code} not supported",
    )
