"""Histories in EDN, Clojure's data notation, so that Jepsen's own checkers and others (Elle, Knossos) can read them.

One map per line:

    {:index 7, :time 120394, :process 3, :type :ok, :f :send, :value {"key" "m4", "offset" 2}}
    {:index 9, :time 220394, :process :nemesis, :type :info, :f :kill-leader, :value {"do" "inject"}}

:time is in nanoseconds. Keys of maps in values stay strings, since they may be any text (names of queues). :error and
:node stand there when they are known.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Final

from jepsen.history.ops import Op

_KEYWORD: Final = re.compile(r"[A-Za-z*!_?+<>=-][A-Za-z0-9*!_?+<>=.#-]*")
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def history_edn(ops: Iterable[Op]) -> str:
    """Return a whole history, one operation per line."""
    return "".join(op_edn(op) + "\n" for op in ops)


def op_edn(op: Op) -> str:
    """Return one operation as a map."""
    process = str(op.process) if isinstance(op.process, int) else keyword(op.process)
    fields = [
        f":index {op.index}",
        f":time {op.t_ns}",
        f":process {process}",
        f":type {keyword(op.type)}",
        f":f {keyword(op.f)}",
        f":value {value_edn(op.value)}",
    ]
    if op.error:
        fields.append(f":error {string(op.error)}")
    if op.node:
        fields.append(f":node {string(op.node)}")
    return "{" + ", ".join(fields) + "}"


def value_edn(value: object) -> str:
    """Return a value that JSON can hold.

    Raises:
        TypeError: it is of another kind.
    """
    match value:
        case None:
            return "nil"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return _real(value)
        case str():
            return string(value)
        case Mapping():
            rows = (f"{value_edn(key)} {value_edn(each)}" for key, each in value.items())
            return "{" + ", ".join(rows) + "}"
        case list() | tuple():
            return "[" + " ".join(map(value_edn, value)) + "]"
        case _:
            raise TypeError(f"no EDN for {type(value).__name__}")


def keyword(name: str) -> str:
    """Return a keyword; a name that none can hold becomes a string."""
    return f":{name}" if _KEYWORD.fullmatch(name) else string(name)


def string(text: str) -> str:
    """Return a string; control characters by their numbers, everything else as it is."""
    return '"' + "".join(_escaped(char) for char in text) + '"'


def _escaped(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    return f"\\u{ord(char):04x}" if ord(char) < 0x20 or ord(char) == 0x7F else char


def _real(value: float) -> str:
    if math.isnan(value):
        return "##NaN"
    if math.isinf(value):
        return "##Inf" if value > 0 else "##-Inf"
    return repr(value)
