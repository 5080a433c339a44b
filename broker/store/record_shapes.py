"""Shapes of records: topic and properties as they stand behind a record's body, but for the value of UNIQ_KEY.

A producer's records have one shape or a few, and all that the fold needs of these bytes, the key aside, follows from
it. So whoever has read a record the ordinary way may have its shape remembered, and what has the same shape is not read
again. A shape proves as much as it spares: whatever has it has a topic that is text, and lengths that add up.

A table of results, which may be forgotten at any time. Nothing here reads a record (broker/store/parse.py).
"""

from __future__ import annotations

from typing import Final

from dledger_mq.message.properties import PAIR_SEPARATOR, UNIQ_KEY

SHAPES_MAX: Final = 1024
SHAPE_BYTES_MAX: Final = 1024
"""Bounds of the table: it is emptied when it is full, and longer shapes are not remembered."""

KEY_MARK: Final = UNIQ_KEY + b"\x01"
KEY_END: Final = PAIR_SEPARATOR

Shape = tuple[bytes, int, int, "bytes | None"]
"""Topic; bytes of the key; tag hash, 0 for none; KEYS. A plain tuple, as it is unpacked for each record."""


class RecordShapes:
    """The shapes that were seen lately.

    Attributes:
        known: by what stands before the key, from the topic's length up to `KEY_MARK`, and by what stands behind the
            `KEY_END` that follows it, which is not empty. The lengths in them hold for a key of the shape's own length.
    """

    def __init__(self) -> None:
        self.known: dict[tuple[bytes, bytes], Shape] = {}

    def learn(self, before: bytes, rest: bytes, shape: Shape) -> None:
        """Remember the shape of a sound record whose UNIQ_KEY stands behind the first `KEY_MARK`, if it is a property.

        Args:
            before: what stands before that mark.
            rest: what stands behind the key's end.
            shape: what was read.
        """
        topic = shape[0]
        mark_at, properties_at = len(before), 1 + len(topic) + 2
        is_property = mark_at == properties_at or (
            mark_at > properties_at and before[mark_at - 1 : mark_at] == KEY_END
        )
        if not is_property or not rest or KEY_MARK in rest:
            return  # the last property of that name counts, not the first
        if len(before) + len(rest) > SHAPE_BYTES_MAX:
            return
        if len(self.known) >= SHAPES_MAX:
            self.known.clear()
        self.known[before, rest] = shape
