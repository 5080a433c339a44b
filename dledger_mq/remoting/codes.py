"""Request and response codes, with what each is for.

`RESPONSES` is a registry of rows: clients derive their retry rule from it, docs/errors.md is made from it, and a
test holds the numbers unique. When in doubt a row is indefinite (the message may be stored).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec


class RequestCode(IntEnum):
    """The codes of requests."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    UPDATE_AND_CREATE_TOPIC_LIST = 18
    GET_ALL_TOPIC_CONFIG = 21
    UPDATE_BROKER_CONFIG = 25
    GET_BROKER_CONFIG = 26
    GET_BROKER_RUNTIME_INFO = 28
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_MSG_STORETIME = 32
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    END_TRANSACTION = 37
    GET_CONSUMER_LIST_BY_GROUP = 38
    CHECK_TRANSACTION_STATE = 39
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    GET_ALL_CONSUMER_OFFSET = 43
    GET_ALL_DELAY_OFFSET = 45
    CHECK_CLIENT_CONFIG = 46
    UPDATE_AND_CREATE_ACL_CONFIG = 50
    DELETE_ACL_CONFIG = 51
    GET_BROKER_CLUSTER_ACL_INFO = 52
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG = 53
    GET_BROKER_CLUSTER_ACL_CONFIG = 54
    PUT_KV_CONFIG = 100
    GET_KV_CONFIG = 101
    DELETE_KV_CONFIG = 102
    REGISTER_BROKER = 103
    UNREGISTER_BROKER = 104
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    GET_TOPIC_STATS_INFO = 202
    GET_CONSUMER_CONNECTION_LIST = 203
    GET_PRODUCER_CONNECTION_LIST = 204
    WIPE_WRITE_PERM_OF_BROKER = 205
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    DELETE_SUBSCRIPTIONGROUP = 207
    GET_CONSUME_STATS = 208
    DELETE_TOPIC_IN_BROKER = 215
    DELETE_TOPIC_IN_NAMESRV = 216
    REGISTER_TOPIC_IN_NAMESRV = 217
    GET_KVLIST_BY_NAMESPACE = 219
    RESET_CONSUMER_CLIENT_OFFSET = 220
    GET_CONSUMER_STATUS_FROM_CLIENT = 221
    INVOKE_BROKER_TO_RESET_OFFSET = 222
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS = 223
    GET_TOPICS_BY_CLUSTER = 224
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST = 225
    QUERY_TOPIC_CONSUME_BY_WHO = 300
    QUERY_CONSUME_TIME_SPAN = 303
    GET_SYSTEM_TOPIC_LIST_FROM_NS = 304
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305
    CLEAN_EXPIRED_CONSUMEQUEUE = 306
    GET_CONSUMER_RUNNING_INFO = 307
    QUERY_CORRECTION_OFFSET = 308
    CONSUME_MESSAGE_DIRECTLY = 309
    SEND_MESSAGE_V2 = 310
    GET_UNIT_TOPIC_LIST = 311
    GET_HAS_UNIT_SUB_TOPIC_LIST = 312
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = 313
    CLONE_GROUP_OFFSET = 314
    VIEW_BROKER_STATS_DATA = 315
    CLEAN_UNUSED_TOPIC = 316
    GET_BROKER_CONSUME_STATS = 317
    UPDATE_NAMESRV_CONFIG = 318
    GET_NAMESRV_CONFIG = 319
    SEND_BATCH_MESSAGE = 320
    QUERY_CONSUME_QUEUE = 321
    QUERY_DATA_VERSION = 322
    RESUME_CHECK_HALF_MESSAGE = 323
    SEND_REPLY_MESSAGE = 324
    SEND_REPLY_MESSAGE_V2 = 325
    PUSH_REPLY_MESSAGE_TO_CLIENT = 326
    ADD_WRITE_PERM_OF_BROKER = 327
    GET_ALL_PRODUCER_INFO = 328
    DELETE_EXPIRED_COMMITLOG = 329
    QUERY_TOPICS_BY_CONSUMER = 343
    QUERY_SUBSCRIPTION_BY_CONSUMER = 345
    GET_TOPIC_CONFIG = 351
    GET_SUBSCRIPTIONGROUP_CONFIG = 352
    UPDATE_AND_GET_GROUP_FORBIDDEN = 353
    LITE_PULL_MESSAGE = 361
    RECALL_MESSAGE = 370
    QUERY_ASSIGNMENT = 400
    SET_MESSAGE_REQUEST_MODE = 401
    GET_BROKER_MEMBER_GROUP = 901
    BROKER_HEARTBEAT = 904
    GET_BROKER_HA_STATUS = 907
    GET_BROKER_EPOCH_CACHE = 1007
    PIN_LOG = 32201
    UNPIN_LOG = 32202
    POP_MESSAGE = 200_050
    ACK_MESSAGE = 200_051
    CHANGE_MESSAGE_INVISIBLETIME = 200_053
    NOTIFICATION = 200_054
    BATCH_ACK_MESSAGE = 200_151


