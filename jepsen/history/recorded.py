"""Histories that other tools recorded, as ours. Pure.

Two formats, both of Porcupine's test suite: Jepsen's log lines of an etcd run (a compare-and-set register), and EDN
maps, one a line, of a key-value service (get, put, append).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, TypeAlias

from jepsen.history.ops import Op, OpType

_LOG_LINE: Final = re.compile(
    r"INFO\s+jepsen\.util - (\d+)\s+:(invoke|ok|fail|info)\s+:(read|write|cas)\s+(.*?)\s*"
)
_KV_LINE: Final = re.compile(
    r"\{:process\s+(\d+),?\s+:type\s+:(invoke|ok),?\s+:f\s+:(get|put|append),?\s+"
    r':key\s+"([^"\\]*)",?\s+:value\s+(nil|"[^"\\]*")\}\s*'
)
_TYPES: Final[dict[str, OpType]] = {"invoke": "invoke", "ok": "ok", "fail": "fail", "info": "info"}
KEY: Final = "register"


RegisterValue: TypeAlias = int | list[int] | bool | None
"""A number, `[old, new]` of a compare-and-set, whether it was swapped, or nothing."""


class RecordedFormatError(ValueError):
    """A line is not of the format; names the line."""


def read_register_log(lines: Iterable[str]) -> list[Op]:
    """Read a Jepsen log of one register: process, type, operation and value, with tabs or blanks between.

    A compare-and-set that failed is an observation (the register held something else), so it stands as `ok` with the
    result False. Values: `nil`, a number, `[old new]`, or why nothing is known.

    Raises:
        RecordedFormatError: a line is something else.
    """
    ops: list[Op] = []
    for number, line in enumerate(lines, start=1):
        found = _LOG_LINE.fullmatch(line)
        if found is None:
            raise RecordedFormatError(f"line {number} is no operation on a register: {line!r}")
        process, type_, f, text = found.groups()
        if f == "cas" and type_ in ("ok", "fail"):
            value: RegisterValue = type_ == "ok"
            type_ = "ok"
        else:
            value = _register_value(text, number) if type_ in ("invoke", "ok") else None
        ops.append(Op(len(ops), len(ops), int(process), _TYPES[type_], f, [KEY, value]))
    return ops


def read_kv_edn(lines: Iterable[str]) -> list[Op]:
    """Read a key-value history: an EDN map with process, type, f, key and value on each line.

    Raises:
        RecordedFormatError: a line is something else.
    """
    ops: list[Op] = []
    for number, line in enumerate(lines, start=1):
        found = _KV_LINE.fullmatch(line)
        if found is None:
            raise RecordedFormatError(f"line {number} is no operation on a text: {line!r}")
        process, type_, f, key, text = found.groups()
        value = None if text == "nil" else text[1:-1]
        ops.append(Op(len(ops), len(ops), int(process), _TYPES[type_], f, [key, value]))
    return ops


def _register_value(text: str, line: int) -> RegisterValue:
    if text == "nil":
        return None
    try:
        if text.startswith("["):
            old, new = text.strip("[]").split()
            return [int(old), int(new)]
        return int(text)
    except ValueError:
        raise RecordedFormatError(f"line {line}: {text!r} is no value of a register") from None
