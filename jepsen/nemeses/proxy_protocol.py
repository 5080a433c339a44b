"""The messages between the harness and its proxy process: one JSON object per line, each answered."""

from __future__ import annotations

from typing import Final

import msgspec

from jepsen.systems.api import Shape

NAME_SERVERS: Final = "name servers"
"""The end of links that nothing shapes: what registers goes past the proxies, so what asks back is let through."""


class Route(msgspec.Struct, frozen=True):
    """One listener of the proxy.

    Attributes:
        source: who connects there; None on a broker's client port, where the first frame says it: a
            HELLO of the link between brokers (docs/formats/broker_link.md) names its node, a question
            of a name server comes from NAME_SERVERS, all others are clients.
        target: whom it leads to.
        host, port: where the proxy listens.
        target_host, target_port: where the target listens.
    """

    source: str | None
    target: str
    host: str
    port: int
    target_host: str
    target_port: int


class Serve(msgspec.Struct, frozen=True, tag="serve"):
    """The first command: listen on all routes."""

    routes: list[Route]
    seed: int


class Treat(msgspec.Struct, frozen=True, tag="treat"):
    """A command: set the shape of the link from source to target."""

    source: str
    target: str
    shape: Shape


class Replay(msgspec.Struct, frozen=True, tag="replay"):
    """Send old frames once more."""

    source: str
    target: str
    count: int


class Swallowed(msgspec.Struct, frozen=True, tag="swallowed"):
    """A question: the number of bytes that cuts of this link have swallowed."""

    source: str
    target: str


Command = Serve | Treat | Replay | Swallowed


class Done(msgspec.Struct, frozen=True):
    """The answer to a command; `count` is how many frames were replayed, or bytes swallowed."""

    count: int = 0
    problem: str = ""
