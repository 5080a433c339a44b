"""What each request asks of its sender: rights of topics and groups, or of an administrator. Pure.

What RocketMQ 4.9 asks stands in its PlainAccessValidator. Where that leaves a code open (batches, locks, offsets,
changes of rights themselves), this asks for what the code's relatives need: docs/acl.md lists both.
What a request names is read by the same functions that carry it out, so that nothing is judged by one name and done to
another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from broker.access.rules import EVERY_TOPIC, NO_NEEDS, SOME_TOPIC, Needs, Permission
from dledger_mq.message.names import is_retry_topic, retry_topic
from dledger_mq.remoting import fields
from dledger_mq.remoting.codes import RequestCode
from dledger_mq.remoting.group_bodies import decode_lock_request
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.heartbeat import decode_client_config, decode_heartbeat
from dledger_mq.remoting.pop_bodies import assignment_place, batch_places
from dledger_mq.remoting.requests import PullRequest, SendRequest

Resource = tuple[str, Permission]

ADMIN_CODES: Final = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
        RequestCode.DELETE_ACL_CONFIG,
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
        RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.CLONE_GROUP_OFFSET,
        RequestCode.CLEAN_UNUSED_TOPIC,
        RequestCode.RESUME_CHECK_HALF_MESSAGE,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
        RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
        RequestCode.PUT_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        RequestCode.UPDATE_NAMESRV_CONFIG,
        RequestCode.PIN_LOG,
        RequestCode.UNPIN_LOG,
    }
)
"""Codes that change what is everybody's. RocketMQ asks for an administrator with 17, 25, 200, 207 and 215 only."""

_ADMIN: Final = Needs(is_admin=True)
_SUB, _PUB, _ANY = Permission.SUB, Permission.PUB, Permission.ANY


def needs_of(command: SendRequest | PullRequest | RemotingCommand, body: bytes) -> Needs:
    """Return what a request asks of its sender; nothing for codes that show figures, and for unknown ones.

    Raises:
        FieldError: a field that says what it is about is missing.
        BodyError: its body cannot be read.
    """
    if isinstance(command, SendRequest):
        return _of_topic(command.fields.topic, _PUB)
    if isinstance(command, PullRequest):
        pull = command.fields
        return Needs(resources=((pull.topic, _SUB), *_group(pull.consumer_group)))
    if command.code in ADMIN_CODES:
        return _ADMIN
    find = _FINDERS.get(command.code)
    return NO_NEEDS if find is None else Needs(resources=tuple(find(command.ext, body)))


def _of_topic(topic: str, needed: Permission) -> Needs:
    """Return what it takes to write to a topic: who retries a message consumes it."""
    return Needs(resources=((topic, _SUB if is_retry_topic(topic) else needed),))


def _group(name: str) -> Iterable[Resource]:
    """Return the right to consume with a group; C++ sends an empty name for one that it does not mean."""
    return ((retry_topic(name), _SUB),) if name else ()


def _group_in(field: str) -> _Finder:
    return lambda ext, _body: _group(ext.get(field, ""))


def _topic_of(needed: Permission) -> _Finder:
    return lambda ext, _body: ((fields.text(ext, "topic"), needed),)


def _group_and_topic(ext: Mapping[str, str], _body: bytes) -> Iterable[Resource]:
    return (
        *_group(fields.text(ext, "consumerGroup")),
        (fields.text(ext, "topic"), _SUB),
    )


def _heartbeat(_ext: Mapping[str, str], body: bytes) -> Iterable[Resource]:
    for consumer in decode_heartbeat(body).consumers:
        yield from _group(consumer.group)
        yield from ((each.topic, _SUB) for each in consumer.subscriptions)


def _client_config(_ext: Mapping[str, str], body: bytes) -> Iterable[Resource]:
    _, group, subscription = decode_client_config(body)
    return (*_group(group), (subscription.topic, _SUB))


def _locks(_ext: Mapping[str, str], body: bytes) -> Iterable[Resource]:
    return _group(decode_lock_request(body).consumer_group)


def _reply(name: str) -> _Finder:
    return lambda ext, _body: _of_topic(fields.text(ext, name), _PUB).resources


def _batch_ack(_ext: Mapping[str, str], body: bytes) -> Iterable[Resource]:
    for group, topic in batch_places(body):
        yield from (*_group(group), (topic, _SUB))


def _assignment(_ext: Mapping[str, str], body: bytes) -> Iterable[Resource]:
    group, topic = assignment_place(body)
    return (*_group(group), (topic, _SUB))


def _any_message(_ext: Mapping[str, str], _body: bytes) -> Iterable[Resource]:
    return ((EVERY_TOPIC, _SUB),)


def _end_of_some_send(_ext: Mapping[str, str], _body: bytes) -> Iterable[Resource]:
    return ((SOME_TOPIC, _PUB),)


_Finder = Callable[[Mapping[str, str], bytes], Iterable[Resource]]

_FINDERS: Final[Mapping[int, _Finder]] = {
    RequestCode.QUERY_MESSAGE: _topic_of(_SUB),
    RequestCode.QUERY_CONSUMER_OFFSET: _group_and_topic,
    RequestCode.UPDATE_CONSUMER_OFFSET: _group_and_topic,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _topic_of(_ANY),
    RequestCode.GET_MAX_OFFSET: _topic_of(_ANY),
    RequestCode.GET_MIN_OFFSET: _topic_of(_ANY),
    RequestCode.GET_EARLIEST_MSG_STORETIME: _topic_of(_ANY),
    RequestCode.VIEW_MESSAGE_BY_ID: _any_message,
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: _group_in("consumerGroup"),
    RequestCode.CONSUMER_SEND_MSG_BACK: _group_in("group"),
    RequestCode.END_TRANSACTION: _end_of_some_send,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: _group_in("consumerGroup"),
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _group_in("group"),
    RequestCode.GET_CONSUMER_RUNNING_INFO: _group_in("consumerGroup"),
    RequestCode.LOCK_BATCH_MQ: _locks,
    RequestCode.UNLOCK_BATCH_MQ: _locks,
    RequestCode.CHECK_CLIENT_CONFIG: _client_config,
    RequestCode.SEND_REPLY_MESSAGE: _reply("topic"),
    RequestCode.SEND_REPLY_MESSAGE_V2: _reply("b"),
    RequestCode.RECALL_MESSAGE: _topic_of(_PUB),
    RequestCode.POP_MESSAGE: _group_and_topic,
    RequestCode.NOTIFICATION: _group_and_topic,
    RequestCode.ACK_MESSAGE: _group_and_topic,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _group_and_topic,
    RequestCode.BATCH_ACK_MESSAGE: _batch_ack,
    RequestCode.QUERY_ASSIGNMENT: _assignment,
}

CODES_WITH_RESOURCES: Final = frozenset(
    {
        *_FINDERS,
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
    }
)
"""Codes for which a topic or a group decides."""
