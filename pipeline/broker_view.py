"""The brokers as a driver sees them while it plans: queues, their bounds, and offsets by time.

A view keeps its connections open between questions. It may be pickled: the copy has none.

What nobody serves is gone only if somebody could serve it: while no leader is registered, a name server knows nothing
of the group's topics, and the answer is that nothing can be said (ADR 279).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, TypeVar

import trio

from dledger_mq.blocking import PullConsumer
from dledger_mq.client.errors import ClientError, NoRouteError
from dledger_mq.client.inspector import Inspector
from dledger_mq.client.queues import MessageQueue
from dledger_mq.message.numbers import QueueOffset
from dledger_mq.remoting.route import LEADER_ID
from pipeline.errors import InconclusiveError, PipelineUsageError
from pipeline.offsets import Bounds
from pipeline.source_options import SourceOptions, matching

READ_GROUP: Final = "TOOLS_CONSUMER"
"""Reads are not those of a group, but every pull names one; this one exists on every broker."""

TRY_S: Final = 5.0
"""The time that one try of a question may take: outlives an election, and is short enough to be told about."""

_ROUTE_TRIES: Final = 2
"""Of a topic without a route: the client has waited a moment in each already."""

TOPICS_FOLLOW_S: Final = 1.0
"""A new leader's topics are routed soon after its address is known; this much later they surely are."""

_T = TypeVar("_T")
log = logging.getLogger(__name__)


class _NobodyLeadsError(ClientError):
    """No leader is registered of groups that would know: nobody can say what they hold."""

    retriable = True


