"""What a consumer group may do in one topic: reading forbidden or allowed (353)."""

from __future__ import annotations

from broker.server.requests.commits import Commits
from broker.server.requests.request import Handler, PendingRequest
from broker.server.requests.router import Router
from broker.service.conclusions import RequestKind
from broker.service.strangers import has_room_for_prohibition
from broker.store.control import ForbidTopic
from broker.store.state import BrokerState
from broker.store.topics import PERM_READ
from dledger_mq.remoting import fields
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.json_body import write_json


class GroupRules:
    """Carries out what tools say of one group in one topic."""

    def __init__(self, state: BrokerState, commits: Commits, router: Router) -> None:
        """Set up the changes.

        Args:
            state: the fold that is asked.
            commits: changes are staged here.
            router: waits for their commit.
        """
        self._state = state
        self._commits = commits
        self._router = router

    def handlers(self) -> tuple[Handler[RemotingCommand], ...]:
        """Return the handlers of its codes."""
        code, admin = RequestCode, RequestKind.ADMIN
        return (
            Handler(code.UPDATE_AND_GET_GROUP_FORBIDDEN, self.forbid, admin, is_confirmed=True),
        )

    def forbid(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out UPDATE_AND_GET_GROUP_FORBIDDEN: without `readable` nothing changes.

        Raises:
            FieldError: a field is missing, or no truth value.
        """
        ext = command.ext
        group, topic = fields.text(ext, "group"), fields.text(ext, "topic")
        if self._state.groups.get(group) is None:
            text = f"the consumer group[{group}] not exist"
            request.answer(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, text)
        elif not ext.get("readable"):
            self._answer(request, group, topic)
        elif self._commits.is_full:
            request.refuse_as_busy()
        else:
            bits = self._state.groups.forbidden_bits(group, topic)
            is_readable = fields.boolean(ext, "readable")
            if not (is_readable or bits or has_room_for_prohibition(self._state, topic)):
                text = (
                    f"topic[{topic[:255]}] not exist, and too many of those are forbidden already"
                )
                request.answer(ResponseCode.TOPIC_NOT_EXIST, text)
                return
            bits = bits & ~PERM_READ if is_readable else bits | PERM_READ
            place = self._commits.stage_control(ForbidTopic(group, topic, bits))
            self._router.when_committed(
                request, place, lambda _staged, _place: self._answer(request, group, topic)
            )

    def _answer(self, request: PendingRequest, group: str, topic: str) -> None:
        is_readable = not self._state.groups.forbidden_bits(group, topic) & PERM_READ
        body = {"group": group, "readable": is_readable, "topic": topic}
        request.answer(ResponseCode.SUCCESS, body=write_json(body))
