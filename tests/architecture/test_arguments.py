"""A function takes at most four positional arguments; what else it needs is passed by name."""

from __future__ import annotations

import ast

from tests.architecture.ratchet import excess, product_modules
from tests.architecture.sources import parsed, statements

POSITIONAL_MAX = 4

ALLOWED: dict[str, int] = {}
"""Functions that still take more."""


def with_too_many(tree: ast.Module) -> list[int]:
    """Return the lines of the functions that take more, not counting `self` or `cls` of a method."""
    methods = {
        node
        for owner in statements(tree)
        if isinstance(owner, ast.ClassDef)
        for node in owner.body
        if not _is_static(node)
    }
    return [
        node.lineno
        for node in statements(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if len(node.args.posonlyargs + node.args.args) - (node in methods) > POSITIONAL_MAX
    ]


def _is_static(node: ast.stmt) -> bool:
    decorators = getattr(node, "decorator_list", [])
    return any(isinstance(each, ast.Name) and each.id == "staticmethod" for each in decorators)


def test_functions_take_at_most_four_positional_arguments() -> None:
    found = [(path, line) for path in product_modules() for line in with_too_many(parsed(path))]
    assert excess(found, ALLOWED) == []


def test_what_takes_too_many_is_found() -> None:
    tree = ast.parse(
        "class Row:\n    def four(self, a, b, c, d): ...\n    def five(self, a, b, c, d, e): ...\n"
        "    @staticmethod\n    def also(a, b, c, d, e): ...\n"
        "def named(a, b, c, d, *, e): ...\n"
    )
    assert with_too_many(tree) == [3, 5]
