"""Changes of topics and groups that tools want, through the log (17, 18, 200, 207, 215, 225).

Changes of one topic come one after the other: what a later one makes of it depends on what there is then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from broker.server.requests.commits import Commits
from broker.server.requests.request import Handler, PendingRequest
from broker.server.requests.router import Router
from broker.service import tables
from broker.service.conclusions import RequestKind
from broker.service.topic_attributes import TopicAttributeError, alter
from broker.store.control import Command, DeleteGroup, DeleteTopic, PutGroup, PutTopic
from broker.store.groups import SubscriptionGroupConfig
from broker.store.staging import StagedEntry
from broker.store.state import BrokerState
from broker.store.topics import QUEUE_COUNT_MAX, TopicConfig
from dledger import DLedgerError
from dledger_mq.message import names
from dledger_mq.remoting import fields
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.errors import FieldError
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.topic_config import TOPIC_FILTER_MULTI_TAG, TOPIC_FILTER_SINGLE_TAG

LIST_MAX: Final = 1024
"""Topics or groups of one request: some 20 ms of the loop."""

_FILTER_TYPES: Final = (TOPIC_FILTER_SINGLE_TAG, TOPIC_FILTER_MULTI_TAG)

_CHANGES_WAITING_MAX: Final = 256
"""Changes of one topic that wait for another one; more are refused as busy."""


class TableChanges:
    """Carries out changes of the tables of topics and groups."""

    def __init__(
        self,
        state: BrokerState,
        commits: Commits,
        router: Router,
        *,
        when_routed: Callable[[Callable[[], None]], None],
    ) -> None:
        """Set up the changes.

        Args:
            state: the fold that is asked.
            commits: changes are staged here.
            router: waits for their commit.
            when_routed: calls back once the name servers know the topics of now.
        """
        self._state = state
        self._commits = commits
        self._router = router
        self._when_routed = when_routed
        self._topic_changes: dict[str, list[PendingRequest]] = {}
        """By the topic that is being changed: what is to be changed next, in the order in which it came."""

    def handlers(self) -> tuple[Handler[RemotingCommand], ...]:
        """Return the handlers of its codes."""
        code, admin = RequestCode, RequestKind.ADMIN
        group_code = code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        groups_code = code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
        return (
            Handler(code.UPDATE_AND_CREATE_TOPIC, self.put_topic, admin),
            Handler(code.UPDATE_AND_CREATE_TOPIC_LIST, self.put_topics, admin),
            Handler(code.DELETE_TOPIC_IN_BROKER, self.delete_topic, admin, is_confirmed=True),
            Handler(group_code, self.put_group, admin),
            Handler(groups_code, self.put_groups, admin),
            Handler(code.DELETE_SUBSCRIPTIONGROUP, self.delete_group, admin, is_confirmed=True),
        )

    def put_topic(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out UPDATE_AND_CREATE_TOPIC.

        Raises:
            FieldError: a field is missing or impossible.
        """
        ext = command.ext
        if self._waits_for_topic(request, fields.text(ext, "topic")):
            return
        config = TopicConfig(
            fields.text(ext, "topic"),
            fields.int32(ext, "readQueueNums"),
            fields.int32(ext, "writeQueueNums"),
            fields.int32(ext, "perm"),
            fields.boolean(ext, "order", default=False),
            ext.get("topicFilterType") or "SINGLE_TAG",
            fields.int32(ext, "topicSysFlag", 0),
            self._attributes(fields.text(ext, "topic"), ext.get("attributes") or ""),
        )
        self._change(request, _problem_of(config), PutTopic(config), topic=config.name)

    def put_topics(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out UPDATE_AND_CREATE_TOPIC_LIST: all of them, or none if one cannot be.

        Raises:
            BodyError: the body is no list of topics.
            FieldError: the attributes of one make no sense.
        """
        wanted = {each.topic_name: each for each in tables.read_topics(command.body)}
        if any(self._waits_for_topic(request, name) for name in wanted):
            return
        configs = [
            TopicConfig(
                name,
                each.read_queue_nums,
                each.write_queue_nums,
                each.perm,
                each.order,
                each.topic_filter_type,
                each.topic_sys_flag,
                self._attributes(name, tables.attributes_text(each)),
            )
            for name, each in wanted.items()
        ]
        problem = next(filter(None, map(_problem_of, configs)), None)
        self._change_all(
            request,
            problem,
            [PutTopic(config) for config in configs],
            lambda: [each.name for each in configs if self._state.topics.get(each.name) != each],
            topics=tuple(wanted),
        )

    def _attributes(self, name: str, change: str) -> dict[str, str]:
        """Return a topic's attributes after a change, which may be none.

        Raises:
            FieldError: the change makes no sense.
        """
        topic = self._state.topics.get(name)
        current = {} if topic is None else topic.attributes
        try:
            return alter(change, current, is_new=topic is None)
        except TopicAttributeError as error:
            raise FieldError("attributes", f"cannot be: {error}") from error

    def delete_topic(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out DELETE_TOPIC_IN_BROKER; a topic that does not exist is a success.

        Raises:
            FieldError: the topic is missing.
        """
        topic = fields.text(command.ext, "topic")
        if self._waits_for_topic(request, topic):
            return
        problem = names.topic_problem(topic) or names.system_topic_problem(topic)
        if problem is None and topic not in self._state.topics:
            request.answer(ResponseCode.SUCCESS)
            return
        self._change(request, problem, DeleteTopic(topic), topic=topic)

    def _waits_for_topic(self, request: PendingRequest, topic: str) -> bool:
        """Let a request wait while the topic is being changed: what it makes of it depends on what there is then."""
        waiting = self._topic_changes.get(topic)
        if waiting is None:
            return False
        if len(waiting) >= _CHANGES_WAITING_MAX:
            request.refuse_as_busy()
        else:
            waiting.append(request)
        return True

    def _topic_changed(self, topic: str, error: DLedgerError | None) -> None:
        """Go on with what has waited, whatever became of the change."""
        for request in self._topic_changes.pop(topic):
            self._router.route(request)

    def put_group(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out UPDATE_AND_CREATE_SUBSCRIPTIONGROUP.

        Raises:
            BodyError: the body is no group configuration.
        """
        config = tables.read_group(command.body)
        self._change(request, _problem_of_group(config), PutGroup(config))

    def put_groups(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: all of them, or none if one cannot be.

        Raises:
            BodyError: the body is no list of group configurations.
        """
        configs = list({each.name: each for each in tables.read_groups(command.body)}.values())
        problem = next(filter(None, map(_problem_of_group, configs)), None)
        self._change_all(
            request,
            problem,
            [PutGroup(config) for config in configs],
            lambda: [each.name for each in configs if self._state.groups.get(each.name) != each],
        )

    def delete_group(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out DELETE_SUBSCRIPTIONGROUP; a group that does not exist is a success.

        Raises:
            FieldError: the group is missing.
        """
        ext = command.ext
        name = fields.text(ext, "groupName")
        cleans = any(
            fields.boolean(ext, key, default=False) for key in ("cleanOffset", "removeOffset")
        )
        problem = "a system group" if names.is_system_group(name) else None
        if problem is None and name not in self._state.groups:
            request.answer(ResponseCode.SUCCESS)
            return
        self._change(request, problem, DeleteGroup(name, clean_offsets=cleans))

    def _change(
        self,
        request: PendingRequest,
        problem: str | None,
        change: Command,
        *,
        topic: str | None = None,
    ) -> None:
        """Write a change, or answer the problem; other changes of the same topic wait for it."""
        if problem is not None:
            request.answer(ResponseCode.SYSTEM_ERROR, problem)
            return
        if self._commits.is_full:
            request.refuse_as_busy()
            return
        place = self._commits.stage_control(change)
        ended = None
        if topic is not None:
            assert topic not in self._topic_changes, f"two changes of {topic} at once"
            self._topic_changes[topic] = []
            ended = partial(self._topic_changed, topic)
        changed = partial(self._changed, request)
        self._router.when_committed(request, place, changed, ended=ended)

    def _change_all(
        self,
        request: PendingRequest,
        problem: str | None,
        changes: Sequence[Command],
        refused: Callable[[], list[str]],
        *,
        topics: tuple[str, ...] = (),
    ) -> None:
        """Write changes that were asked for together, or answer the problem.

        Args:
            request: is answered when the last of them is committed, and all before it with it.
            problem: None: all of them can be.
            changes: to be written.
            refused: returns the names that are not as wanted once all were carried out.
            topics: other changes of these wait for the last one.
        """
        if problem is not None:
            request.answer(ResponseCode.SYSTEM_ERROR, problem)
            return
        if not changes:
            request.answer(ResponseCode.SUCCESS)
            return
        if len(changes) > LIST_MAX:
            text = f"a list of {len(changes)}: at most {LIST_MAX} may be changed together"
            request.answer(ResponseCode.SYSTEM_ERROR, text)
            return
        if self._commits.is_full:
            request.refuse_as_busy()
            return
        places = [self._commits.stage_control(change) for change in changes]
        for topic in topics:
            assert topic not in self._topic_changes, f"two changes of {topic} at once"
            self._topic_changes[topic] = []
        self._router.when_committed(
            request,
            places[-1],
            partial(self._all_changed, request, refused=refused, topics=topics),
            ended=partial(self._topics_changed, topics),
        )

    def _all_changed(
        self,
        request: PendingRequest,
        _staged: StagedEntry,
        _place: int,
        *,
        refused: Callable[[], list[str]],
        topics: tuple[str, ...],
    ) -> None:
        """Answer changes that are committed together; the fold may have refused some."""
        left = refused()
        if left:
            text = f"refused, or changed by somebody else since: {', '.join(left)}"
            request.answer(ResponseCode.SYSTEM_ERROR, text[:1024])
        elif topics:
            self._when_routed(partial(request.answer, ResponseCode.SUCCESS))
        else:
            request.answer(ResponseCode.SUCCESS)

    def _topics_changed(self, topics: tuple[str, ...], error: DLedgerError | None) -> None:
        for topic in topics:
            self._topic_changed(topic, error)

    def _changed(self, request: PendingRequest, staged: StagedEntry, place: int) -> None:
        """Answer a change that is committed; the fold may have refused it."""
        refusal = self._state.refusals.at(staged.physical_offset(place))
        if refusal is None and request.handler.code == RequestCode.UPDATE_AND_CREATE_TOPIC:
            # Whoever is told that there is a topic looks for its route next.
            self._when_routed(partial(request.answer, ResponseCode.SUCCESS))
        elif refusal is None:
            request.answer(ResponseCode.SUCCESS)
        else:
            text = f"refused: {refusal.kind.name.lower()} {refusal.detail}"
            request.answer(ResponseCode.SYSTEM_ERROR, text[:1024])


def _problem_of(config: TopicConfig) -> str | None:
    """Return why a topic cannot be as it is wanted; None: it can."""
    problem = names.topic_problem(config.name) or names.system_topic_problem(config.name)
    counts = (config.read_queue_count, config.write_queue_count)
    if problem is None and not all(0 < count <= QUEUE_COUNT_MAX for count in counts):
        return f"{counts[0]} read and {counts[1]} write queues: both must be from 1 to {QUEUE_COUNT_MAX}"
    if problem is None and not 0 <= config.perm <= 7:
        return f"perm {config.perm} is not from 0 to 7"
    if problem is None and config.filter_type not in _FILTER_TYPES:
        return (
            f"topicFilterType {config.filter_type[:40]!r} is not one of {', '.join(_FILTER_TYPES)}"
        )
    if problem is None and not -fields.INT32_MAX - 1 <= config.sys_flag <= fields.INT32_MAX:
        return "topicSysFlag is no number of 32 bits"  # as JSON it may be of any length
    return problem


def _problem_of_group(config: SubscriptionGroupConfig) -> str | None:
    """Return why a group cannot be as it is wanted; None: it can."""
    problem = names.group_problem(config.name)
    count = config.retry_queue_count
    if problem is None and count > QUEUE_COUNT_MAX:
        # There could be no such retry topic, and what is sent back would go where nobody reads.
        return f"{count} retry queues: there are {QUEUE_COUNT_MAX} at most"
    return problem
