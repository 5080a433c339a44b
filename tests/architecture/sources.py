"""Our sources as the tests of the structure read them: modules, and what they import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]


class Import(NamedTuple):
    """One module that is imported, and where."""

    path: Path
    line: int
    name: str
    """Of the module, dotted; for `from a.b import c` it is `a.b`, or `a.b.c` where that is a module of ours."""

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.name}"

    @property
    def top(self) -> str:
        return self.name.partition(".")[0]


def modules_under(place: str) -> list[Path]:
    """The modules in a folder, or the one module without its `.py`."""
    alone = ROOT / f"{place}.py"
    return [alone] if alone.is_file() else sorted((ROOT / place).rglob("*.py"))


def module_name(path: Path) -> str:
    """Of a source, dotted, as it is imported."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def parsed(path: Path) -> ast.Module:
    """The tree of a source; each is parsed once for all tests of the structure (conftest.py gives them up)."""
    return ast.parse(path.read_text())


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield every statement of a tree, those within others too, without a look at expressions."""
    for part in ("body", "orelse", "handlers", "finalbody", "cases"):
        for child in getattr(node, part, ()):
            if isinstance(child, ast.stmt):
                yield child
            yield from statements(child)


@cache
def imports_of(path: Path) -> tuple[Import, ...]:
    """What a module imports, also within its functions and for types only."""
    found: list[Import] = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found += [Import(path, node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.module, f"{path}:{node.lineno}: relative import"
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            names = dict.fromkeys(_module_of(node.module, alias.name) for alias in node.names)
            found += [Import(path, node.lineno, name) for name in names]
    return tuple(found)


def _module_of(module: str, name: str) -> str:
    """Where `from module import name` finds the name."""
    place = ROOT.joinpath(*module.split("."), name)
    is_module = place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()
    return f"{module}.{name}" if is_module else module


def imports_under(folder: str) -> list[Import]:
    return [one for path in modules_under(folder) for one in imports_of(path)]


def is_within(name: str, prefixes: set[str]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)
