"""Messages as clients see them: RocketMQ's protocol and records, and a client for Python.

    from dledger_mq import Message, Producer, PushConsumer

What stands in `__all__` is the public API of the asynchronous client; `dledger_mq.blocking` has the same
without async, `dledger_mq.testing` a broker group in memory. Nothing here knows the server (`broker`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dledger.version import __version__
    from dledger_mq.client.ack_errors import (
        AckError,
        AckOutcomeUnknownError,
        AckRefusedError,
        HandleExpiredError,
    )
    from dledger_mq.client.admin import Admin, GroupDescription, TopicDescription
    from dledger_mq.client.consume_results import ConsumeResult, Later
    from dledger_mq.client.credentials import Credentials, read_credentials
    from dledger_mq.client.errors import (
        ClientClosedError,
        ClientError,
        ClientUsageError,
        ClosedMeanwhileError,
        ConnectionLostError,
        InvalidMessageError,
        NameServersUnreachableError,
        NoReplyError,
        NoRouteError,
        NotConnectedError,
        RequestFailedError,
        RequestTimeoutError,
        SendError,
        SendOutcomeUnknownError,
        SendRefusedError,
        TooLateError,
    )
    from dledger_mq.client.group_requests import PullAnswer
    from dledger_mq.client.hooks import ClientHooks
    from dledger_mq.client.idempotent_producer import IdempotentProducer, RowsResult, row_key
    from dledger_mq.client.lane import PendingSend
    from dledger_mq.client.messages import Message, ReceivedMessage, SendResult
    from dledger_mq.client.popped_messages import PoppedMessage
    from dledger_mq.client.process_queue import FlowLimits
    from dledger_mq.client.producer import Producer
    from dledger_mq.client.pull_consumer import PullConsumer
    from dledger_mq.client.push_consumer import PushConsumer
    from dledger_mq.client.queues import MessageQueue
    from dledger_mq.client.rebalance_listener import RebalanceListener
    from dledger_mq.client.send_maker import Row
    from dledger_mq.client.simple_consumer import SimpleConsumer
    from dledger_mq.client.subscriptions import BySql
    from dledger_mq.client.tls import make_tls_context
    from dledger_mq.client.transaction_producer import (
        TransactionProducer,
        TransactionResult,
        TransactionState,
    )

# Loaded when they are first asked for: the codecs must be importable without sockets and a loop.
_HOMES = {
    "AckError": "dledger_mq.client.ack_errors",
    "AckOutcomeUnknownError": "dledger_mq.client.ack_errors",
    "AckRefusedError": "dledger_mq.client.ack_errors",
    "Admin": "dledger_mq.client.admin",
    "BySql": "dledger_mq.client.subscriptions",
    "ClientClosedError": "dledger_mq.client.errors",
    "ClientError": "dledger_mq.client.errors",
    "ClientHooks": "dledger_mq.client.hooks",
    "ClientUsageError": "dledger_mq.client.errors",
    "ClosedMeanwhileError": "dledger_mq.client.errors",
    "ConnectionLostError": "dledger_mq.client.errors",
    "ConsumeResult": "dledger_mq.client.consume_results",
    "Credentials": "dledger_mq.client.credentials",
    "FlowLimits": "dledger_mq.client.process_queue",
    "GroupDescription": "dledger_mq.client.admin",
    "HandleExpiredError": "dledger_mq.client.ack_errors",
    "IdempotentProducer": "dledger_mq.client.idempotent_producer",
    "InvalidMessageError": "dledger_mq.client.errors",
    "Later": "dledger_mq.client.consume_results",
    "Message": "dledger_mq.client.messages",
    "MessageQueue": "dledger_mq.client.queues",
    "NameServersUnreachableError": "dledger_mq.client.errors",
    "NoReplyError": "dledger_mq.client.errors",
    "NoRouteError": "dledger_mq.client.errors",
    "NotConnectedError": "dledger_mq.client.errors",
    "PendingSend": "dledger_mq.client.lane",
    "PoppedMessage": "dledger_mq.client.popped_messages",
    "Producer": "dledger_mq.client.producer",
    "PullAnswer": "dledger_mq.client.group_requests",
    "PullConsumer": "dledger_mq.client.pull_consumer",
    "PushConsumer": "dledger_mq.client.push_consumer",
    "RebalanceListener": "dledger_mq.client.rebalance_listener",
    "ReceivedMessage": "dledger_mq.client.messages",
    "RequestFailedError": "dledger_mq.client.errors",
    "RequestTimeoutError": "dledger_mq.client.errors",
    "Row": "dledger_mq.client.send_maker",
    "RowsResult": "dledger_mq.client.idempotent_producer",
    "SendError": "dledger_mq.client.errors",
    "SendOutcomeUnknownError": "dledger_mq.client.errors",
    "SendRefusedError": "dledger_mq.client.errors",
    "SendResult": "dledger_mq.client.messages",
    "SimpleConsumer": "dledger_mq.client.simple_consumer",
    "TooLateError": "dledger_mq.client.errors",
    "TopicDescription": "dledger_mq.client.admin",
    "TransactionProducer": "dledger_mq.client.transaction_producer",
    "TransactionResult": "dledger_mq.client.transaction_producer",
    "TransactionState": "dledger_mq.client.transaction_producer",
    "__version__": "dledger.version",
    "make_tls_context": "dledger_mq.client.tls",
    "read_credentials": "dledger_mq.client.credentials",
    "row_key": "dledger_mq.client.idempotent_producer",
}


def __getattr__(name: str) -> object:
    """Load a public name."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'dledger_mq' has no attribute {name!r}")
    return getattr(import_module(home), name)


__all__ = [
    "AckError",
    "AckOutcomeUnknownError",
    "AckRefusedError",
    "Admin",
    "BySql",
    "ClientClosedError",
    "ClientError",
    "ClientHooks",
    "ClientUsageError",
    "ClosedMeanwhileError",
    "ConnectionLostError",
    "ConsumeResult",
    "Credentials",
    "FlowLimits",
    "GroupDescription",
    "HandleExpiredError",
    "IdempotentProducer",
    "InvalidMessageError",
    "Later",
    "Message",
    "MessageQueue",
    "NameServersUnreachableError",
    "NoReplyError",
    "NoRouteError",
    "NotConnectedError",
    "PendingSend",
    "PoppedMessage",
    "Producer",
    "PullAnswer",
    "PullConsumer",
    "PushConsumer",
    "RebalanceListener",
    "ReceivedMessage",
    "RequestFailedError",
    "RequestTimeoutError",
    "Row",
    "RowsResult",
    "SendError",
    "SendOutcomeUnknownError",
    "SendRefusedError",
    "SendResult",
    "SimpleConsumer",
    "TooLateError",
    "TopicDescription",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
    "__version__",
    "make_tls_context",
    "read_credentials",
    "row_key",
]
