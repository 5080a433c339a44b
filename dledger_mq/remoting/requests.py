"""The hot requests, read straight into typed fields: sends (10, 310, 320) and pulls (11, 361).

`decode_request` is what a server calls for every frame. One pass of a typed JSON decoder reads the
header and its ext fields, numbers given as text included, in well under a microsecond. Whatever that
pass refuses (ROCKETMQ headers, an odd type, a missing field, another code) is read again the general
way, so there is one definition of what is an error: FrameError for a broken header, FieldError for a
field. Send headers come with long names (10) or with letters (310, 320); both give the same attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar, Final

import msgspec

from dledger_mq.message.numbers import QueueId, QueueOffset
from dledger_mq.remoting import fields
from dledger_mq.remoting.codes import RequestCode
from dledger_mq.remoting.errors import FieldError
from dledger_mq.remoting.frame import Frame, SerializeType
from dledger_mq.remoting.header import (
    FLAG_ONEWAY,
    FLAG_RESPONSE,
    LANGUAGE,
    RemotingCommand,
    decode_command,
)

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_QueueId = Annotated[QueueId, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_QueueOffset = Annotated[QueueOffset, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

SINK_BATCH: Final = "dledgerSinkBatch"
ROWS_STORED: Final = "dledgerRowsStored"
"""In the answer to a send with SINK_BATCH: 1 for each row that was stored now, 0 for one already there."""
NEWER_BATCH: Final = "dledgerNewerBatch"
"""In such an answer, where none was stored because the sink has begun a higher batch: the number of that one."""

PULL_COMMIT_OFFSET: Final = 0x1
PULL_SUSPEND: Final = 0x2
PULL_SUBSCRIPTION: Final = 0x4
PULL_CLASS_FILTER: Final = 0x8
PULL_LITE: Final = 0x10


class SendFields(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The ext fields of a send, letters as names (310, 320).

    Attributes:
        queue_id: negative lets the broker choose.
        properties: the properties text (0x01 and 0x02 as separators); may be None.
        max_reconsume_times: None when the client did not say.
        is_batch: the body holds several messages; decides, not the code.
        sink_batch: the messages are rows of a sink's batch, "batch id, space, sink id", to be stored if
            they are not there yet; ours alone (docs/protocol.md).
    """

    producer_group: str = msgspec.field(name="a")
    topic: str = msgspec.field(name="b")
    default_topic: str = msgspec.field(name="c", default="")
    default_topic_queue_nums: Int32 = msgspec.field(name="d", default=0)
    queue_id: _QueueId = msgspec.field(name="e")
    sys_flag: Int32 = msgspec.field(name="f")
    born_timestamp_ms: Int64 = msgspec.field(name="g")
    flag: Int32 = msgspec.field(name="h")
    properties: str | None = msgspec.field(name="i", default=None)
    reconsume_times: Int32 | None = msgspec.field(name="j", default=0)
    unit_mode: bool | None = msgspec.field(name="k", default=False)
    max_reconsume_times: Int32 | None = msgspec.field(name="l", default=None)
    is_batch: bool | None = msgspec.field(name="m", default=False)
    sink_batch: str | None = msgspec.field(name=SINK_BATCH, default=None)


class _SendFieldsLongNames(SendFields, frozen=True, gc=False, kw_only=True):
    """The ext fields of a send with long names (10)."""

    producer_group: str = msgspec.field(name="producerGroup")
    topic: str = msgspec.field(name="topic")
    default_topic: str = msgspec.field(name="defaultTopic", default="")
    default_topic_queue_nums: Int32 = msgspec.field(name="defaultTopicQueueNums", default=0)
    queue_id: _QueueId = msgspec.field(name="queueId")
    sys_flag: Int32 = msgspec.field(name="sysFlag")
    born_timestamp_ms: Int64 = msgspec.field(name="bornTimestamp")
    flag: Int32 = msgspec.field(name="flag")
    properties: str | None = msgspec.field(name="properties", default=None)
    reconsume_times: Int32 | None = msgspec.field(name="reconsumeTimes", default=0)
    unit_mode: bool | None = msgspec.field(name="unitMode", default=False)
    max_reconsume_times: Int32 | None = msgspec.field(name="maxReconsumeTimes", default=None)
    is_batch: bool | None = msgspec.field(name="batch", default=False)


