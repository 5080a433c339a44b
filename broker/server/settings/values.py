"""Typed access to the values of a broker.conf that gathers mistakes instead of ending at the first one. Pure.

Every value that is asked for is noted with its default and range, so that the page of keys and `--check` show what is
really read. After a mistake the default is returned and reading goes on: whoever reads must look at `mistakes` before
anything is done with the result.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from broker.server.settings.table import BROKER_KEYS
from broker.settings.judging import FLAGS, NUMBER, Mistake
from broker.settings.keys import HonouredKey

_WITH_UNIT: Final = re.compile(r"[0-9.]+ ?[A-Za-z%]+")
_NO_BOUND: Final = 2**62
_OPTIONS: Final = {
    "dLegerGroup": "--group",
    "dLegerSelfId": "--id",
    "dLegerPeers": "--peers",
    "storePathRootDir": "--store",
}
"""Keys that must be there, and their names on the command line."""


@dataclass(frozen=True, slots=True)
class ReadKey:
    """A key as it was read.

    Attributes:
        default: the value that holds without the key.
        values: what it may be, in words; empty: any text.
    """

    default: str
    values: str = ""


class Values:
    """The values of a file and a command line, with what is wrong with them.

    Attributes:
        mistakes: in the order in which they were found.
        asked: every key that was read, in that order.
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        self.mistakes: list[Mistake] = []
        self.asked: dict[str, ReadKey] = {}
        self._values = values

    def refuse(self, key: str, text: str) -> None:
        """Note a mistake that nothing forgives."""
        self.mistakes.append(Mistake(key, text))

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text; without a default a key that is missing is a mistake, and the text is empty."""
        self.asked[key] = ReadKey(default or "")
        value = self._values.get(key, "").strip()
        if not value and default is None:
            flag = _OPTIONS.get(key)
            where = f": give {flag} or set it in broker.conf" if flag else ""
            self.refuse(key, f"{key} is missing{where}")
        return value or default or ""

    def number(self, key: str, default: int, *, low: int = 0, high: int = _NO_BOUND) -> int:
        """Return a number from `low` to `high`."""
        text = self.text(key, str(default))
        span = f"from {low} to {high}" if high < _NO_BOUND else f"of at least {low}"
        self.asked[key] = ReadKey(str(default), span.removeprefix("from ").removeprefix("of "))
        if NUMBER.fullmatch(text) is not None and low <= int(text) <= high:
            return int(text)
        self._note_wrong(key, f"{key}={text} is not a number {span}{_unit(key, text)}")
        return default

    def boolean(self, key: str, *, default: bool) -> bool:
        """Return whether it is true."""
        return self.choice(key, FLAGS, "true" if default else "false") == "true"

    def choice(self, key: str, allowed: tuple[str, ...], default: str) -> str:
        """Return one of the words that are allowed, which may stand there in any case."""
        text = self.text(key, default)
        self.asked[key] = ReadKey(default, ", ".join(allowed))
        for item in allowed:
            if text.lower() == item.lower():
                return item
        self._note_wrong(key, f"{key}={text} is not one of {', '.join(allowed)}")
        return default

    def _note_wrong(self, key: str, text: str) -> None:
        """Note a wrong value, which is forgiven where its default cannot let in, lose or show more."""
        found = BROKER_KEYS.find(key)
        assert found is not None, f"{key} is read, and stands in no table"
        row = found[1]
        is_strict = not isinstance(row, HonouredKey) or row.is_strict
        self.mistakes.append(Mistake(key, text, is_forgivable=not is_strict))


def _unit(key: str, text: str) -> str:
    """Say what a number counts, to somebody who has written a unit."""
    found = BROKER_KEYS.find(key)
    row = found[1] if found is not None else None
    if _WITH_UNIT.fullmatch(text) is None or not isinstance(row, HonouredKey):
        return ""
    return f": it counts {row.unit}, without a unit" if row.unit else ": it has no unit"
