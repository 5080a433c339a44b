"""The story of one message from an archive: what its records and the group's own records say, without a state.

`broker/story` knows what the steps are; here are the rows that it needs, in the order of the log. An archive has the
records and not what a group made of them, so every step is told as what was asked for (`StoryStep.is_sure`), and
where the message can be consumed is not known.

It must not know how a story is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import groupby
from operator import attrgetter
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from broker.admin.archive_search import ArchiveSearch
from broker.store import control
from broker.story.copies import Copy, CopyRole, FoundCopies, MessageMarks
from broker.story.tell import MessageStory
from broker.story.verdict import standing_by_steps
from broker.story.watch import Watch
from dledger.raft.ids import NO_TERM, Index, Term
from dledger.storage.scan import ChainEnd
from dledger_mq.message import names
from dledger_mq.message.errors import MessageIdError
from dledger_mq.message.ids import parse_offset_msg_id
from dledger_mq.message.properties import ORIGIN_MESSAGE_ID, REAL_TOPIC
from dledger_mq.message.record import StoredMessage
from pipeline.archive.manifests import Manifest, manifests_there
from pipeline.archive.records import WITH_BODY, WITHOUT_BODY, record_of
from pipeline.archive.runs import BytesRead, RowGroup, Within, runs
from pipeline.archive.search import find_archived, in_json
from pipeline.folders import Where

UNKNOWN: Final = "whether it can be consumed is not known: an archive holds the log's records, not what a group shows"

_BESIDE: Final = frozenset(
    {names.HALF_TOPIC, names.SCHEDULE_TOPIC, names.TIMER_TOPIC, names.CHECK_MAX_TOPIC}
)
"""Topics in which a message may stand besides its own, but for those of retries and dead letters."""

_NEVER: Final = frozenset({names.OP_HALF_TOPIC})
_NAMED_TOPICS: Final = (REAL_TOPIC, b"RETRY_TOPIC", b"DLQ_ORIGIN_TOPIC")
_ORDERS: Final = frozenset({control.TOPICS, control.GROUPS, control.OFFSETS, control.RETENTION})
_ORDERS_OF_WAITING: Final = frozenset({control.SCHEDULE, control.TRANSACTIONS, names.OP_HALF_TOPIC})
_OF_ALL_TOPICS: Final = control.RemoveOffsets.__struct_config__.tag
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class Looked:
    """The part of an archive in which a message is looked for.

    Attributes:
        topic: the one that it was sent to; None: any.
        begin_ms, end_ms: days of the store time outside are left out; ms since 1970; None: no bound.
    """

    topic: str | None = None
    begin_ms: int | None = None
    end_ms: int | None = None


@dataclass(frozen=True, slots=True)
class _Opened:
    """An archive, and all of its manifests."""

    place: Where
    manifests: list[Manifest]


@dataclass(frozen=True, slots=True)
class _Row:
    """A record of an archive, and its entry."""

    index: Index
    term: int
    message: StoredMessage

    @property
    def place(self) -> int:
        return self.message.physical_offset


def archived_story(
    place: Where, message_id: str, looked: Looked, *, looking: BytesRead, following: BytesRead
) -> MessageStory:
    """Tell the story of a message, as far as an archive has it.

    Args:
        place: the archive's folder.
        message_id: an offset message id, or a unique key.
        looked: the part that is read.
        looking: told how far the search for its records has come.
        following: told how far the records that concern it are read.

    Raises:
        PipelineUsageError: the folder is no archive.
        ArchiveError: it is damaged.
        StoryError: a control record is of a newer version.
    """
    archive = _Opened(place, manifests_there(place))
    found = _copies(archive, message_id, looked, looking)
    story = MessageStory(found, is_cut=found.is_cut, unknown=UNKNOWN)
    if found.copies:
        watch = Watch(found.copies)
        _follow(watch, found.copies, _orders(archive, found, looked, following))
        story.steps, story.is_cut = watch.steps, story.is_cut or watch.is_cut
        story.standings = [standing_by_steps(each, watch.steps) for each in found.copies]
    return story


def _asked(archive: _Opened, message_id: str) -> StoredMessage | None:
    """Return the message whose offset message id this is; None: none, or it is a unique key."""
    try:
        parse_offset_msg_id(message_id)
    except MessageIdError:
        return None
    search = ArchiveSearch(message_id=message_id)
    for row in find_archived(archive.place, search, archive.manifests):
        return record_of(str(row["topic"]), row)
    return None


# The records of the message.


def _copies(archive: _Opened, message_id: str, looked: Looked, progress: BytesRead) -> FoundCopies:
    """Look for the records of a message, in the order of the log."""
    asked = _asked(archive, message_id)
    first, last = archive.manifests[0], archive.manifests[-1]
    before = Index(first.first_index - 1)
    found = FoundCopies(
        message_id,
        ChainEnd(before, NO_TERM, first.first_position, first.first_chain_crc),
        ChainEnd(last.last_index, NO_TERM, last.end_position, last.last_chain_crc),
        proven_index=last.last_index,
    )
    marks = MessageMarks(message_id, asked)
    begin_ms = looked.begin_ms
    if begin_ms is None and asked is not None:
        # What waited before has the same time of birth; a day for a client's clock that is ahead.
        begin_ms = min(asked.born_timestamp_ms, asked.store_timestamp_ms) - _DAY_MS
    within = Within(_topics(archive, looked.topic, asked), begin_ms=begin_ms, end_ms=looked.end_ms)
    for run in runs(archive.place, archive.manifests, within, progress):
        for row in _rows_of(run, marks):
            if not found.add(row.index, row.term, row.message):
                return found
    return found


def _topics(
    archive: _Opened, topic: str | None, asked: StoredMessage | None
) -> Callable[[str], bool]:
    """Return what says whether records of the message may stand in a topic."""
    sent_to = set() if topic is None else {topic}
    if asked is not None:
        sent_to |= _topics_named(asked)
        origin = (asked.find(ORIGIN_MESSAGE_ID) or b"").decode(errors="replace")
        first = _asked(archive, origin) if origin else None
        sent_to |= set() if first is None else _topics_named(first)

    def may_have(name: str) -> bool:
        if names.is_control_topic(name) or name in _NEVER:
            return False
        is_beside = name in _BESIDE or names.is_retry_topic(name) or names.is_dlq_topic(name)
        return not sent_to or is_beside or name in sent_to

    return may_have


def _topics_named(message: StoredMessage) -> set[str]:
    """Return the topic of a record, and those that it names as where the message comes from or goes to."""
    texts = (message.find(name) for name in _NAMED_TOPICS)
    return {message.topic, *(each.decode(errors="replace") for each in texts if each)}


def _rows_of(run: Sequence[RowGroup], marks: MessageMarks) -> list[_Row]:
    """Return the records of the message in a run; each may give marks by which others are known."""
    seen = [
        (each, each.read(("properties", "physicalOffset", "preparedTransactionOffset")))
        for each in run
    ]
    found: dict[int, _Row] = {}
    while True:
        count = len(found)
        candidates = (
            row
            for group, rows in seen
            for row in _rows(group, _marked(rows, marks), columns=WITHOUT_BODY)
        )
        for row in sorted(candidates, key=attrgetter("place")):
            if row.place not in found and marks.is_one(row.message):
                found[row.place] = row
                marks.follow(row.message)
        if len(found) == count:
            return [found[place] for place in sorted(found)]


def _marked(rows: pa.Table, marks: MessageMarks) -> pa.Array:
    """Return the numbers of the rows that may be records of the message."""
    chosen = pc.is_in(rows["physicalOffset"], pa.array(sorted(marks.places), pa.int64()))
    halves = pa.array(sorted(marks.halves), pa.int64())
    chosen = pc.or_(chosen, pc.is_in(rows["preparedTransactionOffset"], halves))
    for text in marks.keys | marks.origins:
        part = in_json(text.decode(errors="replace"))
        chosen = pc.or_(chosen, pc.fill_null(pc.match_substring(rows["properties"], part), False))
    return pc.indices_nonzero(chosen)


# What the group's own records say of it.


def _orders(
    archive: _Opened, found: FoundCopies, looked: Looked, progress: BytesRead
) -> Iterator[_Row]:
    """Yield the control and op records behind the first record of a message, as far as they may be about it."""
    first = found.copies[0]
    does_wait = any(
        each.role in {CopyRole.HALF, CopyRole.DELAYED, CopyRole.TIMED} for each in found.copies
    )
    topics = _ORDERS | (_ORDERS_OF_WAITING if does_wait else frozenset())
    within = Within(
        topics.__contains__,
        first.place,  # commands stand behind the records that they come with
        begin_ms=first.message.store_timestamp_ms - _DAY_MS,
        end_ms=looked.end_ms,
    )
    mentioned = {each.message.topic for each in found.copies}
    for run in runs(archive.place, archive.manifests, within, progress):
        rows = [
            row
            for group in run
            for row in _rows(group, _about(group, mentioned), columns=WITH_BODY)
        ]
        yield from sorted(rows, key=attrgetter("place"))


def _about(group: RowGroup, mentioned: set[str]) -> pa.Array:
    """Return the numbers of the rows that may be about topics: of commits, which are most of all, a small part."""
    if group.topic != control.OFFSETS:
        return pa.array(range(group.metadata.row_group(group.number).num_rows))
    bodies = group.read(("body",))["body"]
    chosen = pc.match_substring(bodies, str(_OF_ALL_TOPICS))
    for topic in mentioned:
        chosen = pc.or_(chosen, pc.match_substring(bodies, topic))
    return pc.indices_nonzero(pc.fill_null(chosen, False))


def _rows(group: RowGroup, numbers: pa.Array, *, columns: Sequence[str]) -> Iterator[_Row]:
    """Yield some rows of a row group."""
    if len(numbers):
        for row in group.read(columns).take(numbers).to_pylist():
            yield _Row(Index(row["index"]), Term(row["term"]), record_of(group.topic, row))


def _follow(watch: Watch, copies: Sequence[Copy], orders: Iterator[_Row]) -> None:
    """Let a watch see each entry that has a record of the message, or of the group's own, behind the first one."""
    own = (_Row(each.index, each.term, each.message) for each in copies)
    for (index, term), rows in groupby(
        merge(own, orders, key=attrgetter("place")), key=attrgetter("index", "term")
    ):
        look = watch.before_records(index, term, [row.message for row in rows], None)
        watch.behind(look, None)
