"""Which messages of the queues are wanted: by tag, by a condition on properties in SQL92, by key.

A broker is asked for as much of that as one expression says, so that the rest does not travel. Whatever was asked, the
messages that came are looked at again (masks.py). Needs none of the libraries of Spark's jobs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dledger_mq.client.errors import ClientUsageError
from dledger_mq.client.subscriptions import EVERYTHING, BySql


@dataclass(frozen=True, slots=True)
class MessageChoice:
    """The messages that are wanted. A message is, if each of the three says so.

    Attributes:
        tags: one of these; none: any.
        condition: on its properties, in SQL92; None: any.
        keys: one of these is among its keys; none: any.
    """

    tags: tuple[str, ...] = ()
    condition: str | None = None
    keys: tuple[str, ...] = ()

    @property
    def is_everything(self) -> bool:
        """True where nothing is left out."""
        return self == MessageChoice()

    @property
    def asked(self) -> str | BySql:
        """The expression that brokers are asked for: all of the selection, or as much as can be said in one."""
        conditions = [
            *([f"TAGS IN ({_texts(self.tags)})"] if self.tags else []),
            *([f"({self.condition}\n)"] if self.condition is not None else []),
            *(
                [f"({' OR '.join(f'KEYS CONTAINS {_text(k)}' for k in self.keys)})"]
                if self.keys
                else []
            ),
        ]
        if self.keys or (self.tags and self.condition is not None):
            try:
                return BySql(" AND ".join(conditions))
            except ClientUsageError:  # too long, or nested too deep, in one
                pass
        return self.asked_plainly

    @property
    def asked_plainly(self) -> str | BySql:
        """The condition, or else the tags: what a broker must be able to judge."""
        if self.condition is not None:
            return BySql(self.condition)
        return " || ".join(self.tags) or EVERYTHING


def _text(text: str) -> str:
    """Return a text as SQL92 has it."""
    return "'" + text.replace("'", "''") + "'"


def _texts(texts: Iterable[str]) -> str:
    return ", ".join(map(_text, texts))
