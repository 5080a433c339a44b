"""Settings: those that a client has, and those that it gets in return. Pure.

A group's own number of retries and its order are the brokers'; waits between retries are theirs too, so consumers are
told the steps of RocketMQ's delay levels, from 10 s on.
"""

from __future__ import annotations

from typing import Any, Final

from broker.proxy import checks
from broker.proxy.accounts import CallSender
from broker.proxy.clients import ProxyClient, check_count, subscription_of
from broker.proxy.protocol import Settings
from broker.proxy.protocol.numbers import ClientType, Code
from broker.proxy.refusals import CallRefusedError
from dledger_mq.client.messages import BODY_BYTES_MAX
from dledger_mq.client.subscriptions import TopicSubscription

PRODUCER_ATTEMPTS_MAX: Final = 3
REQUEST_TIMEOUT_S: Final = 3
RECEIVE_BATCH: Final = 32
LONG_POLLING_S: Final = 20
RETRY_STEPS_S: Final = (
    10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
)  # fmt: skip

_KINDS: Final = frozenset({ClientType.PUSH_CONSUMER, ClientType.SIMPLE_CONSUMER})


def read_settings(
    client_id: str, sender: CallSender, settings: Any, *, version: int
) -> ProxyClient:
    """Return the client that has these settings; `version` is the time of its subscriptions, ms.

    Raises:
        CallRefusedError: of a kind that is not served, or a name in them is none.
    """
    if settings.HasField("publishing"):
        topics = settings.publishing.topics
        check_count(len(topics))
        return ProxyClient(
            client_id,
            ClientType.PRODUCER,
            sender,
            next((one.resource_namespace for one in topics), ""),
            topics=frozenset(map(checks.topic_of, topics)),
        )
    if not settings.HasField("subscription") or settings.client_type not in _KINDS:
        text = (
            "settings of producers, push consumers and simple consumers are known here, not these"
        )
        raise CallRefusedError(Code.UNRECOGNIZED_CLIENT_TYPE, text)
    entries = settings.subscription.subscriptions
    check_count(len(entries))
    names = [checks.topic_of(entry.topic) for entry in entries]
    return ProxyClient(
        client_id,
        ClientType(settings.client_type),
        sender,
        settings.subscription.group.resource_namespace,
        group=checks.group_of(settings.subscription.group),
        subscriptions={
            name: subscription_of(name, entry.expression, version)
            for name, entry in zip(names, entries, strict=True)
        },
    )


def read_receiver(
    client_id: str, sender: CallSender, request: Any, *, version: int
) -> tuple[ProxyClient, TopicSubscription]:
    """Return the consumer that a `ReceiveMessageRequest` tells of, and what it wants.

    Raises:
        CallRefusedError: a name in it is none, or its filter.
    """
    topic = checks.topic_of(request.message_queue.topic)
    wanted = subscription_of(topic, request.filter_expression, version)
    client = ProxyClient(
        client_id,
        ClientType.PUSH_CONSUMER if request.auto_renew else ClientType.SIMPLE_CONSUMER,
        sender,
        request.group.resource_namespace,
        group=checks.group_of(request.group),
        subscriptions={topic: wanted},
    )
    return client, wanted


def producer_settings(settings: Any) -> Any:
    """Return a producer's settings with what is ours to say."""
    found = Settings()
    found.CopyFrom(settings)
    policy = found.backoff_policy
    policy.max_attempts = PRODUCER_ATTEMPTS_MAX
    policy.exponential_backoff.initial.nanos = 10_000_000
    policy.exponential_backoff.max.seconds = 1
    policy.exponential_backoff.multiplier = 2.0
    found.publishing.max_body_size = BODY_BYTES_MAX
    found.publishing.validate_message_type = True
    _common(found)
    return found


def consumer_settings(settings: Any, *, is_ordered: bool, retries_max: int) -> Any:
    """Return a consumer's settings with what is ours to say."""
    found = Settings()
    found.CopyFrom(settings)
    subscription = found.subscription
    subscription.fifo = is_ordered
    subscription.receive_batch_size = RECEIVE_BATCH
    subscription.long_polling_timeout.seconds = LONG_POLLING_S
    found.backoff_policy.Clear()
    found.backoff_policy.max_attempts = retries_max + 1
    for step_s in RETRY_STEPS_S:
        found.backoff_policy.customized_backoff.next.add().seconds = step_s
    _common(found)
    return found


def _common(found: Any) -> None:
    if not found.HasField("request_timeout"):
        found.request_timeout.seconds = REQUEST_TIMEOUT_S
    found.metric.Clear()
    found.metric.on = False
