"""Shapes of records: topic and properties as they stand behind a record's body, but for the value of UNIQ_KEY.

A producer's records have one shape or a few, and all that the fold needs of these bytes, the key aside, follows from
it. So whoever has read a record the ordinary way may have its shape remembered, and what has the same shape is not read
again. A shape proves as much as it spares: whatever has it has a topic that is text, and lengths that add up.

A table of results, which may be forgotten at any time. Nothing here reads a record (broker/store/parse.py).
"""

from __future__ import annotations

from typing import Final

from dledger_mq.message.properties import KEYS, PAIR_SEPARATOR, UNIQ_KEY

SHAPES_MAX: Final = 1024
SHAPE_BYTES_MAX: Final = 1024
"""Bounds of the table: it is emptied when it is full, and longer shapes are not remembered."""

KEY_MARK: Final = UNIQ_KEY + b"\x01"
KEY_END: Final = PAIR_SEPARATOR
_KEYS_MARK: Final = KEYS + b"\x01"
_LENGTHS_BYTES: Final = 1 + 2

Shape = tuple[bytes, int, int, "bytes | None"]
"""Topic; bytes of the key; tag hash, 0 for none; KEYS. A plain tuple, as it is unpacked for each record."""

_Left = tuple[bytes, bytes, bytes, bool]
"""What is left of a record's text without the values of UNIQ_KEY and KEYS, in order; whether KEYS comes first."""


class RecordShapes:
    """The shapes that were seen lately.

    What stands before the key is meant from the topic's length up to the first `KEY_MARK`; what stands behind it, from
    behind the `KEY_END` that follows, is not empty. The lengths in a shape hold for values of its own length only.

    Attributes:
        known: shapes of records without KEYS, by what stands before and behind the key.
    """

    def __init__(self) -> None:
        self.known: dict[tuple[bytes, bytes], Shape] = {}
        self._with_keys: dict[_Left, tuple[bytes, int, int]] = {}

    def find_with_keys(self, before: bytes, behind: bytes) -> Shape | None:
        """Return the shape of a record with KEYS, the value of which is cut out, too; None: it is not known."""
        cut = _cut_keys(before, behind)
        if cut is None:
            return None
        keys, left = cut
        found = self._with_keys.get(left)
        if found is None:
            return None
        topic, values_bytes, tag_hash = found
        key_bytes = values_bytes - len(keys)
        return (topic, key_bytes, tag_hash, keys) if keys and key_bytes > 0 else None

    def learn(self, before: bytes, behind: bytes, shape: Shape) -> None:
        """Remember the shape of a sound record whose UNIQ_KEY is what stands between these, if they are plain."""
        topic, key_bytes, tag_hash, keys = shape
        is_long = len(before) + len(behind) > SHAPE_BYTES_MAX
        if is_long or not behind or KEY_MARK in behind or not _is_property(before, topic):
            return  # of several properties of a name the last one counts
        if len(self.known) + len(self._with_keys) >= SHAPES_MAX:
            self.known.clear()
            self._with_keys.clear()
        cut = _cut_keys(before, behind)
        if cut is None:
            self.known[before, behind] = shape
            return
        found, left = cut
        _, at, rest, is_first = left
        is_property = _is_property(left[0], topic) if is_first else not at or at.endswith(KEY_END)
        is_ended = at if is_first else rest
        if (
            found == keys
            and is_property
            and is_ended
            and not any(_KEYS_MARK in text for text in left[:3])
        ):
            self._with_keys[left] = topic, key_bytes + len(keys), tag_hash


def _cut_keys(before: bytes, behind: bytes) -> tuple[bytes, _Left] | None:
    """Return what stands behind the first mark of KEYS up to its end, and what is left; None: there is no mark."""
    start, mark, rest = before.partition(_KEYS_MARK)
    if mark:
        keys, end, rest = rest.partition(KEY_END)
        return keys, (start, end + rest, behind, True)
    start, mark, rest = behind.partition(_KEYS_MARK)
    if mark:
        keys, end, rest = rest.partition(KEY_END)
        return keys, (before, start, end + rest, False)
    return None


def _is_property(start: bytes, topic: bytes) -> bool:
    """Return whether a property begins behind these bytes, the first of which is the topic's length."""
    properties_at = len(topic) + _LENGTHS_BYTES
    return len(start) == properties_at or (len(start) > properties_at and start.endswith(KEY_END))
