"""What happened in a run, in order, as one JSON object per line.

The model: producers send numbered messages to queues (topic, broker, queue id); each (producer,
queue) has its own numbers 0, 1, 2, ... A send ends as `ack` (stored, with its queue offset), `refused`
(surely not stored) or `unknown` (may be stored). Consumers note every delivery as `receive`. The nemesis
notes `kill`, `restart`, and the observer notes `leader` (a node leads a term) and `committed` (the
group's stored offset of a queue). Times are milliseconds since the start of the run.

Events of the other streams (`stream`: transactions, timers, ordered; see `promises.py`) stand in the same
history and are judged by rules of their own. Transactions also note `decided` (how the local one ended)
and `checked` (the broker asked).

A history is only ever appended to; the checker reads the finished list. A line that a crash cut off is
ignored on reading, since it was never part of anything that was reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Literal, TextIO

import msgspec

Kind = (
    Literal["send", "ack", "refused", "unknown", "receive", "committed", "decided", "checked"]
    | Literal["kill", "restart", "leader", "note"]
)
Stream = Literal["", "transactions", "timers", "ordered"]


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a history. Which fields are set depends on `kind`."""

    kind: Kind
    t_ms: float
    queue: str = ""  # "broker-a/3": broker name and queue id
    producer: str = ""  # the sender's name; on `receive`, of the message received
    number: int = -1  # the message's number in its (producer, queue); -1 when it has none
    offset: int = -1  # queue offset; for `committed` the group's stored offset
    consumer: str = ""  # who received, or whose offset was asked for
    key: str = ""  # UNIQ_KEY, for telling the cause of a duplicate
    node: str = ""  # nemesis and observer: which node
    term: int = -1
    text: str = ""
    stream: Stream = ""  # "" is the stream of plain messages, and everything that is nobody's
    due_ms: float = (
        -1
    )  # timers: on `send` the earliest time at which it may come, on `ack` the latest


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Event)


class Recorder:
    """Keeps the events of a run, and writes each to a file at once when there is one."""

    def __init__(
        self, path: Path | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.events: list[Event] = []
        self._clock = clock
        self._start = clock()
        self._file: TextIO | None = path.open("w") if path else None

    def now_ms(self) -> float:
        """Milliseconds since the recorder was made."""
        return (self._clock() - self._start) * 1000

    def add(
        self,
        kind: Kind,
        *,
        queue: str = "",
        producer: str = "",
        number: int = -1,
        offset: int = -1,
        consumer: str = "",
        key: str = "",
        node: str = "",
        term: int = -1,
        text: str = "",
        stream: Stream = "",
        due_ms: float = -1,
    ) -> Event:
        """Append one event that happens now."""
        event = Event(
            kind,
            round(self.now_ms(), 3),
            queue,
            producer,
            number,
            offset,
            consumer,
            key,
            node,
            term,
            text,
            stream,
            round(due_ms, 3),
        )
        self.events.append(event)
        if self._file is not None:
            self._file.write(_encoder.encode(event).decode() + "\n")
        return event

    def note_leader(self, node: str, term: int) -> None:
        """Append that a node leads a term."""
        self.add("leader", node=node, term=term)

    def close(self) -> None:
        """Write out and close the file; the events stay readable."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_history(lines: Iterable[str]) -> Iterator[Event]:
    """Yield the events of a history file; a last line without its end is left out.

    Raises:
        msgspec.ValidationError: a whole line is not an event.
    """
    for line in lines:
        if line.endswith("\n"):
            yield _decoder.decode(line)
