"""Consumers for code without async."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Unpack

from dledger_mq.blocking.runner import Runner, blocking, in_loop
from dledger_mq.client import pull_consumer, push_consumer, simple_consumer
from dledger_mq.client.consume_results import Result
from dledger_mq.client.consumer_settings import ConsumerOptions
from dledger_mq.client.credentials import Credentials
from dledger_mq.client.messages import ReceivedMessage
from dledger_mq.client.queues import MessageQueue
from dledger_mq.client.subscriptions import BySql


class PullConsumer(Runner[pull_consumer.PullConsumer]):
    """Reads queues of the caller's choice; arguments as `dledger_mq.PullConsumer`."""

    def __init__(
        self,
        namesrv: str,
        group: str,
        *,
        timeout_s: float = pull_consumer.PULL_TIMEOUT_S,
        instance: str | None = None,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        super().__init__(
            pull_consumer.PullConsumer(
                namesrv,
                group,
                timeout_s=timeout_s,
                instance=instance,
                tls=tls,
                credentials=credentials,
            )
        )

    queues = blocking(pull_consumer.PullConsumer.queues)
    topics = blocking(pull_consumer.PullConsumer.topics)
    committed = blocking(pull_consumer.PullConsumer.committed)
    commit = blocking(pull_consumer.PullConsumer.commit)
    commit_all = blocking(pull_consumer.PullConsumer.commit_all)
    min_offset = blocking(pull_consumer.PullConsumer.min_offset)
    max_offset = blocking(pull_consumer.PullConsumer.max_offset)
    bounds = blocking(pull_consumer.PullConsumer.bounds)
    offset_at = blocking(pull_consumer.PullConsumer.offset_at)
    pull = blocking(pull_consumer.PullConsumer.pull)
    pull_records = blocking(pull_consumer.PullConsumer.pull_records)

    assign = blocking(pull_consumer.PullConsumer.assign)
    poll = blocking(pull_consumer.PullConsumer.poll)
    position = in_loop(pull_consumer.PullConsumer.position)
    seek = in_loop(pull_consumer.PullConsumer.seek)
    pause = in_loop(pull_consumer.PullConsumer.pause)
    resume = in_loop(pull_consumer.PullConsumer.resume)
    commit_positions = blocking(pull_consumer.PullConsumer.commit_positions)

    @property
    def assigned(self) -> tuple[MessageQueue, ...]:
        """The queues that `poll` reads."""
        return self.call_now(lambda: self.client.assigned)


class PushConsumer(Runner[push_consumer.PushConsumer]):
    """A member of a consumer group whose handler is an ordinary function.

    The handler runs in worker threads, up to `concurrency` at a time. Without one, messages are taken
    by `for message in consumer`. Other arguments as `dledger_mq.PushConsumer`.
    """

    def __init__(
        self,
        namesrv: str,
        group: str,
        handler: Callable[[ReceivedMessage], Result] | None = None,
        *,
        subscriptions: Mapping[str, str | BySql],
        **options: Unpack[ConsumerOptions],
    ) -> None:
        super().__init__(
            push_consumer.PushConsumer(
                namesrv, group, handler, subscriptions=subscriptions, **options
            )
        )

    wait_assigned = blocking(push_consumer.PushConsumer.wait_assigned)
    subscribe = blocking(push_consumer.PushConsumer.subscribe)
    unsubscribe = blocking(push_consumer.PushConsumer.unsubscribe)
    pause = in_loop(push_consumer.PushConsumer.pause)
    resume = in_loop(push_consumer.PushConsumer.resume)
    seek = blocking(push_consumer.PushConsumer.seek)
    reply = blocking(push_consumer.PushConsumer.reply)
    commit = blocking(push_consumer.PushConsumer.commit)
    statistics = in_loop(push_consumer.PushConsumer.statistics)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Yield messages; each counts as consumed when the next one is asked for."""
        with suppress(StopAsyncIteration):
            while True:
                yield self.call(self.client.__anext__)

    @property
    def assigned(self) -> tuple[MessageQueue, ...]:
        """The queues that this member reads now."""
        return self.call_now(lambda: self.client.assigned)


class SimpleConsumer(Runner[simple_consumer.SimpleConsumer]):
    """Receives messages of a group for a time, and acknowledges them; arguments as `dledger_mq.SimpleConsumer`."""

    def __init__(
        self,
        namesrv: str,
        group: str,
        *,
        subscriptions: Mapping[str, str | BySql],
        ordered: bool | None = None,
        start_from: simple_consumer.Begin = "last",
        timeout_s: float = simple_consumer.TIMEOUT_S,
        instance: str | None = None,
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        super().__init__(
            simple_consumer.SimpleConsumer(
                namesrv,
                group,
                subscriptions=subscriptions,
                ordered=ordered,
                start_from=start_from,
                timeout_s=timeout_s,
                instance=instance,
                tls=tls,
                credentials=credentials,
            )
        )

    receive = blocking(simple_consumer.SimpleConsumer.receive)
    ack = blocking(simple_consumer.SimpleConsumer.ack)
    change_invisible_time = blocking(simple_consumer.SimpleConsumer.change_invisible_time)
