"""A docstring begins with what a function does or what a thing is: not with a question (What, Whether, How, ...).

Private functions of some length have one too, and no ruler (`# --- reading`) divides a module: where one seems to be
needed, the module has two ideas.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.architecture.ratchet import excess, product_modules
from tests.architecture.sources import modules_under, parsed, statements

QUESTION = re.compile(r"(What|Whether|How|Who|Whom|Whose|Which|Where|When|Why|If)\b")

FUNCTIONS_ALLOWED: dict[str, int] = {}
"""Functions and methods that still begin with a question."""

OTHERS_ALLOWED: dict[str, int] = {}
"""Classes, fields and constants that still do."""

BARE_LINES_MAX = 12
"""Lines of a private function, its signature among them, that may go without a docstring."""

BARE_ALLOWED: dict[str, int] = {}
"""Longer private functions that still have none."""

RULER = re.compile(r"\s*#\s*[-=*#]{3,}")

RULERS_ALLOWED: dict[str, int] = {}
"""Comments that still are rulers."""


def docstrings_of_functions(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and docstring of each function, property and method, nested ones too."""
    for node in statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, ast.get_docstring(node) or ""


def docstrings_of_others(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and docstring of each class, and of each field or constant with a string under it."""
    for node in (tree, *statements(tree)):
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


def bare_functions(tree: ast.Module) -> list[int]:
    """Return the lines of private functions that are long and have no docstring."""
    return [
        node.lineno
        for node in statements(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("_")
        and not node.name.endswith("__")
        and (node.end_lineno or node.lineno) - node.lineno >= BARE_LINES_MAX
        and not ast.get_docstring(node)
    ]


def rulers(source: str) -> list[int]:
    return [number for number, line in enumerate(source.splitlines(), 1) if RULER.match(line)]


def test_no_function_is_described_by_a_question() -> None:
    found = [
        (path, line)
        for path in product_modules()
        for line in questions(docstrings_of_functions(parsed(path)))
    ]
    assert excess(found, FUNCTIONS_ALLOWED) == []


def test_no_class_or_field_is_described_by_a_question() -> None:
    found = [
        (path, line)
        for path in product_modules()
        for line in questions(docstrings_of_others(parsed(path)))
    ]
    assert excess(found, OTHERS_ALLOWED) == []


def test_long_private_functions_have_a_docstring() -> None:
    found = [(path, line) for path in product_modules() for line in bare_functions(parsed(path))]
    assert excess(found, BARE_ALLOWED) == []


def test_no_ruler_divides_a_module() -> None:
    modules = (*product_modules(), *modules_under("tests"))
    found = [(path, line) for path in modules for line in rulers(path.read_text())]
    assert excess(found, RULERS_ALLOWED) == []


def test_bare_functions_are_found() -> None:
    body = "    pass\n" * BARE_LINES_MAX
    assert bare_functions(ast.parse(f"async def _long():\n{body}")) == [1]
    assert bare_functions(ast.parse(f"def _argued():\n    'Why.'\n{body}")) == []
    assert bare_functions(ast.parse("def _short():\n" + body[9:])) == []
    assert bare_functions(ast.parse(f"def public():\n{body}def __add__():\n{body}")) == []


def test_rulers_are_found() -> None:
    assert rulers("# --- reading\nx = 1  # of three ---\n    # ======\n# - a list\n") == [1, 3]


def test_questions_are_found() -> None:
    tree = ast.parse(
        'class Row:\n    """What a row is."""\n    size: int\n    """How long it is."""\n'
        '    def ends(self):\n        """Whether it ends."""\n'
        'def whatever():\n    """Whatever comes is taken."""\n'
    )
    assert questions(docstrings_of_functions(tree)) == [5]
    assert questions(docstrings_of_others(tree)) == [1, 4]
