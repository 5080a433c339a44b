"""Habits that only get better: long functions, and lines on which a checker is told to look away."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.ratchet import excess, place_of, product_modules
from tests.architecture.sources import parsed, statements

LINES = 50
"""A function of more lines does more than one thing, and stands in the list of its package."""

LINES_MAX = 70
"""No function has more lines, docstring included."""

LONG_ALLOWED: dict[str, int] = {
    "broker/namesrv": 2,
    "broker/server": 2,
    "broker/store": 3,
    "broker/testing": 2,
    "dledger": 1,
    "dledger/codec": 1,
    "dledger_mq/client": 2,
    "dledger_mq/message": 2,
    "dledger_mq/testing": 1,
    "jepsen": 1,
}
"""Functions of more than LINES lines."""

IGNORED_TYPES_ALLOWED: dict[str, int] = {
    "bench": 6,
    "broker/namesrv": 3,
    "broker/server": 3,
    "broker/store": 4,
    "broker/testing": 2,
    "dledger/runtime": 1,
    "dledger_mq/client": 1,
    "dledger_mq/remoting": 1,
    "jepsen/clients": 1,
    "jepsen/systems": 2,
    "pipeline": 2,
    "pipeline/scan": 1,
    "pipeline/sink": 2,
}
"""Lines on which mypy's finding is ignored."""

IGNORED_RULES_ALLOWED: dict[str, int] = {
    "bench": 1,
    "broker": 1,
    "broker/namesrv": 2,
    "broker/processes": 1,
    "broker/server": 2,
    "broker/testing": 2,
    "dledger": 1,
    "dledger/runtime": 3,
    "dledger/testing": 2,
    "dledger_mq/blocking": 1,
    "dledger_mq/client": 5,
    "dledger_mq/net": 1,
    "dledger_mq/remoting": 25,
    "dledger_mq/testing": 2,
    "jepsen": 3,
    "jepsen/checkers": 1,
    "jepsen/checklist": 5,
    "jepsen/clients": 3,
    "jepsen/nemeses": 5,
    "jepsen/systems": 4,
    "jepsen/workloads": 2,
    "pipeline": 1,
    "pipeline/spark": 2,
    "scripts": 1,
}
"""Lines on which ruff's finding is ignored."""


def functions_longer_than(tree: ast.Module, lines: int) -> Iterator[int]:
    """Yield the first line of each function and method that is longer, from `def` to its last line."""
    for node in statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > lines:
                yield node.lineno


def lines_with(source: str, mark: str) -> Iterator[int]:
    """Yield the lines that have a comment `# mark`."""
    found = re.compile(rf"#\s*{mark}\b")
    for number, line in enumerate(source.split("\n"), 1):
        if found.search(line):
            yield number


def marked(mark: str) -> list[tuple[Path, int]]:
    return [
        (path, line) for path in product_modules() for line in lines_with(path.read_text(), mark)
    ]


def longer_than(lines: int) -> list[tuple[Path, int]]:
    return [
        (path, line)
        for path in product_modules()
        for line in functions_longer_than(parsed(path), lines)
    ]


def test_no_function_is_very_long() -> None:
    assert [place_of(path, line) for path, line in longer_than(LINES_MAX)] == []


def test_long_functions_only_get_fewer() -> None:
    assert excess(longer_than(LINES), LONG_ALLOWED) == []


def test_ignored_types_only_get_fewer() -> None:
    assert excess(marked("type: ignore"), IGNORED_TYPES_ALLOWED) == []


def test_ignored_rules_only_get_fewer() -> None:
    assert excess(marked("noqa"), IGNORED_RULES_ALLOWED) == []


def test_a_long_function_is_found_and_one_at_the_bound_is_not() -> None:
    source = (
        "class A:\n    def short(self):\n        pass\n        pass\n    async def long(self):\n"
    )
    source += "        pass\n" * 3
    assert list(functions_longer_than(ast.parse(source), 3)) == [5]


def test_a_mark_is_found_as_a_comment_only() -> None:
    source = 'x = 1  # noqa: E501\ny = "noqa"\nz = f()  # type: ignore[arg-type]\n'
    assert list(lines_with(source, "noqa")) == [1]
    assert list(lines_with(source, "type: ignore")) == [3]
