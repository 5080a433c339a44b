"""Control records: the broker's own data as messages on system topics (docs/formats/control.md).

The body is a msgpack map with the command's name in `op` and the version of the format in `v`. A body
that is no command folds into a refusal; a command of a newer version stops the node, because replicas
that know it would carry it out.

Nothing here knows what a command does (broker/store/commands.py).
"""

from __future__ import annotations

from typing import Annotated, Final, get_args

import msgspec
from msgspec import Meta

from broker.store.errors import NewerVersionError
from broker.store.groups import SubscriptionGroupConfig
from broker.store.pins import NAME_CHARS_MAX
from broker.store.retention import ForgetCause
from broker.store.topics import CONTROL_TOPICS, QUEUE_COUNT_MAX, TopicConfig
from dledger.raft.ids import NO_INDEX, Index, Position
from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset
from dledger_mq.message.row_keys import SINK_ID_BYTES_MAX

VERSION: Final = 1

TOPICS, GROUPS, OFFSETS, LOCKS, SCHEDULE, DIGESTS, TRANSACTIONS, SINKS, RETENTION, SETTINGS = (
    CONTROL_TOPICS
)

_LONG: Final = Meta(ge=0, le=2**63 - 1)
_QueueId = Annotated[QueueId, Meta(ge=0, le=2**31 - 1)]
_QueueOffset = Annotated[QueueOffset, _LONG]
_PhysicalOffset = Annotated[PhysicalOffset, _LONG]
_Index = Annotated[Index, _LONG]
_Position = Annotated[Position, _LONG]
_Long = Annotated[int, _LONG]
_DelayMs = Annotated[int, Meta(ge=0, le=2**40)]
_Name = Annotated[str, Meta(min_length=1, max_length=255)]
_Bits = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class MalformedControlError(ValueError):
    """The body of a record on a control topic is not a command of that topic."""


class _Command(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="op"):
    pass


class PutTopic(_Command, frozen=True, tag="put_topic"):
    """Create or replace a topic; `only_if_missing` for automatic creation, where the first one wins."""

    config: TopicConfig
    only_if_missing: bool = False
    v: int = VERSION


class DeleteTopic(_Command, frozen=True, tag="delete_topic"):
    """Remove a topic, its consume queues and the offsets committed in it."""

    name: str
    v: int = VERSION


class PutGroup(_Command, frozen=True, tag="put_group"):
    """Create or replace a consumer group."""

    config: SubscriptionGroupConfig
    only_if_missing: bool = False
    v: int = VERSION


class DeleteGroup(_Command, frozen=True, tag="delete_group"):
    """Remove a consumer group, and its offsets where asked."""

    name: str
    clean_offsets: bool = False
    v: int = VERSION


class ForbidTopic(_Command, frozen=True, tag="forbid_topic"):
    """Set what a group may not do with a topic (rule B12)."""

    group: str
    topic: str
    bits: _Bits
    v: int = VERSION


