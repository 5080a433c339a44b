"""What is wrong with a file of settings: unknown keys, what is refused, values of the wrong form. Pure.

Values of honoured keys are judged where they are read, since only there their ranges are known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from broker.settings.key_table import KeyTable
from broker.settings.keys import Key, NeedlessKeys, RefusedKey, ValueKind

NUMBER: Final = re.compile("-?[0-9]{1,20}")
FLAGS: Final = ("true", "false")
_FRACTION: Final = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?")


@dataclass(frozen=True, slots=True)
class Mistake:
    """A setting that cannot hold.

    Attributes:
        text: the reason, with the value.
        is_forgivable: `--lenient` may go on without it.
    """

    key: str
    text: str
    is_forgivable: bool = False


def judge(given: Mapping[str, str], table: KeyTable) -> tuple[list[Mistake], list[tuple[str, str]]]:
    """Judge the keys that nobody reads: the unknown, the refused and the needless.

    Args:
        given: keys and values as they stand in the file and on the command line.
        table: of the file's keys.

    Returns:
        The mistakes, and for each key that is passed over its name and why.
    """
    mistakes: list[Mistake] = []
    notes: list[tuple[str, str]] = []
    for name, raw in given.items():
        value, found = raw.strip(), table.find(name)
        if found is None:
            mistakes.append(_unknown(name, value, table))
            continue
        match found[1]:
            case RefusedKey() as row:
                if value and value.lower() not in (item.lower() for item in row.accepts):
                    mistakes.append(Mistake(name, f"{name}={value}: {row.reason}"))
                elif row.note:
                    notes.append((name, row.note))
            case NeedlessKeys(reason=reason):
                wrong = _wrong_form(found[0], value)
                if wrong:
                    mistakes.append(Mistake(name, wrong, is_forgivable=True))
                else:
                    notes.append((name, reason))
            case _:
                pass  # honoured: whoever reads it judges it
    return mistakes, notes


def _unknown(name: str, value: str, table: KeyTable) -> Mistake:
    """Say which key may have been meant; an unknown protection is not to be passed over."""
    meant = table.nearest(name)
    hint = f"is {meant} meant?" if meant else f"no key has a name like it ({table.page})"
    text = f"{name} is unknown and cannot be used: {hint}"
    is_off = value.lower() in ("false", "")
    return Mistake(name, text, is_forgivable=is_off or not table.seems_to_protect(name))


def _wrong_form(key: Key, value: str) -> str | None:
    """Return what is wrong with the form of a value that is not used; None: nothing."""
    is_right = {
        ValueKind.NUMBER: NUMBER.fullmatch(value) is not None,
        ValueKind.FRACTION: _FRACTION.fullmatch(value) is not None,
        ValueKind.FLAG: value.lower() in FLAGS,
        ValueKind.TEXT: True,
    }[key.kind]
    return None if is_right or not value else f"{key.name}={value} is not {key.kind.value}"


def join_mistakes(texts: Sequence[str], file: str | None) -> str:
    """Return all mistakes as one text: a single one in a line, several in a line each.

    Args:
        texts: what is wrong, at least one.
        file: its name as the user gave it; None: there is none.
    """
    if len(texts) > 1:
        head = f"{file} has {len(texts)} mistakes" if file else f"{len(texts)} settings are wrong"
        return "\n  ".join((f"{head}:", *texts))
    separator = ", " if texts[0].startswith("line ") else ": "
    return f"{file}{separator}{texts[0]}" if file else texts[0]
