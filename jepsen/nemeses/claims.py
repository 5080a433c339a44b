"""The joint shape of a link that several faults shape at the same time. Pure.

A partition may strike while everything is delayed. Each fault claims shapes of links under its name; a link has the
shape that is joined of all claims to it, and a cure takes back the claims of its own fault alone. So the other one
stays in force, as the history says.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from jepsen.systems.api import WHOLE, Flow, Link, Shape

_WORST_FIRST: Final[tuple[Flow, ...]] = ("reset", "drop", "stall")


class Claims:
    """The claims to all links of a group."""

    def __init__(self) -> None:
        self._of: dict[Link, dict[str, Shape]] = {}

    def claim(self, link: Link, shape: Shape, owner: str) -> Shape:
        """Set an owner's claim on a link; return the resulting shape of the link."""
        claims = self._of.setdefault(link, {})
        claims.pop(owner, None)
        if shape != WHOLE:
            claims[owner] = shape
        return self.of(link)

    def release(self, owner: str | None) -> dict[Link, Shape]:
        """Release an owner's claims (None: everybody's); return the resulting shapes of these links."""
        links = [link for link, claims in self._of.items() if claims and owner in {None, *claims}]
        for link in links:
            claims = self._of[link]
            self._of[link] = (
                {} if owner is None else {o: s for o, s in claims.items() if o != owner}
            )
        return {link: self.of(link) for link in links}

    def of(self, link: Link) -> Shape:
        """Return the shape of a link."""
        return joined(self._of.get(link, {}).values())

    def leaving(self, source: str) -> list[Shape]:
        """Return the shapes of all links that begin there."""
        return [self.of(link) for link in self._of if link[0] == source]


def joined(shapes: Collection[Shape]) -> Shape:
    """Return the shape of a link that all of these are wanted of: where nothing passes, nothing else matters."""
    flow = next((flow for flow in _WORST_FIRST if any(each.flow == flow for each in shapes)), None)
    if flow is not None:
        return Shape(flow=flow)
    rates = [each.bytes_per_s for each in shapes if each.bytes_per_s]
    return Shape(
        delay_ms=sum(each.delay_ms for each in shapes),
        jitter_ms=sum(each.jitter_ms for each in shapes),
        retransmit=max((each.retransmit for each in shapes), default=0.0),
        lose=max((each.lose for each in shapes), default=0.0),
        duplicate=max((each.duplicate for each in shapes), default=0.0),
        reorder=max((each.reorder for each in shapes), default=0.0),
        corrupt=max((each.corrupt for each in shapes), default=0.0),
        bytes_per_s=min(rates, default=0),
    )
