"""Places outside memory for a part of the state: one that is in use, and one beside it that is being filled.

A state that is taken in from another member is built beside the one that is shown, so both need a place of their own
for a while. Nothing here knows what stands there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, Self


class PartPlace(Protocol):
    """The place of one component. It may lose everything at a restart."""

    def beside(self) -> Self:
        """Return an empty place of the same kind."""
        ...

    def take_place_of(self, other: Self) -> None:
        """Stand from now on where the other one stood, which goes on beside it.

        Raises:
            OSError: it failed; both can be read and written all the same.
        """
        ...

    def close(self) -> None:
        """Use nothing of it any more. What it has may stay on disk: the next start wipes it."""
        ...

    def removing(self) -> Iterator[None]:
        """Close it and remove what it has, in short steps."""
        ...


class MemoryPlace:
    """A place in memory."""

    def beside(self) -> Self:
        """Return an empty one; see `PartPlace`."""
        return type(self)()

    def take_place_of(self, other: Self) -> None:
        """Do nothing: it stands nowhere; see `PartPlace`."""

    def close(self) -> None:
        """Do nothing; see `PartPlace`."""

    def removing(self) -> Iterator[None]:
        """Do nothing; see `PartPlace`."""
        return iter(())
