"""The window of recent sends is not looked at: what a client sends again is stored again."""

from typing import Any

from broker.service.repeats import EarlierSend, Repeats
from broker.service.sameness import Essence


def find(
    self: Repeats, uniq_key: bytes, asked: Essence, born_ms: int, **how: Any
) -> EarlierSend | None:
    return None


Repeats.find = find  # type: ignore[method-assign]
