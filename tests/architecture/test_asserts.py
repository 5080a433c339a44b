"""An assertion of the product says what was found: a node that stops on it leaves a line that can be understood."""

from __future__ import annotations

import ast

from tests.architecture.ratchet import product_modules
from tests.architecture.sources import ROOT, parsed, statements


def without_message(tree: ast.Module) -> list[int]:
    """The lines of the assertions that fail without a word."""
    return [
        node.lineno
        for node in statements(tree)
        if isinstance(node, ast.Assert) and node.msg is None
    ]


def test_every_assertion_of_the_product_has_a_message() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in product_modules()
        for line in without_message(parsed(path))
    ]
    assert found == []


def test_an_assertion_without_a_message_is_found() -> None:
    tree = ast.parse("assert 1 < 2\nassert 1 < 2, 'one is not less'\ndef f():\n    assert f\n")
    assert without_message(tree) == [1, 4]
