"""Sends whose headers are alike but for their values, taken by compiled code without decoding each (adr/0287).

The first one of each kind is decoded and decided on by the rules of the ordinary way; what follows from that holds for
all whose headers follow the same pattern. Frames of one connection share a born host; those of several have each their
own, and may be of several kinds in turn: then the kinds that came before are tried for each.

It stages nothing and notes nothing: what it returns may be dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from broker.server.requests.commits import Commits
from broker.service.send import KEPT_FLAGS, PlainTopic, SendRules
from broker.service.wait_room import FREE_BYTES
from broker.store.entry_bodies import RECORD_OVERHEAD_MAX, QueueEnd, StagedMessage
from dledger_mq.message import compiled
from dledger_mq.message.compiled import SentColumns, SentKind
from dledger_mq.message.numbers import QueueId
from dledger_mq.message.properties import REPLY_TO_CLIENT
from dledger_mq.message.record import BODY_BYTES_MAX
from dledger_mq.remoting.errors import FieldError, FrameError
from dledger_mq.remoting.frame import Frame
from dledger_mq.remoting.requests import SendFields, SendRequest, decode_request
from dledger_mq.remoting.send_patterns import SendPattern

PATTERNS_MAX: Final = 64
"""By topic and producer group; more are emptied. Compiled code takes as many kinds at once."""

LOOKS_MAX: Final = 4
"""Headers of a round that may follow no pattern, or need a new one, until the others go the ordinary way."""

_SEND_MARK: Final = b'"code":310'

FindEnd = Callable[[PlainTopic, QueueId], "QueueEnd | None"]
"""Returns the end of a queue that plain sends may go to; None: they may not."""


def asks_for_more(fields: SendFields) -> bool:
    """Return True if the header of a send says that it is not plain, or cannot stand in a record as it is."""
    return bool(
        fields.is_batch
        or fields.sink_batch is not None
        or fields.reconsume_times
        or fields.sys_flag < 0
        or fields.born_timestamp_ms < 0
    )


class ReadBefore(NamedTuple):
    """The sends that were read before of the same frames.

    Attributes:
        kinds: those of the sends that were read.
        born_hosts: of all frames, or that of each.
        sends, size_bytes: how many they are, and what they take of the room for records.
    """

    kinds: tuple[SentKind, ...]
    born_hosts: bytes | list[bytes]
    sends: int
    size_bytes: int


class QueueEnds(dict[int, "QueueEnd | None"]):
    """The ends of the queues of one topic that plain sends may go to, looked up when they are first asked for."""

    def __init__(self, find: Callable[[QueueId], QueueEnd | None]) -> None:
        self._find = find

    def __missing__(self, queue_id: int) -> QueueEnd | None:
        found = self[queue_id] = self._find(QueueId(queue_id))
        return found


class AlikeSends:
    """Reads them; the patterns that it has seen stay for the next ones."""

    def __init__(self, commits: Commits, rules: SendRules, find_end: FindEnd) -> None:
        self._commits = commits
        self._rules = rules
        self._find_end = find_end
        self._patterns: dict[tuple[str, str], SendPattern] = {}

    def of_one(
        self, frames: list[Frame], at: int, command: SendRequest, born_host: bytes
    ) -> SentColumns | None:
        """Read the sends of one connection from `at` on that follow the pattern of the first.

        `command` is its header.

        Returns:
            None: there are none, since the first is not plain, or there is no compiled code.
        """
        found = self._read(frames, at, command, ReadBefore((), born_host, 0, 0))
        return None if found is None else found[0]

    def of_several(
        self, frames: list[Frame], born_hosts: list[bytes]
    ) -> tuple[list[int], SentColumns]:
        """Read those of the sends of as many connections that follow patterns; return their places, too.

        None of them asks for a reply. No more than one pattern is made anew, and few are looked at that follow none: to
        look for one costs more than it saves.
        """
        likely = [at for at, frame in enumerate(frames) if _may_be_alike(frame.header)]
        some, hosts = [frames[at] for at in likely], [born_hosts[at] for at in likely]
        places: list[int] = []
        messages: list[StagedMessage] = []
        ends: list[int] = []
        keys: list[bytes] = []
        opaques: list[int] = []
        kinds: tuple[SentKind, ...] = ()
        at, looks = 0, 0
        while at < len(some) and len(kinds) < PATTERNS_MAX and looks < LOOKS_MAX:
            command = _send_in(some[at])
            found = None
            if command is not None and not command.flag:
                before = ReadBefore(kinds, hosts, len(keys), ends[-1] if ends else 0)
                found = self._read(some, at, command, before)
            if found is None:
                at, looks = at + 1, looks + 1
                continue
            more, kinds, is_new = found
            messages += more[0]
            ends += more[1]
            keys += more[2]
            opaques += more[3]
            places += likely[at : at + len(more[0])]
            at += len(more[0])
            looks += LOOKS_MAX if is_new else 0
        return places, (messages, ends, keys, opaques)

    def _read(
        self, frames: list[Frame], at: int, command: SendRequest, before: ReadBefore
    ) -> tuple[SentColumns, tuple[SentKind, ...], bool] | None:
        """Read the sends from `at` on that follow the pattern of the first, or one of other kinds.

        Returns:
            What they are, one at least; all kinds; whether the pattern of the first was made anew. None: there are
                none.
        """
        name = command.fields.topic, command.fields.producer_group
        for pattern in (self._patterns.get(name), None):
            is_new = pattern is None
            if pattern is None:
                pattern = SendPattern.of(frames[at].header, command)
            kind = None if pattern is None else self._kind(pattern)
            if kind is None or pattern is None:
                continue
            if is_new:
                if len(self._patterns) >= PATTERNS_MAX:
                    self._patterns.clear()
                self._patterns[name] = pattern
            kinds = (*before.kinds, kind)
            columns = self._read_kinds(frames, at, kinds, before)
            if columns is not None and columns[0]:
                return columns, kinds, is_new
        return None

    def _read_kinds(
        self, frames: list[Frame], at: int, kinds: tuple[SentKind, ...], before: ReadBefore
    ) -> SentColumns | None:
        """Read the sends from `at` on that are of one of these kinds; None: there is no compiled code."""
        count_room, bytes_room = self._commits.room
        return compiled.read_sends(
            frames,
            at,
            kinds,
            before.born_hosts,
            count_room - before.sends,
            FREE_BYTES,
            min(self._rules.settings.message_bytes_max, BODY_BYTES_MAX),
            bytes_room,
            before.size_bytes,
        )

    def _kind(self, pattern: SendPattern) -> SentKind | None:
        """Decide on all sends that follow a pattern; None: they are not plain."""
        rules, fields = self._rules, pattern.fields
        topic = rules.plain_topic(fields.topic)
        if topic is None or asks_for_more(fields):
            return None
        shape = rules.plain_shape(pattern.before, pattern.rest)
        if shape is None:
            return None
        return (
            pattern.segments,
            pattern.order,
            shape,
            QueueEnds(partial(self._find_end, topic)),
            fields.sys_flag & KEPT_FLAGS | topic.added_flags,
            fields.flag,
            RECORD_OVERHEAD_MAX + len(topic.name),
        )


def _may_be_alike(header: bytes) -> bool:
    """Return False if a header is surely none that `of_several` takes; a quick look."""
    return _SEND_MARK in header and REPLY_TO_CLIENT not in header


def _send_in(frame: Frame) -> SendRequest | None:
    """Return the send that a frame is; None: it is none, or whoever decodes it next tells what is wrong with it."""
    try:
        command = decode_request(frame)
    except (FieldError, FrameError):
        return None
    return command if isinstance(command, SendRequest) else None
