"""The keys by which brokers recognize a repeated row; they do not depend on the attempt of a task."""

from __future__ import annotations

from collections.abc import Sequence

from dledger_mq import row_key
from pipeline.sink.columns import COORDINATES

Place = tuple[object, object, object, object]
"""The source's coordinates of a row, in the order of `COORDINATES`."""


class RowKeyMaker:
    """Makes the keys of one partition's rows, from the columns that name a row."""

    def __init__(self, columns: tuple[str, ...], partition: int) -> None:
        self._columns = columns
        self._partition = str(partition)
        self._seen: set[bytes] = set()  # of the source's coordinates, which must differ

    def one(self, number: int, row_id: object, place: Place) -> bytes:
        """Return the key of a row.

        Raises:
            ValueError: the row cannot be known again.
        """
        if not self._columns:
            return row_key("position", self._partition, str(number))
        if self._columns == COORDINATES:
            if None in place:
                raise ValueError(
                    f"one of {', '.join(COORDINATES)} is null: the row cannot be known again"
                )
            key = row_key("source", *map(str, place))
            if key in self._seen:
                raise ValueError(
                    f"a second row of this partition comes from {place[0]}@{place[1]}/{place[2]} offset "
                    f"{place[3]}: give a column idempotencyKey that distinguishes them"
                )
            self._seen.add(key)
            return key
        if row_id is None:
            raise ValueError("idempotencyKey is null: the row cannot be known again")
        return row_key("key", row_id if isinstance(row_id, bytes) else str(row_id))

    def several(
        self, first: int, row_ids: Sequence[object], places: Sequence[Place]
    ) -> list[bytes] | None:
        """Return the keys of rows numbered from `first` on; None, and nothing kept, if one cannot be known again.

        Args:
            first: number of the first of them.
            row_ids: of each; None for all of them where they name no row.
            places: of each likewise.
        """
        made: list[bytes] = []
        try:
            for number, (row_id, place) in enumerate(zip(row_ids, places, strict=True)):
                made.append(self.one(first + number, row_id, place))
        except ValueError:
            self._seen.difference_update(made)  # none of them was there before
            return None
        return made
