"""The name of a queue as bodies spell it."""

from __future__ import annotations

import msgspec


class WireQueue(msgspec.Struct, frozen=True, order=True, rename="camel"):
    """One queue of one broker. Members in the order in which fastjson writes them."""

    broker_name: str = ""
    queue_id: int = 0
    topic: str = ""
