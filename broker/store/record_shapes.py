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

FoldedProperties = tuple[int, "bytes | None", "bytes | None"]
"""Tag hash, 0 for none; UNIQ_KEY; KEYS as it stands in the record. What the fold comes to need of a
record's properties is added here: those who build records hand these on without looking."""

Shape = tuple[bytes, int, int, "bytes | None"]
"""Topic; bytes of the key; tag hash, 0 for none; KEYS. A plain tuple, as it is unpacked for each record."""

_Left = tuple[bytes, bytes, bytes, bool]
"""The three pieces around the values of UNIQ_KEY and KEYS, in their order, the end of KEYS included; whether KEYS comes
first."""


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

    def find(self, before: bytes, behind: bytes) -> Shape | None:
        """Return the shape of a record; None: it is not known."""
        return self.known.get((before, behind)) or self.find_with_keys(before, behind)

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

    def learn(
        self, cut: tuple[bytes, bytes, bytes], topic: bytes, properties: FoldedProperties
    ) -> None:
        """Remember the shape of a sound record, if it is plain.

        It is if the values that the ordinary way has found are those behind the first marks, and there are no others:
        then these marks are properties, as of several properties of a name the last one counts.

        Args:
            cut: what stands before the key, the key, and what stands behind it.
            topic: of the record.
            properties: what was found in them.
        """
        before, key, behind = cut
        tag_hash, uniq_key, keys = properties
        is_long = len(before) + len(behind) > SHAPE_BYTES_MAX
        if is_long or not behind or KEY_MARK in behind or not key or key != uniq_key:
            return
        if len(self.known) + len(self._with_keys) >= SHAPES_MAX:
            self.known.clear()
            self._with_keys.clear()
        cut_again = _cut_keys(before, behind)
        if cut_again is None:
            self.known[before, behind] = topic, len(key), tag_hash, None
            return
        found, left = cut_again
        if found == keys and not any(_KEYS_MARK in text for text in left[:3]):
            self._with_keys[left] = topic, len(key) + len(found), tag_hash


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
