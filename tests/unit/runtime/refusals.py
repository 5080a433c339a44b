"""A process that is short of descriptors for a while, as its log meets it."""

from __future__ import annotations

import errno
from collections import Counter
from typing import Any

import pytest

from dledger.storage.log_reader import CheckPlan, SegmentReader


class RefusedReads:
    """Refuses the next reads of entries beside the loop, and then as many on it; then all are as ever.

    Attributes:
        counts: reads that were refused, and given, by who made them.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refused: int) -> None:
        self.counts: Counter[str] = Counter()
        for reader in (CheckPlan, SegmentReader):
            self._refuse(monkeypatch, reader, refused)

    def _refuse(self, monkeypatch: pytest.MonkeyPatch, reader: type, refused: int) -> None:
        read, counts, name = reader.read, self.counts, reader.__name__  # type: ignore[attr-defined]

        def refuse_some(*arguments: Any) -> Any:
            has_begun = reader is CheckPlan or counts["CheckPlan refused"]
            if has_begun and counts[f"{name} refused"] < refused:
                counts[f"{name} refused"] += 1
                raise OSError(errno.EMFILE, "Too many open files")
            counts[f"{name} given"] += 1
            return read(*arguments)

        monkeypatch.setattr(reader, "read", refuse_some)
