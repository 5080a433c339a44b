"""Batches all of whose messages are plain: what they have in common is decided once, and of each only its key is taken.

Such a batch is staged from the bytes that its client sent (broker/store/entry_bodies.py). Whoever looks at one of its
messages nevertheless (one of them may have come before) has them all planned, as those of any other batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar, overload

from broker.service.shapes import Shapes

_T = TypeVar("_T")


class PlainBatch(Sequence[_T], Generic[_T]):
    """The messages of a plain batch, in their order.

    Attributes:
        data: the batch as its client sent it.
        keys: the unique key of each message; nobody changes the list.
        shapes: by which it was found to be plain.
    """

    __slots__ = ("_messages", "_plan", "data", "keys", "shapes")

    def __init__(
        self, data: bytes, keys: list[bytes], shapes: Shapes, plan: Callable[[], tuple[_T, ...]]
    ) -> None:
        self.data = data
        self.keys = keys
        self.shapes = shapes
        self._plan = plan
        self._messages: tuple[_T, ...] | None = None

    @property
    def messages(self) -> tuple[_T, ...]:
        """All messages, planned one by one."""
        if self._messages is None:
            self._messages = self._plan()
            assert len(self._messages) == len(self.keys), "a key for each message"
        return self._messages

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, at: int) -> _T: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[_T, ...]: ...
    def __getitem__(self, at: int | slice) -> _T | tuple[_T, ...]:
        return self.messages[at]

    def __iter__(self) -> Iterator[_T]:
        return iter(self.messages)

    def __eq__(self, other: object) -> bool:
        return self.messages == (other.messages if isinstance(other, PlainBatch) else other)
