"""The compiled stage, or none: what is done for each message with nothing but its bytes and some numbers, in C.

It is optional: where it was not built, or is not wanted, each of its functions declines everything, and Python code
does the same work (adr/0208). Everybody who uses it asks here, each time, and has that Python code beside the call:
it is the reference, and takes over whatever a function declines. A function that declines has changed nothing.

Nothing here knows what asks; whoever runs a process says by `choose` if the stage is not wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple

Bytes = bytes | bytearray | memoryview
"""Whatever has bytes back to back; an array of numbers has, too, as `memoryview`."""

ShapeParts = tuple[bytes, bytes, int, "bytes | None"]
"""The bytes before the key of plain properties in the record, and those after it; tag hash; KEYS."""

BatchColumns = tuple[
    list[int], list[bytes], list[bytes], list[bytes], list[tuple[int, bytes, "bytes | None"]]
]
"""Of all items of a batch: flags, bodies, properties as they stand in the record, unique keys, what the fold needs."""

ReadBatch = Callable[
    [bytes, int, Callable[[bytes, bytes], ShapeParts | None]], "BatchColumns | None"
]
"""Takes a batch body, how many items it may have, and what knows the shapes of properties by the bytes before and
behind their key. Declines a batch that is malformed, or in which anything is not plain."""

BatchKeys = Callable[
    [bytes, int, Callable[[bytes, bytes], ShapeParts | None]], "list[bytes] | None"
]
"""Takes what `ReadBatch` takes, and returns the unique keys alone. Declines a batch that has KEYS, too."""

BatchRecords = Callable[
    [
        bytes,
        Callable[[bytes, bytes], ShapeParts | None],
        int,
        bytes,
        int,
        int,
        bytes,
        bytes,
        Callable[[Any], int],
    ],
    "bytes | None",
]
"""Takes a batch body, what knows the shapes of properties, queue id, the topic as it stands in a V1 record, system
flag, born time in ms, born host, the host field of the store, and what sums up a body. Returns the items as records
back to back, in which offsets and store time are 0. Declines a batch in which anything is not plain, or that gives no
V1 records with IPv4 hosts in a queue."""

PlaceRecords = Callable[[list[bytes], list[int], int, int], "tuple[bytes, bytes] | None"]
"""Takes runs of such records, the queue offset of the first of each run, the physical offset of the first of all, and
the store time in ms. Returns the body of the entry, and the physical offsets of all records, eight bytes each,
big-endian. Declines what is not records from the first to the last byte."""

EncodeRecords = Callable[
    [list[Any], int, int, bytes, Callable[[bytes], int], Callable[[bytes], Any]],
    "tuple[bytes, list[Any]] | None",
]
"""Takes staged messages, the physical offset of the first, the store time in ms, the host field of the store, what
sums up a body, and what folds properties. Returns the body of the entry and the fold's view of its records; the ends of
the queues have moved on. Declines all, if one is no V1 record with IPv4 hosts in a queue, or does not fit one."""


ParseRecords = Callable[
    [bytes, int, Callable[[bytes, bytes], "tuple[bytes, int, int, bytes | None] | None"]],
    "list[Any] | None",
]
"""Takes the body of an entry, the physical offset of its first byte, and what knows the shapes of records by the bytes
before and behind their key. Returns the fold's view of its records. Declines a body that is malformed, or in which a
record has no known shape."""

FoldUsual = Callable[
    [
        list[Any],
        dict[Any, Any],
        int,
        list[bytes],
        list[int],
        list[Any],
        Callable[[bytes, int, Any], None],
    ],
    "int | None",
]
"""Takes the fold's view of records, all queues, the store time in ms that none exceeds, the columns of unique keys and
what takes KEYS. Folds records in order up to the first that is not usual; returns how many. A usual one comes next
in a queue that is there and is not special, and is not hidden."""

EntryColumns = tuple[int, int, int, bytes, bytes, bytes, bytes, bytes, bytes, bytes]
"""Columns of an entry whose records were folded: how many there are; the store time in ms that all have; the
physical offset of the last. For their unique keys, in the order of the log: units of the key index; the hashes in
these; the keys themselves, one behind the other; the lower and the upper halves of Python's own hashes; the lower
halves of the physical offsets; msgpack of store time, keys, and physical offsets. Hashes and halves have four bytes
each, in this machine's order."""

FoldEntry = Callable[
    [
        bytes,
        int,
        Callable[[bytes, bytes], "tuple[bytes, int, int, bytes | None] | None"],
        dict[Any, Any],
        int,
    ],
    "EntryColumns | None",
]
"""Takes the body of an entry, the physical offset of its first byte, what knows the shapes of records, all queues, and
the latest store time in ms so far. Folds all records. Declines them if one has no known shape, or one with KEYS, or a
unique key of more than 128 bytes, if store times differ or are earlier, or if one is not usual as `FoldUsual` has
it."""

