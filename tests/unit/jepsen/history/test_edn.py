"""EDN that other checkers can read; the reader here is written from the format's specification."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jepsen.history.edn import history_edn, keyword, op_edn, string, value_edn
from jepsen.history.ops import Op

TOKEN = re.compile(r'\s*,?\s*([{}\[\]]|"(?:\\.|[^"\\])*"|[^\s,{}\[\]"]+)', re.DOTALL)
UNESCAPED = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}


def read_edn(text: str) -> Any:
    """Read one value; keywords become strings with their colon."""
    tokens = TOKEN.findall(text)
    value, rest = _value(tokens)
    assert not rest
    return value


def _value(tokens: list[str]) -> tuple[Any, list[str]]:
    first, rest = tokens[0], tokens[1:]
    if first in "{[":
        closing, items = {"{": "}", "[": "]"}[first], []
        while rest[0] != closing:
            item, rest = _value(rest)
            items.append(item)
        made = dict(zip(items[::2], items[1::2], strict=True)) if first == "{" else items
        return made, rest[1:]
    return _atom(first), rest


def _atom(token: str) -> Any:
    if token.startswith('"'):
        return re.sub(
            r"\\(u[0-9a-f]{4}|.)",
            lambda found: chr(int(found[1][1:], 16)) if found[1][0] == "u" else UNESCAPED[found[1]],
            token[1:-1],
        )
    words = {"nil": None, "true": True, "false": False}
    if token in words:
        return words[token]
    if token.startswith(":"):
        return token
    return float(token) if any(sign in token for sign in ".eE") else int(token)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=12,
)


@given(VALUES)
def test_every_value_comes_back(value: Any) -> None:
    assert read_edn(value_edn(value)) == value


def test_an_operation_has_keywords_where_checkers_look_for_them() -> None:
    op = Op(7, 120, 3, "ok", "send", {"key": "m4", "offset": 2}, node="n1")
    assert op_edn(op) == (
        "{:index 7, :time 120, :process 3, :type :ok, :f :send, "
        ':value {"key" "m4", "offset" 2}, :node "n1"}'
    )


def test_a_fault_and_an_error() -> None:
    op = Op(0, 1, "nemesis", "info", "kill-leader", error='say "no"\n')
    read = read_edn(op_edn(op))
    assert (read[":process"], read[":f"], read[":value"]) == (":nemesis", ":kill-leader", None)
    assert read[":error"] == 'say "no"\n'


def test_a_history_has_a_line_for_each_operation() -> None:
    ops = [Op(n, n, 0, "invoke", "poll", "two\nlines") for n in range(3)]
    lines = history_edn(ops).splitlines()
    assert [read_edn(line)[":index"] for line in lines] == [0, 1, 2]


@pytest.mark.parametrize("name", ["", "9lives", "two words", "q/3", 'a"b'])
def test_a_name_that_no_keyword_can_hold_becomes_a_string(name: str) -> None:
    assert keyword(name) == string(name)


def test_numbers_that_are_none() -> None:
    assert value_edn([float("inf"), float("-inf"), float("nan")]) == "[##Inf ##-Inf ##NaN]"
    with pytest.raises(TypeError, match="set"):
        value_edn({1, 2})