class OffsetCommit(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One consumer offset: the next queue offset that the group will consume.

    `client_id` counts while the queue is locked; empty when the leader does not know who commits.
    """

    group: str
    topic: str
    queue_id: _QueueId
    offset: _QueueOffset
    client_id: str = ""


COMMITS_PER_COMMAND: Final = 1000
"""Offsets that tools put into one record; there may be many more to set."""


class CommitOffsets(_Command, frozen=True, tag="commit_offsets"):
    """Store consumer offsets, many in one record; `is_forced` for resets, which may rewind."""

    commits: list[OffsetCommit]
    is_forced: bool = False
    v: int = VERSION


class ResetOffsets(_Command, frozen=True, tag="reset_offsets"):
    """Set a group's offsets in a topic, (queue id, offset) each, and let no client commit that does not follow it."""

    group: _Name
    topic: _Name
    offsets: Annotated[
        list[tuple[_QueueId, _QueueOffset]], Meta(min_length=1, max_length=QUEUE_COUNT_MAX)
    ]
    v: int = VERSION


class AdmitToReset(_Command, frozen=True, tag="admit_to_reset"):
    """A client follows the reset of a queue whose record stands at `since`: its commits count again."""

    group: _Name
    topic: _Name
    queue_id: _QueueId
    since: _PhysicalOffset
    client_id: Annotated[str, Meta(max_length=255)]
    v: int = VERSION


class RemoveOffsets(_Command, frozen=True, tag="remove_offsets"):
    """Forget a group's offsets in one topic, or in all."""

    group: str
    topic: str | None = None
    v: int = VERSION


class LockQueues(_Command, frozen=True, tag="lock_queues"):
    """Ask for queues on behalf of a client (rule P2); each is (topic, queue id)."""

    group: str
    client_id: str
    queues: list[tuple[str, _QueueId]]
    v: int = VERSION


class UnlockQueues(_Command, frozen=True, tag="unlock_queues"):
    """Give queues back; only the holder can."""

    group: str
    client_id: str
    queues: list[tuple[str, _QueueId]]
    v: int = VERSION


class SetDelayLevels(_Command, frozen=True, tag="set_delay_levels"):
    """Replace the delays of levels 1, 2, ...; replicas must not read them from their configuration."""

    delays_ms: Annotated[list[_DelayMs], Meta(min_length=1, max_length=1024)]
    v: int = VERSION


class AdvanceSchedule(_Command, frozen=True, tag="advance_schedule"):
    """Delayed messages first..end of a level were delivered, by the records before it in its entry."""

    level: Annotated[int, Meta(ge=1, le=1024)]
    first: _QueueOffset
    end: _QueueOffset
    v: int = VERSION


class MarkDigests(_Command, frozen=True, tag="mark_digests"):
    """Every replica notes its digests after this entry; the leader's at an earlier mark come along."""

    marked_index: _Index = NO_INDEX
    digests: dict[str, Annotated[int, Meta(ge=0, le=2**32 - 1)]] = {}
    v: int = VERSION


class CheckTransactions(_Command, frozen=True, tag="check_transactions"):
    """The producers of open half messages (by half queue offset) are asked how they ended, at a time."""

    queue_offsets: Annotated[list[_QueueOffset], Meta(max_length=4096)]
    at_ms: _Long
    v: int = VERSION


_DueMs = Annotated[int, Meta(ge=0, le=10**18)]


class DeliverTimers(_Command, frozen=True, tag="deliver_timers"):
    """Pending messages (due time in ms, physical offset) were delivered by the records before it."""

    timers: list[tuple[_DueMs, _PhysicalOffset]]
    v: int = VERSION


class RecallTimer(_Command, frozen=True, tag="recall_timer"):
    """Take back what waits at these physical offsets for this due time; `key` names it (`timers.py`)."""

    due_ms: _DueMs
    key: Annotated[bytes, Meta(min_length=8, max_length=8)]
    offsets: list[_PhysicalOffset]
    v: int = VERSION


class ResumeTransaction(_Command, frozen=True, tag="resume_transaction"):
    """The checks of an open half message (by half queue offset) are counted anew from a time on."""

    queue_offset: _QueueOffset
    at_ms: _Long
    v: int = VERSION


class TakeRows(_Command, frozen=True, tag="take_rows"):
    """The messages before it in its entry are rows of a sink's batch, with these keys (8 bytes each).

    A higher batch than the sink's current one ends that; without keys it does nothing but that.
    """

    sink_id: Annotated[str, Meta(min_length=1, max_length=SINK_ID_BYTES_MAX)]
    batch_id: _Long
    keys: bytes = b""
    v: int = VERSION


class ForgetBefore(_Command, frozen=True, tag="forget_before"):
    """Everything before an entry, which begins at this position, is forgotten, unless it is still needed."""

    index: _Index
    position: _Position
    cause: ForgetCause
    v: int = VERSION


HIDDEN_TOPICS_MAX: Final = 256
"""Topics in one record: each may have many queues."""


class HideBefore(_Command, frozen=True, tag="hide_before"):
    """Messages of these topics that stand before a position, one for each, are shown no more."""

    topics: Annotated[list[tuple[str, _Position]], Meta(max_length=HIDDEN_TOPICS_MAX)]
    v: int = VERSION


_PinName = Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX)]


class PutPin(_Command, frozen=True, tag="put_pin"):
    """Keep the log from a position on, for a time after this record and up to a size; `by` is who asks for it."""

    name: _PinName
    position: _Position
    keep_ms: _Long
    keep_bytes: _Long
    by: Annotated[str, Meta(max_length=256)]
    v: int = VERSION


class DropPin(_Command, frozen=True, tag="drop_pin"):
    """Remove a pin."""

    name: _PinName
    v: int = VERSION


SETTING_KEY_CHARS_MAX: Final = 128
SETTING_CHARS_MAX: Final = 4096


class PutSettings(_Command, frozen=True, tag="put_settings"):
    """Change settings of the group; an empty value removes a key. `by` is the address of who asked for it."""

    values: Annotated[
        dict[
            Annotated[str, Meta(min_length=1, max_length=SETTING_KEY_CHARS_MAX)],
            Annotated[str, Meta(max_length=SETTING_CHARS_MAX)],
        ],
        Meta(min_length=1, max_length=64),
    ]
    by: Annotated[str, Meta(max_length=256)]
    v: int = VERSION


POPPED_MAX: Final = 1024
"""Messages that one record hands out, acknowledges or drops."""

_PopTime = Annotated[int, Meta(ge=0, le=2**42 - 1)]
_InvisibleMs = Annotated[int, Meta(ge=1, le=2**33)]
_Handles = Annotated[list[tuple[_QueueOffset, _PopTime]], Meta(max_length=POPPED_MAX)]