Chain = Callable[[Any, int, Any], "bytes | None"]
"""Takes the newest numbers of chains, as `array("I")` of a power of two, the number of the first of some hashes, and
these, as such an array, too. Makes each one's number the newest of its chain; returns those before them, as such an
array's bytes. Declines numbers beyond four bytes."""

ChainedKeys = Callable[[list[bytes], Any, int, int, int, Any, int, int], "list[bytes] | None"]
"""Takes keys, the newest numbers of chains as `chain` has them, the number of the first key that is held, how many are,
what numbers are taken modulo, the tables of recent sends (chained_sends.py), how many keys one has, and how many keys
of a chain are looked at. Returns those keys that may be held; all others surely are not. Declines what are no bytes."""


AskedValues = Callable[
    [memoryview, list[int], list[Any], "tuple[bytes, ...]"],
    "list[tuple[bytes | None, ...]] | None",
]
"""Takes units of a consume queue, the physical offsets at which some stretches of the log begin, ascending, these
stretches, and the marks of properties, each a name with the separator behind it. Returns a row for each record, up to
the first that does not stand whole in the last stretch that begins at it or before: the values, None where the record
has none of that name. Declines all, if one is no plain V1 record with IPv4 hosts."""


Verdicts = tuple[int, list[int], list[int]]
"""The count of the records that were looked at; the numbers, from 0, of those that are wanted, and of those left."""

JudgeRecords = Callable[
    [memoryview, list[int], list[Any], "tuple[bytes, ...]", bytes], "Verdicts | None"
]
"""Takes units, positions, stretches and marks as `AskedValues` does, and a condition on these names, laid out in bytes
(dledger_mq/filters/layout.py). Judges each record up to the first that does not stand whole in its stretch, but for
those that are no plain V1 record with IPv4 hosts, or on which what decides is not laid out. Declines places that do not
ascend."""

ChosenRuns = tuple[list[tuple[int, int]], int, int, int, int]
"""The wanted records among some units: where they stand, those back to back as one, each with the first position and
that after the last; how many records that are; how many units were looked at; the physical offsets of the first and the
last of these units, -1 of none."""

ChooseRuns = Callable[[memoryview, "AbstractSet[int] | None", int, int], "ChosenRuns | None"]
"""Takes units of a consume queue, the wanted tag hashes, None for all, and how many records, and bytes of them, are
wanted at most; one in any case. Declines hashes that are in no set, and units that no record has."""

SentColumns = tuple[list[Any], list[int], list[bytes], list[int]]
"""Of sends: staged messages, the bytes of all of them up to the end of each, unique keys, opaque numbers."""

SentKind = tuple[tuple[bytes, ...], bytes, ShapeParts, Any, int, int, int]
"""All that sends share whose headers follow one pattern: the bytes of a header between its values, the order of these,
the shape of properties, what has the end of a queue for its id, None for none, system flag and flag of the messages,
and what a record takes beside body and properties."""

ReadSends = Callable[
    [
        Sequence[Any],
        int,
        tuple[SentKind, ...],
        "bytes | list[bytes]",
        int,
        int,
        int,
        int,
        int,
    ],
    "SentColumns | None",
]
"""Takes a list of frames, the place of the first, the kinds that are known, at most 64, the born host of all messages
or that of each frame, how many are wanted, the most bytes of a header and of a body, the room for records, and how much
of it is taken. Returns those that follow one of the patterns, up to the first that does not or is not wanted any more
(dledger_mq/remoting/send_patterns.py)."""


CutFrames = Callable[
    [bytes, int, int, int, Callable[[int, bytes, bytes], Any]], "tuple[list[Any], int, int] | None"
]
"""Takes what was received, the place in it where a frame begins, the most bytes of a frame and of a header, and what
makes a frame of its serialize type, header and body. Returns the whole frames, the place behind them, and how many
bytes the next one takes, as far as that can be known. Declines everything if one of the frames is impossible."""

JoinAnswers = Callable[["tuple[bytes, ...]", list[Any], list[int]], "bytes | None"]
"""Takes the bytes of an answer between its numbers, the fold's view of records, and as many opaque numbers. Returns the
answers to the sends that these were, as frames. Declines numbers below 0."""

ReceivedMessages = Callable[
    [
        bytes,
        bytes,
        int,
        int,
        int,
        str,
        Any,
        "AbstractSet[str] | None",
        Callable[[bytes], int],
        Callable[..., Any],
    ],
    "list[Any] | None",
]
"""Takes records back to back, a topic as it stands in a V1 record, queue id, the least queue offset that is wanted, the
one that comes next, topic, queue, the wanted tags, None for all, what sums up a body, and what makes a message of the
fields of `ReceivedMessage`. Returns the wanted messages. Declines all, if one is no plain V1 record of that topic and
queue with IPv4 hosts, or compressed, is damaged, has offsets that do not rise, or a property without name or value."""