class BrokerView:
    """Answers about the topics of one table or stream.

    Args:
        options: name servers, topics, retries, and the group under which offsets are stored.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._consumer: PullConsumer | None = None

    def __getstate__(self) -> SourceOptions:
        return self._options

    def __setstate__(self, options: SourceOptions) -> None:
        self.__init__(options)  # type: ignore[misc]  # a copy begins anew

    def close(self) -> None:
        """Close the connections; the next question opens them again."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    # Questions of a driver.

    def bounds(self, *, may_miss: bool = False) -> dict[MessageQueue, Bounds]:
        """Return what the queues of all topics hold now: everything that is committed, nothing else.

        Args:
            may_miss: leave topics out that do not exist, instead of raising.

        Raises:
            PipelineUsageError: a topic does not exist, or none matches the pattern.
            InconclusiveError: brokers or name servers do not answer, or no group has a leader.
        """

        def ask(consumer: PullConsumer) -> dict[MessageQueue, Bounds]:
            found = self._bounds(consumer, may_miss=may_miss)
            if not found:
                self._check_led()
            return found

        bounds = self._asked(ask)
        assigned = self._options.assigned
        missing = assigned.missing(bounds) if assigned is not None and not may_miss else []
        if missing:
            raise PipelineUsageError(f"option assign: there is no {', '.join(missing[:5])}")
        if not bounds and not may_miss:
            raise PipelineUsageError(
                f"there is no queue: {self._options.subject} at {self._servers}"
            )
        return bounds

    def look_for(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, Bounds]:
        """Look once more for queues that `bounds` did not have, and return what they hold.

        One that is left out of the answer is gone: its group has a leader, who does not serve it.

        Raises:
            InconclusiveError: as `bounds`, or a group of theirs has no leader.
        """
        wanted = frozenset(queues)
        self.close()  # with the routes that it remembers: they are in doubt

        def ask(consumer: PullConsumer) -> dict[MessageQueue, Bounds]:
            self._check_led({queue.broker_name for queue in wanted})
            time.sleep(TOPICS_FOLLOW_S)
            bounds = self._bounds(consumer, may_miss=True)
            missing = wanted - bounds.keys()
            if missing:
                self._check_led({queue.broker_name for queue in missing})
            return {queue: bounds[queue] for queue in wanted - missing}

        return self._asked(ask)

    def offsets_at(self, queues: Iterable[MessageQueue], time_ms: int) -> dict[MessageQueue, int]:
        """Return each queue's first offset stored at a time or later; its end if there is none.

        Raises:
            PipelineUsageError, InconclusiveError: as `bounds`.
        """

        def ask(consumer: PullConsumer) -> dict[MessageQueue, int]:
            return {queue: consumer.offset_at(queue, time_ms) for queue in queues}

        return self._asked(ask)

    def store_times(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Return when the first message at an offset or behind it was stored, in ms since 1970; no queue without one.

        Raises:
            PipelineUsageError, InconclusiveError: as `bounds`.
        """

        def ask(consumer: PullConsumer) -> dict[MessageQueue, int]:
            found = {queue: _first_stored(consumer, queue, at) for queue, at in offsets.items()}
            return {queue: time_ms for queue, time_ms in found.items() if time_ms is not None}

        return self._asked(ask)

    def try_commit(self, offsets: Mapping[MessageQueue, QueueOffset]) -> bool:
        """Store offsets under commitGroup; they are for people to look at, so a failure is only logged."""
        try:
            self._open().commit_all(offsets)
        except ClientError as error:
            log.warning("offsets of group %s are not stored: %s", self._options.commit_group, error)
            return False
        return True

    # Asking them, with retries.

    @property
    def _servers(self) -> str:
        return f"name server {self._options.name_server}"

    def _bounds(self, consumer: PullConsumer, *, may_miss: bool) -> dict[MessageQueue, Bounds]:
        """Ask once for what `bounds` returns. Raises ClientError."""
        queues: list[MessageQueue] = []
        for topic in self._topics(consumer):
            try:
                queues.extend(filter(self._options.reads, consumer.queues(topic)))
            except NoRouteError:
                if not may_miss:
                    raise
                self._check_led()
        found = consumer.bounds(queues)
        return {queue: Bounds(start, max(start, end)) for queue, (start, end) in found.items()}

    def _topics(self, consumer: PullConsumer) -> tuple[str, ...]:
        pattern = self._options.topic_pattern
        if pattern is None:
            return self._options.topics
        return matching(pattern, consumer.topics())

    def _asked(self, ask: Callable[[PullConsumer], _T]) -> _T:
        """Ask the brokers, and retry after a pause as often as the options allow."""
        tries = 0
        while True:
            try:
                return ask(self._open())
            except ClientError as caught:
                self.close()
                error = self._judged(caught)
                tries += 1
                most = self._options.fetch_retries + 1
                if isinstance(error, NoRouteError):
                    most = min(most, _ROUTE_TRIES)
                if not error.retriable or tries >= most:
                    raise self._failure(error) from error
                subject, pause_s = (
                    self._options.subject,
                    self._options.fetch_retry_interval_ms / 1000,
                )
                log.warning(
                    "nobody answers about %s, asking again in %g s (try %d of %d): %s",
                    *(subject, pause_s, tries + 1, most, error),
                )
            time.sleep(self._options.fetch_retry_interval_ms / 1000)

    def _judged(self, error: ClientError) -> ClientError:
        """Return the error; of a topic without a route rather that nobody leads who could serve it, if it is so."""
        if isinstance(error, NoRouteError):
            try:
                self._check_led()
            except ClientError as other:
                return other
        return error

    def _check_led(self, groups: Collection[str] = ()) -> None:
        """Check that each of some groups has a leader; that any group has one, where none is named.

        Raises:
            _NobodyLeadsError: names those without one.
            ClientError: no name server answers.
        """

        async def ask() -> Mapping[str, Mapping[int, str]]:
            access = self._options.access.arguments()
            server = self._options.name_server
            async with Inspector(server, timeout_s=TRY_S, **access) as inspector:
                return await inspector.addresses()

        led = {name for name, nodes in trio.run(ask).items() if LEADER_ID in nodes}
        unled = sorted(set(groups) - led)
        if unled or not led:
            whose = f"group {', '.join(unled)}" if unled else "any group"
            raise _NobodyLeadsError(f"{self._servers} knows no leader of {whose}")

    def _failure(self, error: ClientError) -> PipelineUsageError | InconclusiveError:
        if isinstance(error, NoRouteError):
            return PipelineUsageError(
                f"topic {error.topic} does not exist ({self._servers} knows no route)"
            )
        return InconclusiveError(f"{self._options.subject} cannot be asked about: {error}")

    def _open(self) -> PullConsumer:
        if self._consumer is None:
            group = self._options.commit_group or READ_GROUP
            server = self._options.name_server
            access = self._options.access.arguments()
            self._consumer = PullConsumer(server, group, timeout_s=TRY_S, **access).open()
        return self._consumer


def _first_stored(consumer: PullConsumer, queue: MessageQueue, offset: int) -> int | None:
    """Return when the first message from an offset on was stored; None if there is none. Raises ClientError."""
    pulled = consumer.pull(queue, offset, max_messages=1)
    if not pulled.messages and pulled.min_offset > offset:  # retention was here
        pulled = consumer.pull(queue, pulled.min_offset, max_messages=1)
    return pulled.messages[0].store_timestamp_ms if pulled.messages else None
