"""Comparison of two derived states: the first difference of each component, in words.

Whether components are equal is asked of their digests, which are the same on every replica whatever it keeps in
memory. Only where digests differ is looked for the place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from broker.store.consume_queue import ConsumeQueue
from broker.store.saved import LENGTH, ByteSource, decode_head
from broker.store.state import BrokerState
from broker.store.unit_stores import UNIT_BYTES
from dledger_mq.message.numbers import QueueOffset

_UNITS_AT_ONCE: Final = 4096


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between a node's derived state and the state that follows from its log.

    Attributes:
        component: of the state: queues, key_index, offsets, transactions, ...
        where: the place: topic, queue and offset, or file and byte, or a path in a table.
        from_log, kept: what each says there.
    """

    component: str
    where: str
    from_log: str
    kept: str

    def __str__(self) -> str:
        return f"{self.component}, {self.where}: the log gives {self.from_log}, kept is {self.kept}"


def state_differences(folded: BrokerState, kept: BrokerState) -> list[Difference]:
    """Return one difference for each component that differs, the first of it; both at the same applied index."""
    one, other = folded.digests(), kept.digests()
    found: list[Difference] = []
    for component in one:
        if one[component] == other.get(component):
            continue
        if component == "queues":
            found.append(_queue_difference(folded, kept))
        elif component == "key_index":
            found.append(_index_difference(folded, kept))
        else:
            left, right = tables(folded)[component], tables(kept)[component]
            found.append(_table_difference(component, left, right))
    return found


def _queue_difference(folded: BrokerState, kept: BrokerState) -> Difference:
    for key in sorted(folded.queues.by_key.keys() | kept.queues.by_key.keys()):
        one, other = folded.queues.by_key.get(key), kept.queues.by_key.get(key)
        where = f"topic {key[0].decode(errors='replace')}, queue {key[1]}"
        if one is None or other is None:
            return Difference("queues", where, _size(one), _size(other))
        if (one.max_offset, one.digest()) != (other.max_offset, other.digest()):
            return _unit_difference(where, one, other)
    return Difference("queues", "order of the queues", "one", "another")


def _size(queue: ConsumeQueue | None) -> str:
    return "no such queue" if queue is None else f"{queue.max_offset} messages"


def _unit_difference(where: str, one: ConsumeQueue, other: ConsumeQueue) -> Difference:
    """Find the first unit that differs in what both queues hold; if none does, their ends differ."""
    first, end = max(one.min_offset, other.min_offset), min(one.max_offset, other.max_offset)
    for start in map(QueueOffset, range(first, end, _UNITS_AT_ONCE)):
        count = min(_UNITS_AT_ONCE, end - start)
        place = first_byte(bytes(one.units(start, count)), bytes(other.units(start, count)))
        if place is not None:
            offset = QueueOffset(start + place // UNIT_BYTES)
            return Difference(
                "queues",
                f"{where}, offset {offset}",
                str(one.unit(offset)),
                str(other.unit(offset)),
            )
    return Difference("queues", f"{where}, offset {end}", _size(one), _size(other))


def _index_difference(folded: BrokerState, kept: BrokerState) -> Difference:
    one, other = _joined(folded), _joined(kept)
    place = first_byte(one, other)
    where = f"byte {place} of the segments" if place is not None else "units that were trimmed"
    return Difference(
        "key_index", where, f"{len(one)} bytes of units", f"{len(other)} bytes of units"
    )


def _joined(state: BrokerState) -> bytes:
    return b"".join(state.key_index.saved_units())


def first_byte(one: bytes, other: bytes) -> int | None:
    """Return the first byte in which two texts differ; None when they are equal."""
    if one == other:
        return None
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


def tables(state: BrokerState) -> dict[str, object]:
    """Return the state's small components as plain lists and maps, by name: what a snapshot says of them."""
    source = ByteSource(state.snapshot())
    (size,) = LENGTH.unpack(source.read(LENGTH.size))
    head = decode_head(source.read(size))
    return {name: msgspec.msgpack.decode(raw) for name, raw in head.tables.items()}


def _table_difference(component: str, one: object, other: object) -> Difference:
    for path, left, right in _differing(one, other, ""):
        return Difference(component, path or "all of it", _short(left), _short(right))
    return Difference(component, "the digest alone", "one", "another")


def _differing(one: object, other: object, path: str) -> Iterator[tuple[str, object, object]]:
    """Yield the places at which two plain values differ, outermost first."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in sorted(one.keys() | other.keys(), key=str):
            yield from _differing(one.get(name), other.get(name), f"{path}/{name}")
    elif isinstance(one, list) and isinstance(other, list):
        for place in range(max(len(one), len(other))):
            left = one[place] if place < len(one) else None
            right = other[place] if place < len(other) else None
            yield from _differing(left, right, f"{path}/{place}")
    elif one != other:
        yield path, one, other


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