EachAnswer = Callable[["tuple[bytes, ...]", list[Any], list[int]], "list[bytes] | None"]
"""Takes what `JoinAnswers` does, and returns each answer by itself."""

ReceiveFrames = Callable[
    [list[int], int, int, int, int, Callable[[int, bytes, bytes], Any]], "list[Any] | None"
]
"""Takes descriptors of sockets, how much to read of each at most, and of all together, the most bytes of a frame and of
a header, and what makes a frame. Reads once of each, in order, as long as all together leave room for the next. Returns
for each that it has read of: a frame if it had one and no more, else its bytes, b"" at its end; or the number of the
error, EAGAIN if it had nothing."""

SendEach = Callable[[list[int], list[bytes]], "list[int] | None"]
"""Takes descriptors of sockets, and for each what to write. Returns how many bytes each took, or the number of the
error, below 0."""

RecordColumns = Callable[[Bytes, Bytes], "tuple[bytes, bytes, bytes] | None"]
"""Takes bytes, and where records stand in them: int64s, the first place of a stretch and that after it, again and
again, ascending. Returns columns of int64s, one after the other: where each record begins, its body, the length of its
topic, its topic, where that ends, where the record ends, its store host, and the store time in ms; and the fields
before the born host, and those behind the store host, of all of them, as they stand there. Declines all, if one is not
whole."""

PropertyJson = Callable[[Bytes, Bytes, Bytes], "tuple[bytes, bytes] | None"]
"""Takes bytes, and where properties of records begin and end in them, int64s. Returns offsets and text of Arrow's
strings: an object of texts for each. Declines all, if one has a name twice, a control character, or a pair that is not
whole."""

PropertyValues = Callable[[Bytes, Bytes, Bytes, bytes], "tuple[bytes, bytes, bytes] | None"]
"""Takes the same, and a name. Returns validity, offsets and text of Arrow's strings: the value that each has; null
where it has none. Declines what `PropertyJson` does."""


class _Functions(NamedTuple):
    """The functions of the stage."""

    read_batch: ReadBatch
    batch_keys: BatchKeys
    batch_records: BatchRecords
    place_records: PlaceRecords
    encode_records: EncodeRecords
    parse_records: ParseRecords
    fold_usual: FoldUsual
    fold_entry: FoldEntry
    chain: Chain
    chained_keys: ChainedKeys
    asked_values: AskedValues
    judged_records: JudgeRecords
    chosen_runs: ChooseRuns
    cut_frames: CutFrames
    read_sends: ReadSends
    join_answers: JoinAnswers
    received_messages: ReceivedMessages
    each_answer: EachAnswer
    receive_frames: ReceiveFrames
    send_each: SendEach
    record_columns: RecordColumns
    property_json: PropertyJson
    property_values: PropertyValues


def _decline(*_arguments: object) -> None:
    """Do nothing: the Python code beside the call does it."""


def _find() -> _Functions | None:
    """Return the functions of the stage; None: it was not built, or not since one was added."""
    try:
        from dledger_mq.message import _compiled

        return _Functions._make(getattr(_compiled, name) for name in _Functions._fields)
    except (AttributeError, ImportError):
        return None


_NONE: Final = _Functions._make(_decline for _ in _Functions._fields)
_FOUND: Final = _find()
is_built = _FOUND is not None
is_used = False

# Set by `choose`.
read_batch: ReadBatch
batch_keys: BatchKeys
batch_records: BatchRecords
place_records: PlaceRecords
encode_records: EncodeRecords
parse_records: ParseRecords
fold_usual: FoldUsual
fold_entry: FoldEntry
chain: Chain
chained_keys: ChainedKeys
asked_values: AskedValues
judged_records: JudgeRecords
chosen_runs: ChooseRuns
cut_frames: CutFrames
read_sends: ReadSends
join_answers: JoinAnswers
received_messages: ReceivedMessages
each_answer: EachAnswer
receive_frames: ReceiveFrames
send_each: SendEach
record_columns: RecordColumns
property_json: PropertyJson
property_values: PropertyValues


def choose(*, is_wanted: bool) -> None:
    """Use the stage from now on, if it is wanted and was built; for all of the process."""
    # A choice of the process, looked up by each call.
    global is_used
    is_used = is_wanted and is_built
    functions = _FOUND if is_used and _FOUND else _NONE
    globals().update(functions._asdict())


def describe() -> str:
    """Return which way is in use, in words."""
    if is_used:
        return "compiled code"
    return "Python (the compiled code is switched off)" if is_built else "Python (not compiled)"


choose(is_wanted=True)
