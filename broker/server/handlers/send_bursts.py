"""The lane for bursts: the plain sends of one read of a connection, in one loop from their frames to staged records.

Most sends are plain: one new message for a known topic, that waits for nothing and asks for an answer. Plain sends that
come in one read are a *burst*, which has one waiter and one joined answer. What a request value, a plan and a waiter
would hold for each is in the frames already, so none is made; and where headers are alike but for their values
(send_patterns.py), compiled code takes them without decoding each, if there is any. The decisions are those of the
ordinary way: what a topic and properties allow is asked of the same rules (`service.send`), what came before of the
same table (known_sends.py).

Whatever is not plain ends the burst and goes the ordinary way, in its turn: so the order on a connection stays, in the
log and in the answers. A burst whose end is not plain (its entry fails, its client is gone, another send has one of
its keys, a topic is new) is *singled out*: its sends become what the ordinary way would have made of them, and go on
there. So there is one place for each conclusion, and it is not here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from broker.server.handlers.alike_sends import AlikeSends, asks_for_more
from broker.server.handlers.known_sends import KnownSends
from broker.server.handlers.new_topics import NewTopics
from broker.server.handlers.send_answers import SendAnswers
from broker.server.handlers.send_operations import SendOperation
from broker.server.mistakes import Mistakes
from broker.server.requests.calls import Calls
from broker.server.requests.commits import Commits, RecordRun
from broker.server.requests.origin import Origin
from broker.server.requests.request import HOLD_MS, Command
from broker.service.send import KEPT_FLAGS, PlainTopic, SendRules
from broker.service.wait_room import FREE_BYTES
from broker.store.entry_bodies import QueueEnd, StagedMessage
from broker.store.staging import StagedEntry
from dledger import DLedgerError
from dledger_mq.message.compiled import SentColumns
from dledger_mq.message.errors import RecordError
from dledger_mq.message.numbers import QueueId
from dledger_mq.message.record import BODY_BYTES_MAX
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.errors import FieldError, FrameError
from dledger_mq.remoting.frame import Frame
from dledger_mq.remoting.requests import SendRequest, decode_request

ALIKE_MIN: Final = 4
"""Sends of a read from which on a look for a pattern is worth its time."""


class Burst(RecordRun):
    """Plain sends of one read that were staged one after another, and wait for their entry.

    Attributes:
        origin: the client that sent them.
        deadline_ms: end of their wait for a leader, should they come to wait for one.
        code: of its first send's request.
        frames, opaques, keys, messages: for each send its frame, opaque number, UNIQ_KEY, and what was staged.
        singled_out: those that are requests of their own by now, by their place in the burst.
    """

    __slots__ = (
        "_lane",
        "code",
        "deadline_ms",
        "frames",
        "keys",
        "messages",
        "opaques",
        "origin",
        "singled_out",
    )

    def __init__(self, lane: SendLane, origin: Origin, code: int, deadline_ms: int) -> None:
        self._lane = lane
        self.origin = origin
        self.code = code
        self.deadline_ms = deadline_ms
        self.frames: Sequence[Frame] = ()
        self.opaques: list[int] = []
        self.keys: list[bytes] = []
        self.messages: list[StagedMessage] = []
        self.ends: list[int] = []
        self.singled_out: dict[int, SendOperation] = {}

    def committed(self, staged: StagedEntry, place: int) -> None:
        """See `Waiter`."""
        self._lane.committed(self, staged, place)

    def failed(self, error: DLedgerError) -> None:
        """See `Waiter`."""
        for send in self._lane.single_out_all(self):
            send.failed(error)

    def divide(self, count: int) -> Burst:
        """See `RecordRun`."""
        return self._divide(count, Burst(self._lane, self.origin, self.code, self.deadline_ms))

    def _divide(self, count: int, rest: Burst) -> Burst:
        """Hand all but the first sends over to another burst, which has none."""
        assert 0 < count < len(self.keys), f"{count} of {len(self.keys)} sends are kept"
        rest.frames, self.frames = self.frames[count:], self.frames[:count]
        rest.opaques, self.opaques = self.opaques[count:], self.opaques[:count]
        rest.keys, self.keys = self.keys[count:], self.keys[:count]
        rest.messages, self.messages = self.messages[count:], self.messages[:count]
        kept_bytes = self.ends[count - 1]
        rest.ends, self.ends = [end - kept_bytes for end in self.ends[count:]], self.ends[:count]
        for at in [at for at in self.singled_out if at >= count]:
            rest.singled_out[at - count] = self.singled_out.pop(at)
        self._lane.entered(rest)
        return rest

    def origin_of(self, at: int) -> Origin:
        """Return the client that sent the one at a place."""
        assert 0 <= at < len(self.keys), f"there is no send {at} of {len(self.keys)}"
        return self.origin

    @property
    def is_any_gone(self) -> bool:
        """True if a client would not get its answer."""
        return self.origin.is_gone

    def command(self, at: int) -> SendRequest:
        """Return the request of the send at a place."""
        found = decode_request(self.frames[at])
        assert isinstance(found, SendRequest), f"send {at} of a burst is a {type(found).__name__}"
        return found

    def single_out(self, key: bytes) -> SendOperation:
        """See `SendsTogether`."""
        at = self.keys.index(key)
        assert at not in self.singled_out, f"send {at} of a burst was singled out before"
        return self._lane.single_out(self, at)


def _decoded(frames: Sequence[Frame], at: int) -> Command | None:
    """Return the header of a frame; None: there is none, or whoever decodes it next tells what is wrong with it."""
    try:
        return decode_request(frames[at]) if at < len(frames) else None
    except (FieldError, FrameError):
        return None


class LoneSends(Burst):
    """Plain sends of as many connections, each of which was all that its connection had.

    Attributes:
        origins: the client of each.
    """

    __slots__ = ("origins",)

    def __init__(
        self, lane: SendLane, origins: Sequence[Origin], code: int, deadline_ms: int
    ) -> None:
        super().__init__(lane, origins[0], code, deadline_ms)
        self.origins = origins

    def divide(self, count: int) -> Burst:
        """See `RecordRun`."""
        rest = LoneSends(self._lane, self.origins[count:], self.code, self.deadline_ms)
        self.origins = self.origins[:count]
        return self._divide(count, rest)

    def origin_of(self, at: int) -> Origin:
        """See `Burst`."""
        return self.origins[at]

    @property
    def is_any_gone(self) -> bool:
        """See `Burst`."""
        return any(origin.is_gone for origin in self.origins)


class SendLane:
    """Takes bursts while this node leads, and answers them."""

    def __init__(
        self,
        commits: Commits,
        rules: SendRules,
        known: KnownSends,
        answers: SendAnswers,
        *,
        new_topics: NewTopics,
        is_open: Callable[[], bool],
        single_out: Callable[[Burst, int], SendOperation],
        mistakes: Mistakes,
        calls_of: Callable[[int], Calls],
    ) -> None:
        """Set up the lane.

        Args:
            commits: where sends are staged.
            rules: decide on sends.
            known: what came before.
            answers: what answers are made of.
            new_topics: the topics whose sends are answered later.
            is_open: returns True while sends are taken here.
            single_out: makes a request of its own of the send at a place of a burst.
            mistakes: what becomes of errors that nobody expects.
            calls_of: returns what counts the answers to a code.
        """
        self._commits = commits
        self._rules = rules
        self._known = known
        self._new_topics = new_topics
        self._is_open = is_open
        self._make = single_out
        self._mistakes = mistakes
        self._calls_of = calls_of
        self._replies = answers.replies
        self._id_prefix = answers.ids.prefix.encode()
        self._alike = AlikeSends(commits, rules, self._queue_end)

    # From frames to staged records.

    def take(
        self,
        origin: Origin,
        frames: Sequence[Frame],
        at: int,
        command: SendRequest,
        *,
        deadline_ms: int,
    ) -> tuple[int, Command | None]:
        """See `RequestLane`."""
        if not self._is_open():
            return at, command
        burst = Burst(self, origin, command.code, deadline_ms)
        try:
            rest = self._gather_alike(burst, frames, at, command)
            return self._gather(
                burst, frames, rest, command if rest == at else _decoded(frames, rest)
            )
        finally:
            if burst.keys:
                burst.frames = frames[at : at + len(burst.keys)]
                place = self._commits.staging.stage_all(burst.messages, burst.ends[-1])
                self._commits.wait(place, burst)

    def _gather_alike(
        self, burst: Burst, frames: Sequence[Frame], at: int, command: SendRequest
    ) -> int:
        """Add the sends from `at` on whose headers follow the pattern of the first; return the place behind them.

        The checks are those of `_gather`. Where one of the keys is known, none is added: it looks which.
        """
        if command.flag or len(frames) - at < ALIKE_MIN or not isinstance(frames, list):
            return at
        columns = self._alike.of_one(frames, at, command, burst.origin.born_host)
        return at + len(burst.keys) if columns is not None and self._add(burst, columns) else at

    def _add(self, burst: Burst, columns: SentColumns) -> bool:
        """Let a burst begin with some sends, unless one of their keys is known; return whether it does."""
        messages, ends, keys, opaques = columns
        known = self._known
        if len(set(keys)) < len(keys) or known.knows_any(keys):
            return False
        burst.messages, burst.ends, burst.keys, burst.opaques = messages, ends, keys, opaques
        known.ahead.update(dict.fromkeys(keys, burst))
        return True

    def take_together(
        self, origins: Sequence[Origin], frames: list[Frame], *, deadline_ms: int
    ) -> Sequence[int]:
        """See `SendsLane`."""
        if not self._is_open():
            return ()
        places, columns = self._alike.of_several(frames, [origin.born_host for origin in origins])
        if len(places) < ALIKE_MIN:
            return ()
        its_origins = [origins[place] for place in places]
        burst = LoneSends(self, its_origins, RequestCode.SEND_MESSAGE_V2, deadline_ms)
        if not self._add(burst, columns):
            return ()
        burst.frames = [frames[place] for place in places]
        self._commits.wait(self._commits.staging.stage_all(burst.messages, burst.ends[-1]), burst)
        return places

    def _gather(
        self, burst: Burst, frames: Sequence[Frame], at: int, command: Command | None
    ) -> tuple[int, Command | None]:
        """Add plain sends to a burst, up to the first that is not; runs per message.

        The checks are those of `SendRules.decide` that a plain send can fail, and that of `Commits.is_full`. What a
        burst keeps beside its records is not counted, so a send with a long header goes the ordinary way.
        """
        rules, known = self._rules, self._known
        read, recent, ahead = rules.plain_properties, known.recent_keys, known.ahead
        count_room, bytes_room = self._commits.room
        body_bytes_max = min(rules.settings.message_bytes_max, BODY_BYTES_MAX)
        born_host, size_bytes = burst.origin.born_host, burst.ends[-1] if burst.ends else 0
        messages, ends, keys, opaques = burst.messages, burst.ends, burst.keys, burst.opaques
        queues: dict[tuple[str, QueueId], tuple[QueueEnd, int] | None] = {}
        while isinstance(command, SendRequest) and not command.flag:
            fields, body = command.fields, frames[at].body
            at_queue = fields.topic, fields.queue_id
            queue = queues.get(at_queue) or queues.setdefault(at_queue, self._queue(*at_queue))
            has_room = len(keys) < count_room and size_bytes < bytes_room
            is_sized = 0 < len(body) <= body_bytes_max and len(frames[at].header) <= FREE_BYTES
            if queue is None or not has_room or not is_sized or asks_for_more(fields):
                break
            try:
                plain = read((fields.properties or "").encode())
            except UnicodeEncodeError:
                break
            if plain is None:
                break
            key, properties, folded = plain
            if key in recent or key in ahead:
                break
            queue_end, added_flags = queue
            flags, born_ms = fields.sys_flag & KEPT_FLAGS | added_flags, fields.born_timestamp_ms
            messages.append(
                (queue_end, body, properties, flags, born_ms, born_host, fields.flag, 0, 0, folded)
            )
            size_bytes += queue_end.bytes_max + len(body) + len(properties)
            ends.append(size_bytes)
            keys.append(key)
            opaques.append(command.opaque)
            ahead[key] = burst
            at += 1
            command = _decoded(frames, at)
        return at, command

    def _queue(self, name: str, queue_id: QueueId) -> tuple[QueueEnd, int] | None:
        """Return the end of a queue that plain sends may go to, and what its topic adds to their system flag."""
        topic = self._rules.plain_topic(name)
        end = None if topic is None else self._queue_end(topic, queue_id)
        return None if topic is None or end is None else (end, topic.added_flags)

    def _queue_end(self, topic: PlainTopic, queue_id: QueueId) -> QueueEnd | None:
        if not 0 <= queue_id < topic.queue_count:
            return None
        try:
            return self._commits.staging.queue_end((topic.name, queue_id))
        except RecordError:
            return None

    def entered(self, burst: Burst) -> None:
        """Note the sends of a burst under it, which another one was divided off from."""
        for at, key in enumerate(burst.keys):
            if at not in burst.singled_out:
                self._known.ahead[key] = burst

    # The outcome of a burst.

    def committed(self, burst: Burst, staged: StagedEntry, place: int) -> None:
        """Answer the sends of a burst, which stand from `place` on, together if all is plain."""
        if not (burst.singled_out or self._new_topics.names or burst.is_any_gone):
            try:
                self._answer(burst, staged, place)
            except Exception as error:  # the ordinary way finds out which of them it is
                if not self._mistakes.note(
                    error, f"an answer to {burst.origin.address} and others"
                ):
                    raise
            else:
                return
        for at, send in enumerate(self.single_out_all(burst), place):
            send.committed(staged, at)

    def _answer(self, burst: Burst, staged: StagedEntry, place: int) -> None:
        """Answer plain sends, none of which has been singled out: those of one client with one joined answer."""
        self._known.leave_together(burst.keys)
        # A client sends with one code; who mixes them has all of a burst counted as its first.
        calls, arrived_ms = self._calls_of(burst.code), burst.deadline_ms - HOLD_MS
        calls.answered(ResponseCode.SUCCESS, arrived_ms, len(burst.keys))
        records = staged.records[place : place + len(burst.keys)]
        if isinstance(burst, LoneSends):
            answers = self._replies.each_plain(self._id_prefix, records, burst.opaques)
            for origin, answer in zip(burst.origins, answers, strict=True):
                origin.send(answer)
        else:
            burst.origin.send(self._replies.join_plain(self._id_prefix, records, burst.opaques))

    def single_out(self, burst: Burst, at: int) -> SendOperation:
        """Make the send at a place of a burst a request of its own, if it is none yet."""
        send = burst.singled_out.get(at)
        if send is None:
            send = burst.singled_out[at] = self._make(burst, at)
        return send

    def single_out_all(self, burst: Burst) -> list[SendOperation]:
        """Make all sends of a burst requests of their own; return them in their order."""
        for at, key in enumerate(burst.keys):
            if at not in burst.singled_out:
                self._known.ahead[key] = (self.single_out(burst, at),)
        return [burst.singled_out[at] for at in range(len(burst.keys))]
