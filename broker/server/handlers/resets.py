"""Resets of a group's offsets: asked for by tools (222, and 15 in its old form), told to its clients (220), followed.

One record sets the offsets, whether or not anybody consumes. From then on a client of the group commits there only once
it follows (broker/store/resets.py): it has asked where the group stands (14), or pulls from there. One that pulls from
elsewhere at the leader is sent there (PULL_OFFSET_MOVED). So the notice to clients makes them faster, and no more.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from broker.server.handlers.committers import Committers
from broker.server.handlers.members import Members
from broker.server.links.link import LeaderLink
from broker.server.links.private_codes import PrivateCode
from broker.server.requests.commits import Commits, OnCommit
from broker.server.requests.origin import Origin
from broker.server.requests.request import Handler, PendingRequest
from broker.server.requests.router import Router
from broker.service.conclusions import RequestKind
from broker.service.offsets import QueuePlace
from broker.service.reset import ResetRequest, ResetSearch, notice_bodies
from broker.store.control import AdmitToReset, ResetOffsets
from broker.store.state import BrokerState
from dledger import LogServer
from dledger_mq.message.numbers import QueueId, QueueOffset
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.errors import FrameError
from dledger_mq.remoting.header import RemotingCommand, encode_command, make_request
from dledger_mq.remoting.heartbeat import MessageModel
from dledger_mq.remoting.json_body import write_json
from dledger_mq.remoting.message_queue import WireQueue
from dledger_mq.remoting.requests import PullFields

QUEUES_MAX: Final = 4096
"""Queues of one reset by time."""

QUEUES_PER_STEP: Final = 64
"""Queues whose offsets are looked for at once, some milliseconds of the loop; the next ones at the next tick."""

SEARCHES_MAX: Final = 16
"""Resets that look for their offsets at a time."""

LOOKS_MAX: Final = 1024
"""Looks of tools that are remembered; the oldest is forgotten first."""

CPP: Final = "CPP"
"""The language of clients that read offsets as a list."""

_decode_notice: Final = msgspec.msgpack.Decoder(list[tuple[QueueId, QueueOffset]]).decode


class ResetRequests:
    """Carries out resets, and sees to it that clients follow them."""

    def __init__(
        self,
        log: LogServer,
        state: BrokerState,
        commits: Commits,
        router: Router,
        *,
        link: LeaderLink,
        members: Members,
        committers: Committers,
        broker_name: str,
    ) -> None:
        """Set up the resets.

        Args:
            log: who leads, and the entries in which times are looked up.
            state: the fold, with offsets and queues.
            commits: resets and admissions are staged here.
            router: waits for their commit, and for the disk.
            link: brings notices of the leader, and the pulls of clients that follow to it.
            members: the live clients of all nodes.
            committers: knows which client asks.
            broker_name: of the group in routes.
        """
        self._log = log
        self._state = state
        self._commits = commits
        self._router = router
        self._members = members
        self._committers = committers
        self._broker_name = broker_name
        self._going_on: list[Callable[[], None]] = []
        self._looks: dict[tuple[str, str], None] = {}
        self._admitting: set[tuple[QueuePlace, str, int]] = set()
        link.register(PrivateCode.RESET_NOTICE, self._noticed)

    def handlers(self) -> tuple[Handler[RemotingCommand], ...]:
        """Return the handlers of its codes."""
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        return (Handler(code, self.reset, RequestKind.ADMIN, is_confirmed=True),)

    # What tools ask for.

    def reset(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out INVOKE_BROKER_TO_RESET_OFFSET: a group goes to a time, or one queue of it to an offset (5.x).

        Raises:
            FieldError: a field is missing or impossible.
        """
        self._begin(request, ResetRequest.read(command.ext))

    def _begin(self, request: PendingRequest, wanted: ResetRequest) -> None:
        """Look for the offsets of a reset, from the first one on; refuse it where there is nothing to reset."""
        topic = self._state.topics.get(wanted.topic)
        if topic is None or self._commits.deletes(wanted.topic):
            request.answer(ResponseCode.TOPIC_NOT_EXIST, f"topic[{wanted.topic}] not exist")
            return
        is_known = self._state.groups.get(wanted.group) is not None
        if not (is_known or self._state.offsets.of(wanted.group, wanted.topic)):
            text = f"the consumer group[{wanted.group}] not exist"
            request.answer(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, text)
            return
        queue_ids = wanted.queues(topic.read_queue_count)
        if not queue_ids or len(queue_ids) > QUEUES_MAX:
            text = f"the topic has {topic.read_queue_count} queues; one of them, or up to {QUEUES_MAX}, can be reset"
            request.answer(ResponseCode.SYSTEM_ERROR, text)
        elif len(self._going_on) >= SEARCHES_MAX:
            request.refuse_as_busy()
        else:
            search = ResetSearch(self._state, self._log.reader, wanted, queue_ids)
            self._go_on(request, search)

    def tick(self) -> None:
        """Go on with the resets that look for their offsets."""
        going_on, self._going_on = self._going_on, []
        for go_on in going_on:
            go_on()

    def _go_on(self, request: PendingRequest, search: ResetSearch) -> None:
        if not request.is_closed:
            self._router.when_confirmed(request, partial(self._look, request, search))

    def _look(self, request: PendingRequest, search: ResetSearch) -> None:
        """Look for the offsets of some queues; once all are known, write the reset.

        Raises:
            NotInMemoryError: the search goes on once that was read.
        """
        if search.is_outdated or self._commits.deletes(search.wanted.topic):
            # Offsets of the topic of before would let the group pass over messages of the one that is made anew.
            self._begin(request, search.wanted)
            return
        found = len(search.offsets)
        search.step(QUEUES_PER_STEP, lambda: self._router.may_wait_for_disk(request))
        if len(search.offsets) > found:
            request.disk_waits = 0  # each queue may wait for the disk as often as a request
        if search.problem is not None:
            request.answer(ResponseCode.SYSTEM_ERROR, search.problem)
        elif not search.is_done:
            self._going_on.append(partial(self._go_on, request, search))
        elif self._commits.is_full:
            request.refuse_as_busy()
        else:
            wanted = search.wanted
            reset = ResetOffsets(wanted.group, wanted.topic, list(search.offsets.items()))
            place = self._commits.stage_control(reset)
            self._router.when_committed(
                request, place, lambda _staged, _place: self._done(request, reset, wanted.time_ms)
            )

    def _done(self, request: PendingRequest, reset: ResetOffsets, time_ms: int) -> None:
        """Notify the clients, and answer the tool."""
        self._notify(reset, time_ms)
        table = {
            WireQueue(self._broker_name, queue, reset.topic): at for queue, at in reset.offsets
        }
        request.answer(ResponseCode.SUCCESS, body=write_json({"offsetTable": table}))

    def set_offset(self, request: PendingRequest, place: QueuePlace, offset: QueueOffset) -> None:
        """Carry out UPDATE_CONSUMER_OFFSET as a reset of one queue."""
        group, topic, queue_id = place
        staged_at = self._commits.stage_control(ResetOffsets(group, topic, [(queue_id, offset)]))
        self._router.when_committed(
            request, staged_at, lambda _staged, _place: request.answer(ResponseCode.SUCCESS)
        )

    def looked(self, group: str, address: str) -> None:
        """Note that somebody at an address has asked how far a group has consumed, as tools do before a reset."""
        self._looks.pop((group, address), None)
        self._looks[group, address] = None
        if len(self._looks) > LOOKS_MAX:
            del self._looks[next(iter(self._looks))]

    def is_by_tool(self, group: str, address: str) -> bool:
        """Return whether whoever commits there is a tool: it has looked, and the group has no live members."""
        return (group, address) in self._looks and not self._members.members(group)

    # Notices to clients.

    def _notify(self, reset: ResetOffsets, time_ms: int) -> None:
        """Notify the clients of a group, on all nodes."""
        self._notify_here(reset.group, reset.topic, str(time_ms), reset.offsets)
        ext = {"group": reset.group, "topic": reset.topic, "timestamp": str(time_ms)}
        body = msgspec.msgpack.encode(reset.offsets)
        self._members.exchange.notify_nodes(PrivateCode.RESET_NOTICE, ext, body)

    def _noticed(self, command: RemotingCommand) -> None:
        """Notify the clients of this node.

        Raises:
            FrameError: the leader's notice cannot be read.
        """
        ext = command.ext
        try:
            offsets = _decode_notice(command.body)
        except (msgspec.MsgspecError, ValueError) as error:
            raise FrameError(f"a notice of a reset: {error}") from error
        group, topic, time = (ext.get(name, "") for name in ("group", "topic", "timestamp"))
        self._notify_here(group, topic, time, offsets)

    def _notify_here(
        self, group: str, topic: str, time: str, offsets: list[tuple[QueueId, QueueOffset]]
    ) -> None:
        clients = self._members.consumer_origins(group)
        if not clients:
            return
        ext = {"topic": topic, "group": group, "timestamp": time, "isForce": "true"}
        table, rows = notice_bodies(self._broker_name, topic, offsets)
        code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
        for client, origin in clients:
            body = rows if client.language == CPP else table
            origin.send(encode_command(make_request(code, 0, ext, body, is_oneway=True)))

    # Clients that follow.

    def admit_first(
        self,
        request: PendingRequest,
        place: QueuePlace,
        given_id: str,
        act: Callable[[], None],
    ) -> None:
        """Run `act`, which says where the group stands, once the client that asks may commit there again."""
        command = self._admission(place, request.origin.address, given_id)
        if command is None or self._commits.is_full:
            act()
            return
        staged_at = self._commits.stage_control(command)
        again = partial(self.admit_first, request, place, given_id, act)
        self._router.when_committed(request, staged_at, lambda _staged, _place: again())

    def pulled(self, origin: Origin, pull: PullFields) -> QueueOffset | None:
        """Take note of a pull that may read; return the offset to which its client has to go instead, None: none."""
        resets = self._state.offsets.resets
        if not resets:
            return None
        place = (pull.consumer_group, pull.topic, pull.queue_id)
        command = self._admission(place, origin.address, "")
        if command is None:
            return None
        stored = self._state.offsets.get(*place)
        assert stored is not None, f"{place} is reset and has no offset"
        low, high = self._state.queues.min_max(pull.topic, pull.queue_id)
        target = max(low, min(stored, high))
        if pull.queue_offset == target:
            self._follows(place, origin, command)
            return None
        is_known = command.client_id != "" and self._is_clustering(place[0], command.client_id)
        return target if is_known and self._log.is_serving else None

    def _admission(self, place: QueuePlace, address: str, given_id: str) -> AdmitToReset | None:
        """Return what admits a client to the reset of a queue; None: there is none, or it is admitted."""
        reset = self._state.offsets.resets.get(*place)
        if reset is None:
            return None
        client_id = self._committers.who(*place, address=address, given_id=given_id)
        if client_id in reset.admitted or (place, client_id, reset.since) in self._admitting:
            return None
        return AdmitToReset(*place, reset.since, client_id)

    def _follows(self, place: QueuePlace, origin: Origin, command: AdmitToReset) -> None:
        """Admit a client that pulls from where the group stands, here or at the leader."""
        if not self._log.is_serving:
            self._router.send_to_leader(origin.address, _question(place))
        elif not self._commits.is_full:
            admitting = (place, command.client_id, command.since)
            self._admitting.add(admitting)
            self._commits.wait(
                self._commits.stage_control(command),
                OnCommit(
                    lambda _staged, _place: self._admitting.discard(admitting),
                    lambda _error: self._admitting.discard(admitting),
                ),
            )

    def _is_clustering(self, group: str, client_id: str) -> bool:
        client = self._members.members(group).get(client_id)
        return client is not None and client.message_model is MessageModel.CLUSTERING


def _question(place: QueuePlace) -> bytes:
    """Build the question (14) by which the leader hears that a client follows a reset."""
    group, topic, queue_id = place
    ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)}
    return encode_command(make_request(RequestCode.QUERY_CONSUMER_OFFSET, 0, ext, is_oneway=True))
