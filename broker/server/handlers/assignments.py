"""Queues shared out by the broker, and whether a group pulls or pops them (400, 401).

Clients with `setClientRebalance(false)` ask, of all brokers of a topic one, which queues are theirs and how to consume
them. So the route is asked of a name server: a topic may have queues in other groups. Their mode is that which this
group knows; tools set it at all brokers of a cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from broker.server.requests.commits import Commits
from broker.server.requests.request import Handler, PendingRequest
from broker.server.requests.router import Router
from broker.service.assignment import AVERAGE, STRATEGIES, popped, shared
from broker.service.catalog import Creation
from broker.service.conclusions import RequestKind
from broker.service.pull import Members
from broker.service.refusal import Refusal
from broker.store.control import SetRequestMode
from broker.store.groups import SubscriptionGroupConfig
from broker.store.state import BrokerState
from broker.store.topics import PERM_READ
from dledger_mq.message.names import is_retry_topic
from dledger_mq.message.numbers import QueueId
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.errors import BodyError
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.json_body import read_object, write_json
from dledger_mq.remoting.message_queue import WireQueue
from dledger_mq.remoting.pop_bodies import decode_assignment, name_in
from dledger_mq.remoting.route import TopicRoute

FindRoute = Callable[[str, Callable[[TopicRoute | None], None]], None]
"""Finds the route of a topic and calls back with it; None: no name server has it, or none answers."""

FindGroup = Callable[[str], tuple[SubscriptionGroupConfig, Creation] | Refusal]
"""Finds a group, or what has to be created for it to be there."""

_MODES: Final = {"PULL": False, "POP": True}


class Assignments:
    """Shares out queues while this node leads."""

    def __init__(
        self,
        state: BrokerState,
        commits: Commits,
        router: Router,
        *,
        members: Members,
        broker_name: str,
        find_group: FindGroup,
        find_route: FindRoute | None,
    ) -> None:
        """Set up the answers.

        Args:
            state: the fold, with topics and modes.
            commits: modes are staged here.
            router: waits for their commit.
            members: the live members of a group.
            broker_name: of the group in routes.
            find_group: finds the group whose mode is set, which may come to be by that.
            find_route: asks a name server; None: there is none, and no other group.
        """
        self._state = state
        self._commits = commits
        self._router = router
        self._members = members
        self._broker_name = broker_name
        self._find_group = find_group
        self._find_route = find_route

    def handlers(self) -> tuple[Handler[RemotingCommand], ...]:
        """Return the handlers of its codes."""
        code = RequestCode
        return (
            Handler(code.QUERY_ASSIGNMENT, self.assign, RequestKind.READ, is_confirmed=True),
            Handler(
                code.SET_MESSAGE_REQUEST_MODE, self.set_mode, RequestKind.ADMIN, is_confirmed=True
            ),
        )

    def assign(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out QUERY_ASSIGNMENT.

        Raises:
            BodyError: the body is no such request.
        """
        group, topic, client_id, strategy = decode_assignment(command.body)
        strategy = strategy or AVERAGE
        if strategy not in STRATEGIES:
            text = f"unknown strategy {strategy!r}: {', '.join(sorted(STRATEGIES))}"
            request.answer(ResponseCode.SYSTEM_ERROR, text)
            return
        act = partial(self._assign, request, group, topic, client_id=client_id, strategy=strategy)
        if self._find_route is None:
            act(None)
        else:
            self._find_route(topic, partial(self._routed, request, act))

    def _routed(
        self,
        request: PendingRequest,
        act: Callable[[TopicRoute | None], None],
        route: TopicRoute | None,
    ) -> None:
        """Go on once the route is known: without it nobody knows whether others have queues of the topic."""
        if route is None:
            text = "no name server gives the topic's route: its queues cannot be shared out now"
            request.answer(ResponseCode.SERVICE_NOT_AVAILABLE, text)
        else:
            act(route)

    def _assign(
        self,
        request: PendingRequest,
        group: str,
        topic: str,
        route: TopicRoute | None,
        *,
        client_id: str,
        strategy: str,
    ) -> None:
        """Answer with a client's share; with none while the group or the topic is not known."""
        members = self._members(group)
        queues = self._queues(topic, route)
        if not members or not queues:
            request.answer(ResponseCode.SUCCESS, body=write_json({"messageQueueAssignments": None}))
            return
        mode = None if is_retry_topic(topic) else self._state.pops.mode(group, topic)
        is_pop = mode is not None and mode.is_pop
        if mode is not None and is_pop:
            share = popped(queues, members, client_id, strategy=strategy, mode=mode)
        else:
            share = shared(queues, members, client_id, strategy)
        rows = [
            {
                "attachments": None,
                "messageQueue": {
                    "brokerName": each.broker_name,
                    "queueId": each.queue_id,
                    "topic": each.topic,
                },
                "mode": "POP" if is_pop else "PULL",
            }
            for each in share
        ]
        request.answer(ResponseCode.SUCCESS, body=write_json({"messageQueueAssignments": rows}))

    def _queues(self, topic: str, route: TopicRoute | None) -> list[WireQueue]:
        """Return all queues of a topic that can be read."""
        if route is not None:
            counts = {
                each.broker_name: each.read_queue_nums
                for each in route.queues
                if each.perm & PERM_READ
            }
        else:
            config = self._state.topics.get(topic)
            is_readable = config is not None and config.is_readable
            count = config.read_queue_count if config is not None and is_readable else 0
            counts = {self._broker_name: count}
        return [
            WireQueue(name, QueueId(number), topic)
            for name, count in counts.items()
            for number in range(count)
        ]

    def set_mode(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out SET_MESSAGE_REQUEST_MODE.

        Raises:
            BodyError: the body is no such request.
        """
        body = read_object(command.body)
        group, topic = name_in(body, "consumerGroup"), name_in(body, "topic")
        mode, share = body.get("mode"), body.get("popShareQueueNum") or 0
        is_known = isinstance(mode, str) and mode in _MODES
        if not is_known or not isinstance(share, int) or isinstance(share, bool):
            raise BodyError(f"a mode {str(mode)[:80]!r}, shared by {str(share)[:80]!r}")
        found = self._find_group(group)
        if is_retry_topic(topic):
            text = f"retry topic is not allowed to set mode, {topic}: it is always pulled"
            request.answer(ResponseCode.NO_PERMISSION, text)
        elif topic not in self._state.topics:
            text = f"topic[{topic}] not exist"
            request.answer(ResponseCode.TOPIC_NOT_EXIST, text)
        elif isinstance(found, Refusal):
            request.answer(found.code, found.remark)
        elif self._commits.is_full:
            request.refuse_as_busy()
        else:
            # RocketMQ keeps the mode of a group that is not there yet; as with a heartbeat, it is from here on.
            self._commits.create(found[1])
            # RocketMQ counts a negative share as none.
            record = SetRequestMode(group, topic, _MODES[str(mode)], max(0, min(share, 2**31 - 1)))
            self._router.when_committed(
                request,
                self._commits.stage_control(record),
                lambda _staged, _place: request.answer(ResponseCode.SUCCESS),
            )
