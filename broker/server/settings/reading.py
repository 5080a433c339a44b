"""What came of reading settings: what would hold, from where, and what is wrong. Pure values and their words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from broker.server.settings.table import BROKER_KEYS
from broker.server.settings.values import ReadKey
from broker.settings.judging import Mistake
from broker.settings.keys import HonouredKey
from broker.settings.tls import PASSWORDS

HIDDEN: Final = PASSWORDS | {
    "secret",
    "innerClientAuthenticationCredentials",
    "initAuthenticationUser",
}
"""Keys whose values are shown to nobody."""

_LINK: Final = re.compile(r"\[([^]]*)\]\([^)]*\)")


@dataclass(frozen=True, slots=True)
class Given:
    """Settings as they were given.

    Attributes:
        file: of broker.conf.
        flags: of the command line, under the same keys; they win.
        added: what a file without members leaves out.
        lines: where in the file a key stands, where that is known.
    """

    file: Mapping[str, str]
    flags: Mapping[str, str] = field(default_factory=dict)
    added: Mapping[str, str] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, str]:
        """All keys with the values that win."""
        return {**self.added, **self.file, **self.flags}

    def without(self, forgiven: Sequence[Mistake]) -> Given:
        """Return what is left when mistakes are passed over."""
        keys = {each.key for each in forgiven}
        file = {key: value for key, value in self.file.items() if key not in keys}
        flags = {key: value for key, value in self.flags.items() if key not in keys}
        return Given(file, flags, self.added, self.lines)

    def origin(self, key: str) -> str:
        """Return where the value of a key comes from."""
        if key in self.flags:
            return "command line"
        if self.file.get(key, "").strip():
            return f"line {self.lines[key]}" if key in self.lines else "file"
        return "group of one node" if key in self.added else "default"

    def place(self, mistake: Mistake) -> int:
        """Return the line of a mistake, by which they are told; 0 for one without."""
        return 0 if mistake.key in self.flags else self.lines.get(mistake.key, 0)

    def placed(self, mistake: Mistake) -> str:
        """Return what is wrong, with its line where it has one."""
        line = self.place(mistake)
        return f"line {line}: {mistake.text}" if line else mistake.text


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting as it would hold.

    Attributes:
        origin: the line, `command line`, `default`, ...
        effect: what it does, or why it does nothing.
    """

    key: str
    value: str
    origin: str
    effect: str


def list_settings(
    given: Given, asked: Mapping[str, ReadKey], notes: Sequence[tuple[str, str]]
) -> tuple[Setting, ...]:
    """Return every setting that is read, then those that are given and not used.

    Args:
        given: where values come from.
        asked: the keys that were read, with their defaults.
        notes: keys that are not used, and why.
    """
    values = given.values
    read = [
        Setting(key, _shown(key, values, asked[key].default), given.origin(key), _effect(key))
        for key in asked
    ]
    return (
        *read,
        *(
            Setting(key, _shown(key, values, ""), given.origin(key), f"not used: {why}")
            for key, why in notes
        ),
    )


def _shown(key: str, values: Mapping[str, str], default: str) -> str:
    value = values.get(key, "").strip() or default
    return "(hidden)" if value and key in HIDDEN else value


def _effect(key: str) -> str:
    """Return the meaning of a key without the marks of Markdown."""
    found = BROKER_KEYS.find(key)
    row = None if found is None else found[1]
    assert isinstance(row, HonouredKey), f"{key} is read, and is not in the table as honoured"
    return _LINK.sub(r"\1", row.meaning).replace("`", "")
