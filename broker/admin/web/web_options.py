"""The options of a console, as its command line and environment give them."""

from __future__ import annotations

from dataclasses import dataclass

from dledger_mq.net.address import Address


@dataclass(frozen=True, slots=True)
class WebOptions:
    """The options of a console.

    Attributes:
        listen: where browsers reach it.
        token: None: nobody can sign in.
        is_token_new: it was made at this start, and is to be printed.
        may_change: whether those who have signed in may change anything.
        is_open: whether those who have not may look.
    """

    name_servers: tuple[str, ...]
    listen: Address
    host_names: tuple[str, ...]
    token: str | None
    is_token_new: bool
    may_change: bool
    is_open: bool