class ResponseCode(IntEnum):
    """The codes of answers (docs/errors.md)."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    TOPIC_EXIST_ALREADY = 18
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FILTER_DATA_NOT_EXIST = 27
    FILTER_DATA_NOT_LATEST = 28
    INVALID_PARAMETER = 29
    TRANSACTION_SHOULD_COMMIT = 200
    TRANSACTION_SHOULD_ROLLBACK = 201
    NO_BUYER_ID = 204
    NOT_IN_CURRENT_UNIT = 205
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    NO_MESSAGE = 208
    POLLING_FULL = 209
    POLLING_TIMEOUT = 210
    FLOW_CONTROL = 215
    ILLEGAL_OPERATION = 604
    GO_AWAY = 1500


class ResponseRow(msgspec.Struct, frozen=True):
    """The conclusions that a client may draw from a response code.

    Attributes:
        code: the number on the wire.
        definite: the client knows whether the request took effect (for a failure: it did not).
        retriable: trying again, perhaps at another broker, can help.
        route_stale: the route should be asked again before the next try.
        prose: what it means, for people.
    """

    code: ResponseCode
    definite: bool
    retriable: bool
    route_stale: bool
    prose: str


def _row(code: ResponseCode, marks: str, prose: str) -> ResponseRow:
    """Make a row; `marks` holds d for definite, r for retriable, s for a stale route."""
    return ResponseRow(code, "d" in marks, "r" in marks, "s" in marks, prose)


RESPONSES: Final = {
    row.code: row
    for row in (
        _row(ResponseCode.SUCCESS, "d", "It was done."),
        _row(ResponseCode.SYSTEM_ERROR, "r", "Something unexpected; the remark says what."),
        _row(
            ResponseCode.SYSTEM_BUSY, "dr", "A bound on pending work is reached; nothing was done."
        ),
        _row(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "d", "This server does not know the request."
        ),
        _row(ResponseCode.FLUSH_DISK_TIMEOUT, "", "Stored, but not yet confirmed on disk."),
        _row(ResponseCode.SLAVE_NOT_AVAILABLE, "", "Stored, but no replica is connected."),
        _row(
            ResponseCode.FLUSH_SLAVE_TIMEOUT,
            "",
            "Stored here; a majority has not confirmed in time.",
        ),
        _row(ResponseCode.MESSAGE_ILLEGAL, "d", "The message breaks a limit of size or form."),
        _row(ResponseCode.SERVICE_NOT_AVAILABLE, "drs", "The store takes no writes here and now."),
        _row(ResponseCode.VERSION_NOT_SUPPORTED, "d", "The client is too old for this."),
        _row(ResponseCode.NO_PERMISSION, "drs", "Topic, group, broker or account forbids it."),
        _row(ResponseCode.TOPIC_NOT_EXIST, "drs", "The topic does not exist and is not created."),
        _row(ResponseCode.TOPIC_EXIST_ALREADY, "d", "The topic exists already."),
        _row(ResponseCode.PULL_NOT_FOUND, "dr", "There is nothing new in the queue."),
        _row(
            ResponseCode.PULL_RETRY_IMMEDIATELY, "dr", "Nothing matched in the range that was read."
        ),
        _row(
            ResponseCode.PULL_OFFSET_MOVED,
            "dr",
            "The offset is outside the queue; a right one is given.",
        ),
        _row(ResponseCode.QUERY_NOT_FOUND, "d", "There is no such offset, key or configuration."),
        _row(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, "d", "The subscription's expression is wrong."
        ),
        _row(
            ResponseCode.SUBSCRIPTION_NOT_EXIST,
            "dr",
            "The group has not sent this subscription yet.",
        ),
        _row(ResponseCode.SUBSCRIPTION_NOT_LATEST, "dr", "The group's subscription is older here."),
        _row(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "dr", "The consumer group does not exist."),
        _row(
            ResponseCode.FILTER_DATA_NOT_EXIST,
            "dr",
            "The SQL92 filter of the group's heartbeat is wrong.",
        ),
        _row(ResponseCode.FILTER_DATA_NOT_LATEST, "dr", "The SQL92 filter is older here."),
        _row(ResponseCode.INVALID_PARAMETER, "d", "A field of the request is outside its range."),
        _row(ResponseCode.TRANSACTION_SHOULD_COMMIT, "d", "The transaction was committed before."),
        _row(
            ResponseCode.TRANSACTION_SHOULD_ROLLBACK,
            "d",
            "The transaction was rolled back, or given up, before.",
        ),
        _row(ResponseCode.NO_BUYER_ID, "dr", "Unit routing: no buyer id."),
        _row(ResponseCode.NOT_IN_CURRENT_UNIT, "dr", "Unit routing: another unit serves this."),
        _row(ResponseCode.CONSUMER_NOT_ONLINE, "d", "No consumer of that group is connected."),
        _row(ResponseCode.CONSUME_MSG_TIMEOUT, "", "The client did not answer in time."),
        _row(ResponseCode.NO_MESSAGE, "d", "There is no message at that offset."),
        _row(ResponseCode.POLLING_FULL, "dr", "Too many requests are held already."),
        _row(ResponseCode.POLLING_TIMEOUT, "dr", "Nothing came while the request was held."),
        _row(ResponseCode.FLOW_CONTROL, "dr", "Slow down; nothing was done."),
        _row(ResponseCode.ILLEGAL_OPERATION, "d", "The operation is not allowed for this message."),
        _row(ResponseCode.GO_AWAY, "drs", "The server is going; use another connection."),
    )
}

REQUESTS: Final[dict[RequestCode, str]] = {
    RequestCode.SEND_MESSAGE: "store one message (long field names)",
    RequestCode.PULL_MESSAGE: "read messages of a queue, holding the request when there are none",
    RequestCode.QUERY_MESSAGE: "find messages by key",
    RequestCode.QUERY_CONSUMER_OFFSET: "a group's offset in a queue",
    RequestCode.UPDATE_CONSUMER_OFFSET: "commit a group's offset in a queue",
    RequestCode.UPDATE_AND_CREATE_TOPIC: "create or change a topic",
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: "create or change several topics",
    RequestCode.GET_ALL_TOPIC_CONFIG: "all topics of a broker",
    RequestCode.UPDATE_BROKER_CONFIG: "change settings of a running broker",
    RequestCode.GET_BROKER_CONFIG: "the settings of a broker",
    RequestCode.GET_BROKER_RUNTIME_INFO: "statistics of a broker",
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: "the queue offset at a time",
    RequestCode.GET_MAX_OFFSET: "the next queue offset to be written",
    RequestCode.GET_MIN_OFFSET: "the first queue offset that is kept",
    RequestCode.GET_EARLIEST_MSG_STORETIME: "when the oldest message of a queue was stored",
    RequestCode.VIEW_MESSAGE_BY_ID: "one message by its physical offset",
    RequestCode.HEART_BEAT: "a client reports its groups and subscriptions",
    RequestCode.UNREGISTER_CLIENT: "a client leaves its groups",
    RequestCode.CONSUMER_SEND_MSG_BACK: "give a message back to be delivered again later",
    RequestCode.END_TRANSACTION: "commit or roll back a half message",
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: "the client ids of a consumer group",
    RequestCode.CHECK_TRANSACTION_STATE: "ask a producer how a transaction ended (broker to client)",
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: "a group's membership changed (broker to client)",
    RequestCode.LOCK_BATCH_MQ: "lock queues for orderly consumption",
    RequestCode.UNLOCK_BATCH_MQ: "release such locks",
    RequestCode.GET_ALL_CONSUMER_OFFSET: "all consumer offsets of a broker",
    RequestCode.GET_ALL_DELAY_OFFSET: "progress of the delay levels",
    RequestCode.CHECK_CLIENT_CONFIG: "check a subscription before it is used",
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: "make or change an account of a broker's access rules",
    RequestCode.DELETE_ACL_CONFIG: "delete such an account",
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: "how often a broker's access rules were changed, and when",
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: "set the addresses whose clients may do everything",
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: "a broker's access rules, without secret keys",
    RequestCode.PUT_KV_CONFIG: "name server: set a configuration value",
    RequestCode.GET_KV_CONFIG: "name server: read a configuration value",
    RequestCode.DELETE_KV_CONFIG: "name server: delete a configuration value",
    RequestCode.REGISTER_BROKER: "name server: a broker reports its address and topics",
    RequestCode.UNREGISTER_BROKER: "name server: a broker leaves",
    RequestCode.GET_ROUTEINFO_BY_TOPIC: "name server: the route of a topic",
    RequestCode.GET_BROKER_CLUSTER_INFO: "name server: all brokers and clusters",
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: "create or change a consumer group",
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: "all consumer groups of a broker",
    RequestCode.GET_TOPIC_STATS_INFO: "offsets of all queues of a topic",
    RequestCode.GET_CONSUMER_CONNECTION_LIST: "the connected members of a consumer group",
    RequestCode.GET_PRODUCER_CONNECTION_LIST: "the connected members of a producer group",
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: "name server: take the write permission off a broker's topics",
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: "name server: all topics",
    RequestCode.DELETE_SUBSCRIPTIONGROUP: "delete a consumer group",
    RequestCode.GET_CONSUME_STATS: "how far a group has consumed",
    RequestCode.DELETE_TOPIC_IN_BROKER: "delete a topic from a broker",
    RequestCode.DELETE_TOPIC_IN_NAMESRV: "name server: delete a topic's route",
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: "name server: register a topic (5.x)",
    RequestCode.GET_KVLIST_BY_NAMESPACE: "name server: all configuration values of a namespace",
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: "set a consumer's offsets (broker to client)",
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: "a consumer's offsets (broker to client)",
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: "set a group's offsets to a time",
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: "the offsets of a group's members",
    RequestCode.GET_TOPICS_BY_CLUSTER: "name server: the topics of a cluster",
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: "create or change several consumer groups",
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: "the groups that consume a topic",
    RequestCode.QUERY_CONSUME_TIME_SPAN: "times of what a group has and has not consumed",
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: "name server: topics named after clusters and brokers",
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: "the system topics of a broker",
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: "remove expired consume queue files",
    RequestCode.GET_CONSUMER_RUNNING_INFO: "what a consumer is doing",
    RequestCode.QUERY_CORRECTION_OFFSET: "offsets of a group compared with others",
    RequestCode.CONSUME_MESSAGE_DIRECTLY: "let a consumer handle one message now",
    RequestCode.SEND_MESSAGE_V2: "store one message (letters as field names)",
    RequestCode.GET_UNIT_TOPIC_LIST: "name server: unit topics",
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: "name server: topics with unit subscriptions",
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: "name server: the same, not unit topics themselves",
    RequestCode.CLONE_GROUP_OFFSET: "copy a group's offsets to another group",
    RequestCode.VIEW_BROKER_STATS_DATA: "one statistic of a broker",
    RequestCode.CLEAN_UNUSED_TOPIC: "remove what is left of deleted topics",
    RequestCode.GET_BROKER_CONSUME_STATS: "how far all groups have consumed",
    RequestCode.UPDATE_NAMESRV_CONFIG: "name server: change settings",
    RequestCode.GET_NAMESRV_CONFIG: "name server: the settings",
    RequestCode.SEND_BATCH_MESSAGE: "store several messages of one topic",
    RequestCode.QUERY_CONSUME_QUEUE: "units of a consume queue",
    RequestCode.QUERY_DATA_VERSION: "name server: is what it knows of a broker still right",
    RequestCode.RESUME_CHECK_HALF_MESSAGE: "check a half message again",
    RequestCode.SEND_REPLY_MESSAGE: "answer a request message (long field names)",
    RequestCode.SEND_REPLY_MESSAGE_V2: "answer a request message (letters as field names)",
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: "hand such an answer to the requester (broker to client)",
    RequestCode.ADD_WRITE_PERM_OF_BROKER: "name server: give the write permission back",
    RequestCode.GET_ALL_PRODUCER_INFO: "all connected producers",
    RequestCode.DELETE_EXPIRED_COMMITLOG: "delete expired log files now",
    RequestCode.QUERY_TOPICS_BY_CONSUMER: "the topics that a group has offsets for",
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: "a group's subscription of a topic",
    RequestCode.GET_TOPIC_CONFIG: "one topic of a broker",
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: "one consumer group of a broker",
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: "forbid or allow a group to read a topic",
    RequestCode.LITE_PULL_MESSAGE: "PULL_MESSAGE from the 5.x lite pull consumer",
    RequestCode.RECALL_MESSAGE: "take a delayed message back (5.3)",
    RequestCode.QUERY_ASSIGNMENT: "queues assigned by the broker (POP, 5.x)",
    RequestCode.SET_MESSAGE_REQUEST_MODE: "pull or pop for a group and topic (5.x)",
    RequestCode.GET_BROKER_MEMBER_GROUP: "name server: the addresses of a broker name",
    RequestCode.BROKER_HEARTBEAT: "name server: a broker is alive (5.x)",
    RequestCode.GET_BROKER_HA_STATUS: "how far the other members are (5.x)",
    RequestCode.GET_BROKER_EPOCH_CACHE: "the terms of a broker's log (5.x)",
    RequestCode.PIN_LOG: "ours: keep the log from a position on, for a while",
    RequestCode.UNPIN_LOG: "ours: remove such a pin",
    RequestCode.POP_MESSAGE: "hand out messages for a time (5.x)",
    RequestCode.ACK_MESSAGE: "acknowledge a popped message (5.x)",
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: "hand a popped message to nobody else for another time (5.x)",
    RequestCode.NOTIFICATION: "is there something to pop (5.x)",
    RequestCode.BATCH_ACK_MESSAGE: "acknowledge popped messages (5.2)",
}


def unsupported_remark(code: int) -> str:
    """Return the remark of REQUEST_CODE_NOT_SUPPORTED, with Java's leading space."""
    return f" request type {code} not supported"


DISK_FULL: Final = "[DISK_FULL]"
"""Begins the remark of an answer SERVICE_NOT_AVAILABLE whose cause lasts until somebody makes room."""


def is_definite(code: int) -> bool:
    """Return whether a failure with this code means that nothing was done. When in doubt, False."""
    row = RESPONSES.get(code)  # type: ignore[call-overload]  # an int finds its IntEnum key
    return row is not None and row.definite
