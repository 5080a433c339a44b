"""One message in the log: every record of it, and what each is there for.

A message may stand in the log several times: half and real, waiting and delivered, sent back, dead, sent again. They
have its unique key (UNIQ_KEY) in common, or name where it first stood (ORIGIN_MESSAGE_ID). A message without a unique
key is known by its places only: what waits and what is delivered of it have nothing else in common, so the story of
such a message may be cut there.

Nothing here folds; what a record does is `watch`'s.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from broker.store.control import DIGESTS, MalformedControlError, MarkDigests, decode_control
from broker.store.errors import NewerVersionError
from broker.store.schedule import level_of
from broker.story.errors import StoryError
from broker.story.places import StorePlaces
from dledger.codec.entry import chain_crc
from dledger.raft.entry import ENTRY_HEADER_BYTES, Entry, EntryKind
from dledger.raft.ids import Index, Position
from dledger.storage.scan import ChainEnd
from dledger_mq.message import names
from dledger_mq.message.errors import MessageIdError, RecordError
from dledger_mq.message.ids import offset_msg_id, parse_offset_msg_id
from dledger_mq.message.properties import (
    ORIGIN_MESSAGE_ID,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    TIMER_OUT_MS,
    UNIQ_KEY,
)
from dledger_mq.message.record import StoredMessage, decode_record
from dledger_mq.message.sys_flags import TRANSACTION_PREPARED

COPIES_MAX: Final = 1024
"""Records of one message that are told of; a retry of a retry ends with 16 as a rule."""

_LONG: Final = struct.Struct(">q")
_DIGESTS: Final = DIGESTS.encode()

Progress = Callable[[int, int], None]
"""Called now and then with the bytes that were read, and all that there may be."""


class CopyRole(Enum):
    """The purpose of a record of a message."""

    MESSAGE = "message"
    HALF = "half"
    DELAYED = "delayed"
    TIMED = "timed"
    RETRY = "retry"
    DEAD = "dead letter"
    GIVEN_UP = "given up"


_ROLES: Final = {
    names.HALF_TOPIC: CopyRole.HALF,
    names.SCHEDULE_TOPIC: CopyRole.DELAYED,
    names.TIMER_TOPIC: CopyRole.TIMED,
    names.CHECK_MAX_TOPIC: CopyRole.GIVEN_UP,
}

WAITING: Final = frozenset({CopyRole.HALF, CopyRole.DELAYED, CopyRole.TIMED})
"""Roles of records that no consumer sees: each is there for what follows."""


@dataclass(frozen=True, slots=True)
class Copy:
    """One record of a message.

    Attributes:
        index, term: of its entry.
        message: as it stands there, without its body.
        role: what it is there for.
    """

    index: Index
    term: int
    message: StoredMessage
    role: CopyRole

    @property
    def place(self) -> int:
        """Its physical offset."""
        return self.message.physical_offset

    @property
    def message_id(self) -> str:
        """Its offset message id."""
        return offset_msg_id(self.message.store_host, self.message.physical_offset)

    @property
    def real_topic(self) -> str:
        """The topic that it is for, if it waits; else its own."""
        return self._text(REAL_TOPIC) if self.role in WAITING else self.message.topic

    @property
    def real_queue(self) -> str:
        """The queue that it is for, if it waits; as its sender or broker wrote it."""
        return self._text(REAL_QID) if self.role in WAITING else str(self.message.queue_id)

    @property
    def producer_group(self) -> str:
        """The producer group of a half message; empty: it does not say."""
        return self._text(PGROUP)

    @property
    def due_text(self) -> str:
        """The due time of a timed message in ms; empty: it does not say."""
        return self._text(TIMER_OUT_MS)

    @property
    def level(self) -> int:
        """The delay level of a delayed message."""
        return level_of(self.message.properties)

    @property
    def is_sent_back(self) -> bool:
        """True if a consumer gave the message back, or did not acknowledge it; what is sent again is not."""
        return self._text(ORIGIN_MESSAGE_ID) != "" and self.message.reconsume_times > 0

    @property
    def is_sent_again(self) -> bool:
        """True if somebody has sent a dead letter again."""
        return self._text(ORIGIN_MESSAGE_ID) != "" and self.message.reconsume_times == 0

    @property
    def has_name(self) -> bool:
        """True if the records that come of it can be known for it."""
        return bool(self._text(UNIQ_KEY) or self._text(ORIGIN_MESSAGE_ID))

    @property
    def is_hidden(self) -> bool:
        """True if no queue shows it, as with half messages of old brokers."""
        return bool(self.message.sys_flag & TRANSACTION_PREPARED) and self.role is not CopyRole.HALF

    def _text(self, name: bytes) -> str:
        return (self.message.find(name) or b"").decode(errors="replace")


@dataclass(slots=True)
class FoundCopies:
    """The result of a search.

    Attributes:
        asked: the message id that was looked for.
        copies: in the order of the log.
        begin: the entry before the first one that was looked at.
        end: the last entry that was looked at.
        proven_index: entries up to this one are surely committed: a leader has said so in the log, or a snapshot.
        snapshot_crcs: chain CRC of the entries that snapshots claim to end with, by index.
        problem: what stands behind the last entry; empty: nothing.
        is_cut: there are more copies.
    """

    asked: str
    begin: ChainEnd
    end: ChainEnd
    copies: list[Copy] = field(default_factory=list)
    proven_index: int = 0
    snapshot_crcs: dict[int, int] = field(default_factory=dict)
    problem: str = ""
    is_cut: bool = False

    def add(self, index: Index, term: int, message: StoredMessage) -> bool:
        """Add a record of the message, the next one in the log; return False if there is no room for more."""
        if len(self.copies) == COPIES_MAX:
            self.is_cut = True
            return False
        self.copies.append(Copy(index, term, _without_body(message), _role(message.topic)))
        return True


def records_of(entry: Entry) -> Iterator[StoredMessage]:
    """Yield the records of an entry.

    Raises:
        StoryError: its body is no records.
    """
    body, at = entry.body, 0
    while at < len(body):
        try:
            message = decode_record(body, at, check_crc=False)
        except RecordError as error:
            raise StoryError(f"entry {entry.index} is no records: {error}") from error
        yield message
        at += message.size_bytes


def find_copies(places: StorePlaces, message_id: str, progress: Progress) -> FoundCopies:
    """Look through a whole log for a message.

    Args:
        places: the store.
        message_id: an offset message id, or a unique key.
        progress: told how far it has come.

    Raises:
        StoryError: entries cannot be read.
        CorruptionError: the log is damaged.
        OSError: the disk failed.
    """
    wanted = MessageMarks(message_id, _message_at(places, message_id))
    found = FoundCopies(message_id, places.log.before, places.log.before)
    claimed = {int(each.meta.index) for each in places.snapshots}
    found.snapshot_crcs[found.begin.index] = found.begin.chain_crc
    limit = places.log.end_position_max()
    total = limit - found.begin.position
    for some in places.log.entries():
        for entry in some:
            if entry.index in claimed:
                found.snapshot_crcs[int(entry.index)] = chain_crc(entry)
            if entry.kind is EntryKind.NORMAL:
                _look(entry, wanted, found)
        last = some[-1]
        found.end = ChainEnd(last.index, last.term, last.end_position, chain_crc(last))
        done = found.end.position - found.begin.position
        progress(done, max(done, total))
        if found.end.position >= limit:
            break  # what came meanwhile is of another time
    found.problem = places.log.problem
    for each in places.snapshots:
        if found.snapshot_crcs.get(int(each.meta.index)) == each.meta.chain_crc:
            found.proven_index = max(found.proven_index, each.meta.index)
    return found


def _look(entry: Entry, wanted: MessageMarks, found: FoundCopies) -> None:
    """Add the records of the message in an entry, and what the entry says of what is committed."""
    if _DIGESTS in entry.body:
        found.proven_index = max(found.proven_index, _marked_index(entry))
    if not wanted.may_be_in(entry):
        return
    for message in records_of(entry):
        if not wanted.is_one(message):
            continue
        if not found.add(entry.index, entry.term, message):
            return
        wanted.follow(message)


def _marked_index(entry: Entry) -> int:
    """Return the last entry that a leader says to have applied; 0 if it does not say.

    The leader whose record this is has folded that entry, so it was committed, and this log has the same before it.
    """
    marked = 0
    for message in records_of(entry):
        if message.topic != DIGESTS:
            continue
        try:
            command = decode_control(message.topic, message.body)
        except (MalformedControlError, NewerVersionError):
            continue
        if isinstance(command, MarkDigests):
            marked = max(marked, command.marked_index)
    return marked


def _role(topic: str) -> CopyRole:
    if names.is_retry_topic(topic):
        return CopyRole.RETRY
    if names.is_dlq_topic(topic):
        return CopyRole.DEAD
    return _ROLES.get(topic, CopyRole.MESSAGE)


def _without_body(message: StoredMessage) -> StoredMessage:
    """Return a message without its body: of that nothing is told, and there may be many."""
    fields = {name: getattr(message, name) for name in message.__struct_fields__}
    return StoredMessage(**(fields | {"body": b""}))


class MessageMarks:
    """The marks that the records of a message have in common; more becomes known as they are found.

    Attributes:
        keys: unique keys.
        origins: offset message ids that others name as where they first stood.
        places: physical offsets.
        halves: physical offsets of half messages, which the message of the transaction names.
    """

    def __init__(self, message_id: str, asked: StoredMessage | None) -> None:
        """Begin with what was asked for.

        Args:
            message_id: an offset message id, or a unique key.
            asked: the record whose offset message id it is; None: there is none, or it is a unique key.
        """
        self.keys: set[bytes] = set()
        self.origins: set[bytes] = set()
        self.places: set[int] = set()
        self.halves: set[int] = set()
        if asked is None:
            self.keys.add(message_id.encode())
            return
        self.places.add(asked.physical_offset)
        self.follow(asked)
        origin = asked.find(ORIGIN_MESSAGE_ID)
        if origin:
            self.origins.add(origin)
            self._add_place(origin)

    def _add_place(self, message_id: bytes) -> None:
        try:
            _, _, place = parse_offset_msg_id(message_id.decode(errors="replace"))
        except MessageIdError:
            return  # a client may have put anything there
        self.places.add(place)

    def follow(self, message: StoredMessage) -> None:
        """Look for what comes of a record, too."""
        place = message.physical_offset
        self.origins.add(offset_msg_id(message.store_host, message.physical_offset).encode())
        key = message.find(UNIQ_KEY)
        if key:
            self.keys.add(key)
        if message.topic == names.HALF_TOPIC:
            self.halves.add(place)

    def may_be_in(self, entry: Entry) -> bool:
        """Return False if no record of the message is in an entry."""
        body = entry.body
        if any(text in body for texts in (self.keys, self.origins) for text in texts):
            return True
        if any(_LONG.pack(place) in body for place in self.halves):
            return True
        start = entry.position + ENTRY_HEADER_BYTES
        return any(start <= place < start + len(body) for place in self.places)

    def is_one(self, message: StoredMessage) -> bool:
        """Return whether a record is one of the message."""
        if names.is_control_topic(message.topic):
            return False
        return (
            message.physical_offset in self.places
            or message.find(UNIQ_KEY) in self.keys
            or message.find(ORIGIN_MESSAGE_ID) in self.origins
            or message.prepared_transaction_offset in self.halves
        )


def _message_at(places: StorePlaces, message_id: str) -> StoredMessage | None:
    """Return the message whose offset message id this is; None: none, or it is a unique key.

    A unique key looks like an offset message id, so only a record of that very id makes it one.
    """
    try:
        _, _, place = parse_offset_msg_id(message_id)
    except MessageIdError:
        return None
    before = places.log.segment_before(Position(place))
    if before is None:
        return None
    for some in places.log.entries(before):
        for entry in some:
            if entry.position > place:
                return None
            if entry.end_position <= place or entry.kind is not EntryKind.NORMAL:
                continue
            for message in records_of(entry):
                same = offset_msg_id(message.store_host, message.physical_offset)
                if message.physical_offset == place and same == message_id.upper():
                    return message
            return None
    return None
