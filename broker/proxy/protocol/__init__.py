"""The messages of RocketMQ 5's gRPC clients (`messaging.proto` beside this file).

They are made from `messaging.pb` in a pool of their own, so that a process may import RocketMQ's own client beside it.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Final

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    message_factory,
    timestamp_pb2,
)

PACKAGE: Final = "apache.rocketmq.v2"


def _read_pool() -> Any:
    pool = descriptor_pool.DescriptorPool()
    for known in (duration_pb2, timestamp_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    found = descriptor_pb2.FileDescriptorSet.FromString(
        files(__name__).joinpath("messaging.pb").read_bytes()
    )
    for each in found.file:
        pool.AddSerializedFile(each.SerializeToString())
    return pool


POOL: Final = _read_pool()
SERVICE: Final = POOL.FindServiceByName(f"{PACKAGE}.MessagingService")
"""The calls, with the messages that they take and give."""


def message_class(name: str) -> Any:
    """Return the class of a message; KeyError where there is none."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))


AckMessageResponse: Final = message_class("AckMessageResponse")
Assignment: Final = message_class("Assignment")
ChangeInvisibleDurationResponse: Final = message_class("ChangeInvisibleDurationResponse")
EndTransactionResponse: Final = message_class("EndTransactionResponse")
Message: Final = message_class("Message")
MessageQueue: Final = message_class("MessageQueue")
QueryAssignmentResponse: Final = message_class("QueryAssignmentResponse")
QueryRouteResponse: Final = message_class("QueryRouteResponse")
ReceiveMessageResponse: Final = message_class("ReceiveMessageResponse")
RecallMessageResponse: Final = message_class("RecallMessageResponse")
SendMessageResponse: Final = message_class("SendMessageResponse")
SendResultEntry: Final = message_class("SendResultEntry")
Settings: Final = message_class("Settings")
Status: Final = message_class("Status")
TelemetryCommand: Final = message_class("TelemetryCommand")
