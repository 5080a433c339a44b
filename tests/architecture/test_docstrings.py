"""A docstring begins with what a function does or what a thing is: not with a question (What, Whether, How, ...)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.architecture.ratchet import excess, product_modules

QUESTION = re.compile(r"(What|Whether|How|Who|Whom|Whose|Which|Where|When|Why|If)\b")

FUNCTIONS_ALLOWED: dict[str, int] = {}
"""Functions and methods that still begin with a question."""

OTHERS_ALLOWED: dict[str, int] = {}
"""Classes, fields and constants that still do."""


def docstrings_of_functions(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and docstring of each function, property and method, nested ones too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, ast.get_docstring(node) or ""


def docstrings_of_others(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and docstring of each class, and of each field or constant with a string under it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.lineno, ast.get_docstring(node) or ""
        if isinstance(node, ast.ClassDef | ast.Module):
            for above, below in zip(node.body, node.body[1:], strict=False):
                match above, below:
                    case (
                        ast.Assign() | ast.AnnAssign(),
                        ast.Expr(value=ast.Constant(value=str(text))),
                    ):
                        yield below.lineno, text


def questions(docstrings: Iterator[tuple[int, str]]) -> list[int]:
    return [line for line, text in docstrings if QUESTION.match(text)]


def test_no_function_is_described_by_a_question() -> None:
    found = [
        (path, line)
        for path in product_modules()
        for line in questions(docstrings_of_functions(ast.parse(path.read_text())))
    ]
    assert excess(found, FUNCTIONS_ALLOWED) == []


def test_no_class_or_field_is_described_by_a_question() -> None:
    found = [
        (path, line)
        for path in product_modules()
        for line in questions(docstrings_of_others(ast.parse(path.read_text())))
    ]
    assert excess(found, OTHERS_ALLOWED) == []


def test_questions_are_found() -> None:
    tree = ast.parse(
        'class Row:\n    """What a row is."""\n    size: int\n    """How long it is."""\n'
        '    def ends(self):\n        """Whether it ends."""\n'
        'def whatever():\n    """Whatever comes is taken."""\n'
    )
    assert questions(docstrings_of_functions(tree)) == [5]
    assert questions(docstrings_of_others(tree)) == [1, 4]
