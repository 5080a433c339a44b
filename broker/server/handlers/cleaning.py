"""What operators may have cleaned at once: `mqadmin cleanExpiredCQ`, `cleanUnusedTopic`, `deleteExpiredCommitLog`.

Nothing of it is needed for the store to stay small: what is due goes by itself (docs/retention.md).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from broker.server.requests.commits import Commits
from broker.server.requests.request import Handler, PendingRequest, Where
from broker.server.requests.router import Router
from broker.service.catalog import Catalog
from broker.service.conclusions import RequestKind
from broker.store.consume_queue import ConsumeQueues
from broker.store.control import DeleteTopic
from broker.store.staging import StagedEntry
from broker.store.topics import is_deletable
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.header import RemotingCommand

TOPICS_MAX: Final = 256
"""Deletions in one entry; asked again, the next ones follow."""


class Cleaning:
    """Cleans when it is asked to."""

    def __init__(
        self,
        commits: Commits,
        router: Router,
        catalog: Catalog,
        queues: Callable[[], ConsumeQueues],
        *,
        ask_retention: Callable[[], str],
    ) -> None:
        """Set up the answers.

        `ask_retention` lets what is due be forgotten whatever the hour, and returns why nothing of it is; empty: some
        is, or nothing is due.
        """
        self._commits = commits
        self._router = router
        self._catalog = catalog
        self._queues = queues
        self._ask_retention = ask_retention

    def handlers(self) -> tuple[Handler[RemotingCommand], ...]:
        """Return the handlers of its codes."""
        code, admin = RequestCode, RequestKind.ADMIN
        return (
            Handler(
                code.CLEAN_EXPIRED_CONSUMEQUEUE, self.clean_queues, RequestKind.READ, Where.HERE
            ),
            Handler(code.CLEAN_UNUSED_TOPIC, self.clean_topics, admin, is_confirmed=True),
            Handler(code.DELETE_EXPIRED_COMMITLOG, self.delete_log, admin, is_confirmed=True),
        )

    def clean_queues(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out CLEAN_EXPIRED_CONSUMEQUEUE: forgotten units of this node go, as they do by themselves."""
        self._queues().sweep()
        request.answer(ResponseCode.SUCCESS)

    def delete_log(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out DELETE_EXPIRED_COMMITLOG: what is older than the reserved time goes in the next rounds.

        Who asks is told if something keeps all of it.
        """
        if reason := self._ask_retention():
            text = f"nothing of what is due goes now; the reason: {reason}"
            request.answer(ResponseCode.SYSTEM_ERROR, text[:1024])
        else:
            request.answer(ResponseCode.SUCCESS)

    def clean_topics(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out CLEAN_UNUSED_TOPIC: queues of topics that do not exist go.

        Such queues come of messages that were delivered late, after their topic had been deleted. A topic whose
        creation is on its way is one that exists.
        """
        unused = [
            name
            for name in self._queues().topics()
            if self._catalog.visible_topic(name) is None and is_deletable(name)
        ]
        if not unused:
            request.answer(ResponseCode.SUCCESS)
            return
        if self._commits.is_full:
            request.refuse_as_busy()
            return
        place = -1
        for name in unused[:TOPICS_MAX]:
            place = self._commits.stage_control(DeleteTopic(name))
        self._router.when_committed(request, place, partial(self._cleaned, request))

    def _cleaned(self, request: PendingRequest, staged: StagedEntry, place: int) -> None:
        request.answer(ResponseCode.SUCCESS)
