"""Changes of offsets that tools make for a group: a copy of another group's (314).

What consumers commit themselves, and ask for, is answered elsewhere (offsets.py).
"""

from __future__ import annotations

from functools import partial

from broker.server.handlers.members import Members
from broker.server.requests.commits import Commits
from broker.server.requests.request import Handler, PendingRequest
from broker.server.requests.router import Router
from broker.service.conclusions import RequestKind
from broker.store.control import (
    COMMITS_PER_COMMAND,
    Command,
    CommitOffsets,
    OffsetCommit,
    RemoveOffsets,
)
from broker.store.staging import StagedEntry
from broker.store.state import BrokerState
from dledger_mq.message import names
from dledger_mq.remoting import fields
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand


class OffsetTools:
    """Carries out what tools want of offsets, through the log."""

    def __init__(
        self, state: BrokerState, commits: Commits, router: Router, *, members: Members
    ) -> None:
        """Set up the changes.

        Args:
            state: the fold that is asked.
            commits: changes are staged here.
            router: waits for their commit.
            members: the live clients of all nodes.
        """
        self._state = state
        self._commits = commits
        self._router = router
        self._members = members

    def handlers(self) -> tuple[Handler[RemotingCommand], ...]:
        """Return the handlers of its codes."""
        code = RequestCode.CLONE_GROUP_OFFSET
        return (
            Handler(code, self.clone, RequestKind.ADMIN, is_confirmed=True, counts_offsets=True),
        )

    def clone(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out CLONE_GROUP_OFFSET: a group gets another one's offsets in one topic or all, and no others there.

        Unless the source is said to be offline, topics that its live members do not subscribe to are left out.

        Raises:
            FieldError: a field is missing or impossible.
        """
        ext = command.ext
        source, target = fields.text(ext, "srcGroup"), fields.text(ext, "destGroup")
        is_offline = fields.boolean(ext, "offline", default=True)
        problem = names.group_problem(target)
        if problem is not None:
            request.answer(ResponseCode.SYSTEM_ERROR, problem)
            return
        wanted = ext.get("topic")
        topics = [wanted] if wanted else self._state.offsets.topics_of(source)
        commands: list[Command] = []
        for topic in topics:
            if self._is_there(topic) and (is_offline or self._is_subscribed(source, topic)):
                commands += self._copy(source, target, topic)
        if not commands or source == target:
            request.answer(ResponseCode.SUCCESS)
            return
        if self._commits.is_full:
            request.refuse_as_busy()
            return
        places = [self._commits.stage_control(each) for each in commands]
        self._router.when_committed(request, places[-1], partial(_done, request))

    def _is_there(self, topic: str) -> bool:
        """Return whether a topic exists where the copy would stand in the log: not behind its deletion."""
        return topic in self._state.topics and not self._commits.deletes(topic)

    def _is_subscribed(self, group: str, topic: str) -> bool:
        union = self._members.exchange.union
        return not union.members(group) or union.subscription(group, topic) is not None

    def _copy(self, source: str, target: str, topic: str) -> list[Command]:
        """Return what gives a group the offsets of another one in a topic; nothing if that has none."""
        wanted, there = (self._state.offsets.of(group, topic) for group in (source, target))
        if not wanted:
            return []
        commits = [OffsetCommit(target, topic, *place) for place in wanted.items()]
        # Only if it must be: should the leader be lost in between, the target has no offsets there.
        removal: list[Command] = (
            [] if there.keys() <= wanted.keys() else [RemoveOffsets(target, topic)]
        )
        return removal + [
            CommitOffsets(commits[at : at + COMMITS_PER_COMMAND], is_forced=True)
            for at in range(0, len(commits), COMMITS_PER_COMMAND)
        ]


def _done(request: PendingRequest, _staged: StagedEntry, _place: int) -> None:
    request.answer(ResponseCode.SUCCESS)
