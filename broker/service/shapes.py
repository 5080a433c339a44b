"""The shape of a message's properties: all of them but the value of UNIQ_KEY, which no two messages share.

A producer's messages mostly have the same shape, and all that the rules and the fold ask of properties, the key aside,
follows from it. So it is worked out once, by the same functions that read any properties, and remembered. Properties
that ask for something (a level, a due time, a transaction) or in which the broker replaces something have no plain
shape, nor have those with too many keys: what becomes of them is decided message by message (send.py).

Pure; a table of results, which may be forgotten at any time.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from broker.service.key_bounds import keys_refusal
from broker.store.parse import folded_properties
from broker.store.record_shapes import FoldedProperties
from dledger_mq.message import compiled
from dledger_mq.message.batch import BATCH_ITEMS_MAX
from dledger_mq.message.compiled import BatchColumns, ShapeParts
from dledger_mq.message.properties import (
    PAIR_SEPARATOR,
    PROPERTIES_BYTES_MAX,
    UNIQ_KEY,
    terminated,
)

DELAYED: Final = b"DELAY\x01"
HALF: Final = b"TRAN_MSG\x01"
TIMED: Final = b"TIMER_"
POPPED: Final = b"POP_CK\x01"
LIGHT: Final = b"INNER_MULTI_DISPATCH\x01"
REPLACED: Final = (b"MSG_REGION\x01", b"CLUSTER\x01")
"""Properties without these bytes ask for nothing, and nothing in them is replaced: a quick look, before a name is
really looked for."""

SHAPES_MAX: Final = 1024
SHAPE_BYTES_MAX: Final = 1024
"""Bounds of the table: it is emptied when it is full, and long properties are read anew each time."""

_KEY: Final = UNIQ_KEY + b"\x01"
_KEYS: Final = b"KEYS\x01"
_PAIR_END: Final = 2


class _Shape(NamedTuple):
    """The properties that begin and end in one plain way, apart from their key.

    Attributes:
        beginning: what stands before the key in the record.
        ending: what stands after it: the rest, and what the broker adds.
        tag_hash: of TAGS; 0 for none.
        keys: the value of KEYS.
    """

    beginning: bytes
    ending: bytes
    tag_hash: int
    keys: bytes | None


PlainProperties = tuple[bytes, bytes, FoldedProperties]
"""The UNIQ_KEY; the properties as they stand in the record; what the fold needs of these. A plain tuple, since one is
made for each message."""


class Shapes:
    """The shapes that were seen lately, for one stamp: the properties that the broker adds to every message."""

    def __init__(self, stamp: bytes) -> None:
        self._stamp = stamp
        self._known: dict[tuple[bytes, bytes], _Shape | None] = {}

    def __len__(self) -> int:
        return len(self._known)

    def read(self, properties: bytes) -> PlainProperties | None:
        """Read properties as a client gave them; None: they are not plain, or have no key, or are too long."""
        before, _, text = properties.partition(_KEY)
        uniq_key, end, rest = text.partition(PAIR_SEPARATOR)
        if not end or not uniq_key or (before and before[-1] != _PAIR_END):
            return None
        try:
            shape = self._known[before, rest]
        except KeyError:
            shape = self._look(before, rest)
        if shape is None or b"\x01" in uniq_key:
            return None
        stored = shape.beginning + uniq_key + shape.ending
        if len(stored) > PROPERTIES_BYTES_MAX:
            return None
        return uniq_key, stored, (shape.tag_hash, uniq_key, shape.keys)

    def read_batch(self, data: bytes) -> BatchColumns | None:
        """Read a batch as a client gave it in one go; None: it has to be taken apart item by item."""
        return compiled.read_batch(data, BATCH_ITEMS_MAX, self.find)

    def batch_keys(self, data: bytes) -> list[bytes] | None:
        """Return the unique keys of a batch; None: it is not plain, or has KEYS."""
        return compiled.batch_keys(data, BATCH_ITEMS_MAX, self.find)

    def find(self, before: bytes, rest: bytes) -> ShapeParts | None:
        """Return the shape of properties by what stands before and behind their key; None: it is not plain."""
        try:
            return self._known[before, rest]
        except KeyError:
            return self._look(before, rest)

    def _look(self, before: bytes, rest: bytes) -> _Shape | None:
        """Work out a shape, and remember it unless it will hardly come again."""
        shape = self._work_out(before + _KEY, PAIR_SEPARATOR + rest)
        is_short = len(before) + len(rest) <= SHAPE_BYTES_MAX
        if is_short and _KEYS not in before and _KEYS not in rest:
            if len(self._known) >= SHAPES_MAX:
                self._known.clear()
            self._known[before, rest] = shape
        return shape

    def _work_out(self, beginning: bytes, rest: bytes) -> _Shape | None:
        """Return what follows from a shape; None: it is not plain."""
        for text in (beginning, rest):
            if any(each in text for each in (DELAYED, HALF, TIMED, POPPED, LIGHT, *REPLACED)):
                return None
        if _KEY in rest:
            return None  # the last one counts
        ending = terminated(rest) + self._stamp
        tag_hash, uniq_key, keys = folded_properties(beginning + b"K" + ending)
        assert uniq_key == b"K", f"the key of {beginning!r} K {rest!r} is {uniq_key!r}"
        if keys_refusal(keys) is not None:
            return None  # whoever decides on it says so
        return _Shape(beginning, ending, tag_hash, keys)