class PullFields(msgspec.Struct, frozen=True, gc=False, kw_only=True, rename="camel"):
    """The ext fields of a pull.

    Attributes:
        sys_flag: PULL_ bits.
        commit_offset: counts only with PULL_COMMIT_OFFSET, and only when not negative.
        subscription: the expression, with PULL_SUBSCRIPTION.
        sub_version: version of the subscription as the client counts it.
        expression_type: "TAG" or "SQL92".
        max_msg_bytes: None when the client did not say.
    """

    consumer_group: str
    topic: str
    queue_id: _QueueId
    queue_offset: _QueueOffset
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: _QueueOffset
    suspend_timeout_millis: Int64
    subscription: str | None = None
    sub_version: Int64 = 0
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None


class _Envelope(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    code: ClassVar[int]
    opaque: Int32
    flag: Int32 = 0
    language: str = LANGUAGE
    version: Int32 = 0

    @property
    def is_oneway(self) -> bool:
        """True if the sender asks for no answer."""
        return bool(self.flag & FLAG_ONEWAY)


class SendRequest(
    _Envelope,
    frozen=True,
    kw_only=True,
    gc=False,
    tag_field="code",
    tag=int(RequestCode.SEND_MESSAGE_V2),
):
    """A send; the message is the body of its frame."""

    code: ClassVar[int] = RequestCode.SEND_MESSAGE_V2
    fields: SendFields = msgspec.field(name="extFields")


class _SendBatchRequest(
    SendRequest, frozen=True, kw_only=True, gc=False, tag=int(RequestCode.SEND_BATCH_MESSAGE)
):
    code: ClassVar[int] = RequestCode.SEND_BATCH_MESSAGE


class _SendRequestV1(
    SendRequest, frozen=True, kw_only=True, gc=False, tag=int(RequestCode.SEND_MESSAGE)
):
    code: ClassVar[int] = RequestCode.SEND_MESSAGE
    fields: _SendFieldsLongNames = msgspec.field(name="extFields")


class PullRequest(
    _Envelope,
    frozen=True,
    kw_only=True,
    gc=False,
    tag_field="code",
    tag=int(RequestCode.PULL_MESSAGE),
):
    """A pull."""

    code: ClassVar[int] = RequestCode.PULL_MESSAGE
    fields: PullFields = msgspec.field(name="extFields")


class _LitePullRequest(
    PullRequest, frozen=True, kw_only=True, gc=False, tag=int(RequestCode.LITE_PULL_MESSAGE)
):
    code: ClassVar[int] = RequestCode.LITE_PULL_MESSAGE


_decode_hot: Final = msgspec.json.Decoder(
    SendRequest | _SendBatchRequest | _SendRequestV1 | PullRequest | _LitePullRequest, strict=False
).decode


def decode_request(frame: Frame) -> SendRequest | PullRequest | RemotingCommand:
    """Read the header of a frame that a client sent; answers come as RemotingCommand too.

    The body of a send or pull is `frame.body`.

    Raises:
        FrameError: the header cannot be read; close the connection.
        FieldError: a field of a send or pull is missing or impossible; its `opaque` is that of the
            request, for the answer.
    """
    if frame.serialize_type == SerializeType.JSON:
        try:
            request: SendRequest | PullRequest = _decode_hot(frame.header)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            pass  # Not one of the hot codes, or not quite right: the general way says what it is.
        else:
            if not request.flag & FLAG_RESPONSE:
                return request
    command = decode_command(frame)
    kind = None if command.is_response else _SLOW.get(command.code)
    if kind is None:
        return command
    try:
        return kind(command)
    except FieldError as error:
        error.opaque = command.opaque
        raise


def send_request_of(command: RemotingCommand) -> SendRequest:
    """Make a send of a command that was read the general way, with the names that its code has.

    Raises:
        FieldError: a field is missing or impossible.
    """
    return _send(command, SEND_LONG_NAMES if command.code in _LONG_NAME_CODES else _LETTERS)


_LETTERS: Final = "abcdefghijklm"
_LONG_NAME_CODES: Final = (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE)

SEND_LONG_NAMES: Final = (
    "producerGroup",
    "topic",
    "defaultTopic",
    "defaultTopicQueueNums",
    "queueId",
    "sysFlag",
    "bornTimestamp",
    "flag",
    "properties",
    "reconsumeTimes",
    "unitMode",
    "maxReconsumeTimes",
    "batch",
)
"""The long names in the order of the letters a to m."""


def _send(command: RemotingCommand, names: Sequence[str]) -> SendRequest:
    """Decode a send the general way; `names` are the 13 field names in the order of the letters a to m."""
    ext = command.ext
    a, b, c, d, e, f, g, h, i, j, k, l, m = names  # noqa: E741 - the protocol's letters
    return _SEND_CLASSES.get(command.code, SendRequest)(
        opaque=command.opaque,
        flag=command.flag,
        language=command.language,
        version=command.version,
        fields=SendFields(
            producer_group=fields.text(ext, a),
            topic=fields.text(ext, b),
            default_topic=ext.get(c, ""),
            default_topic_queue_nums=fields.int32(ext, d, 0),
            queue_id=QueueId(fields.int32(ext, e)),
            sys_flag=fields.int32(ext, f),
            born_timestamp_ms=fields.int64(ext, g),
            flag=fields.int32(ext, h),
            properties=ext.get(i),
            reconsume_times=fields.int32(ext, j, 0),
            unit_mode=fields.boolean(ext, k, default=False),
            max_reconsume_times=fields.int32(ext, l, None),
            is_batch=fields.boolean(ext, m, default=False),
            sink_batch=ext.get(SINK_BATCH),
        ),
    )


def pull_request(command: RemotingCommand) -> PullRequest:
    """Make a pull of a command that was read the general way.

    Raises:
        FieldError: a field is missing or impossible.
    """
    ext = command.ext
    kind = _LitePullRequest if command.code == RequestCode.LITE_PULL_MESSAGE else PullRequest
    return kind(
        opaque=command.opaque,
        flag=command.flag,
        language=command.language,
        version=command.version,
        fields=PullFields(
            consumer_group=fields.text(ext, "consumerGroup"),
            topic=fields.text(ext, "topic"),
            queue_id=QueueId(fields.int32(ext, "queueId")),
            queue_offset=QueueOffset(fields.int64(ext, "queueOffset")),
            max_msg_nums=fields.int32(ext, "maxMsgNums"),
            sys_flag=fields.int32(ext, "sysFlag"),
            commit_offset=QueueOffset(fields.int64(ext, "commitOffset")),
            suspend_timeout_millis=fields.int64(ext, "suspendTimeoutMillis"),
            subscription=ext.get("subscription"),
            sub_version=fields.int64(ext, "subVersion", 0),
            expression_type=fields.optional_text(ext, "expressionType"),
            max_msg_bytes=fields.int32(ext, "maxMsgBytes", None),
        ),
    )


_SEND_CLASSES: Final[dict[int, type[SendRequest]]] = {
    RequestCode.SEND_MESSAGE: _SendRequestV1,
    RequestCode.SEND_BATCH_MESSAGE: _SendBatchRequest,
}

_SLOW: Final[dict[int, Callable[[RemotingCommand], SendRequest | PullRequest]]] = {
    RequestCode.SEND_MESSAGE: send_request_of,
    RequestCode.SEND_MESSAGE_V2: send_request_of,
    RequestCode.SEND_BATCH_MESSAGE: send_request_of,
    RequestCode.PULL_MESSAGE: pull_request,
    RequestCode.LITE_PULL_MESSAGE: pull_request,
}
