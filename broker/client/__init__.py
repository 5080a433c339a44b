"""Clients of the broker on trio: producer, push and pull consumer. `broker.client.blocking` has them without async."""

from broker.client.consume_results import ConsumeResult, Later
from broker.client.errors import (
    ClientClosedError,
    ClientError,
    ClientUsageError,
    ClosedMeanwhileError,
    ConnectionLostError,
    InvalidMessageError,
    NameServersUnreachableError,
    NoRouteError,
    NotConnectedError,
    RequestFailedError,
    RequestTimeoutError,
    SendError,
    SendOutcomeUnknownError,
    SendRefusedError,
    TooLateError,
)
from broker.client.group_requests import PullAnswer
from broker.client.idempotent_producer import IdempotentProducer, Row, RowsResult, row_key
from broker.client.lane import PendingSend
from broker.client.messages import Message, ReceivedMessage, SendResult
from broker.client.process_queue import FlowLimits
from broker.client.producer import Producer
from broker.client.pull_consumer import PullConsumer
from broker.client.push_consumer import PushConsumer
from broker.client.queues import MessageQueue
from broker.client.transaction_producer import (
    TransactionProducer,
    TransactionResult,
    TransactionState,
)

__all__ = [
    "ClientClosedError",
    "ClientError",
    "ClientUsageError",
    "ClosedMeanwhileError",
    "ConnectionLostError",
    "ConsumeResult",
    "FlowLimits",
    "IdempotentProducer",
    "InvalidMessageError",
    "Later",
    "Message",
    "MessageQueue",
    "NameServersUnreachableError",
    "NoRouteError",
    "NotConnectedError",
    "PendingSend",
    "Producer",
    "PullAnswer",
    "PullConsumer",
    "PushConsumer",
    "ReceivedMessage",
    "RequestFailedError",
    "RequestTimeoutError",
    "Row",
    "RowsResult",
    "SendError",
    "SendOutcomeUnknownError",
    "SendRefusedError",
    "SendResult",
    "TooLateError",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
    "row_key",
]