class PopMessages(_Command, frozen=True, tag="pop_messages"):
    """Hand out messages of a queue to a consumer of a group, and to nobody else for `invisible_ms`.

    New ones (`taken`, counted from `first`) if the group stands at `at`, None for nowhere; it goes on to `end` with it,
    in order once they are acknowledged. `again` names others, (offset, pop time) each, that were handed out before.
    """

    group: _Name
    topic: _Name
    queue_id: _QueueId
    at: _QueueOffset | None
    first: _QueueOffset
    end: _QueueOffset
    taken: Annotated[list[_QueueOffset], Meta(max_length=POPPED_MAX)]
    again: _Handles
    invisible_ms: _InvisibleMs
    is_ordered: bool = False
    attempt_id: Annotated[str, Meta(max_length=255)] = ""
    v: int = VERSION


class AckMessages(_Command, frozen=True, tag="ack_messages"):
    """Messages, (offset, pop time) each, that were handed out are acknowledged."""

    group: _Name
    topic: _Name
    queue_id: _QueueId
    handles: _Handles
    v: int = VERSION


class ChangeInvisible(_Command, frozen=True, tag="change_invisible"):
    """A message in flight is handed out to nobody else for so long from now on; its handle is another one then."""

    group: _Name
    topic: _Name
    queue_id: _QueueId
    offset: _QueueOffset
    popped_ms: _PopTime
    invisible_ms: _InvisibleMs
    v: int = VERSION


class DropPopped(_Command, frozen=True, tag="drop_popped"):
    """Messages, (offset, pop time) each, whose time was over are in flight no more: their copies stand before it."""

    group: _Name
    topic: _Name
    queue_id: _QueueId
    handles: _Handles
    v: int = VERSION


class SetRequestMode(_Command, frozen=True, tag="set_request_mode"):
    """The way in which clients of a group that let the broker share out a topic's queues consume it (401)."""

    group: _Name
    topic: _Name
    is_pop: bool
    share_count: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    v: int = VERSION


PopCommand = PopMessages | AckMessages | ChangeInvisible | DropPopped | SetRequestMode

Command = (
    PutTopic
    | DeleteTopic
    | PutGroup
    | DeleteGroup
    | ForbidTopic
    | CommitOffsets
    | ResetOffsets
    | AdmitToReset
    | RemoveOffsets
    | PopMessages
    | AckMessages
    | ChangeInvisible
    | DropPopped
    | SetRequestMode
    | LockQueues
    | UnlockQueues
    | SetDelayLevels
    | AdvanceSchedule
    | MarkDigests
    | CheckTransactions
    | ResumeTransaction
    | DeliverTimers
    | RecallTimer
    | TakeRows
    | ForgetBefore
    | HideBefore
    | PutPin
    | DropPin
    | PutSettings
)

_TOPIC_OF: Final[dict[type[Command], str]] = {
    PutTopic: TOPICS,
    DeleteTopic: TOPICS,
    PutGroup: GROUPS,
    DeleteGroup: GROUPS,
    ForbidTopic: GROUPS,
    CommitOffsets: OFFSETS,
    ResetOffsets: OFFSETS,
    AdmitToReset: OFFSETS,
    RemoveOffsets: OFFSETS,
    PopMessages: OFFSETS,
    AckMessages: OFFSETS,
    ChangeInvisible: OFFSETS,
    DropPopped: OFFSETS,
    SetRequestMode: OFFSETS,
    LockQueues: LOCKS,
    UnlockQueues: LOCKS,
    SetDelayLevels: SCHEDULE,
    AdvanceSchedule: SCHEDULE,
    MarkDigests: DIGESTS,
    CheckTransactions: TRANSACTIONS,
    ResumeTransaction: TRANSACTIONS,
    DeliverTimers: SCHEDULE,
    RecallTimer: SCHEDULE,
    TakeRows: SINKS,
    ForgetBefore: RETENTION,
    HideBefore: RETENTION,
    PutPin: RETENTION,
    DropPin: RETENTION,
    PutSettings: SETTINGS,
}

COMMAND_NAMES: Final = frozenset(str(each.__struct_config__.tag) for each in _TOPIC_OF)
"""The names in `op` of all commands that this version carries out."""

assert _TOPIC_OF.keys() == set(get_args(Command)), "each command stands on one topic"


class _Version(msgspec.Struct):
    v: int


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_version_decoder = msgspec.msgpack.Decoder(_Version)


def control_topic(command: Command) -> str:
    """Return the topic on which the command must stand; its queue id is 0."""
    return _TOPIC_OF[type(command)]


def encode_control(command: Command) -> tuple[bytes, bytes]:
    """Return topic and body of the record that carries the command. It needs no properties."""
    return control_topic(command).encode(), _encoder.encode(command)


def decode_control(topic: str, body: bytes) -> Command:
    """Read the body of a record on a control topic.

    Raises:
        MalformedControlError: it is no command of this version, or it stands on another's topic.
        NewerVersionError: it was written by a newer version.
    """
    try:
        version = _version_decoder.decode(body).v
        if version > VERSION:
            raise NewerVersionError(
                f"a control record on {topic} has version {version}, known is {VERSION}"
            )
        command = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedControlError(f"record on {topic}: {error}") from error
    if control_topic(command) != topic:
        raise MalformedControlError(f"{type(command).__name__} does not belong on {topic}")
    return command
