"""Our sources as the tests of the structure read them: modules, and what they import."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]


class Import(NamedTuple):
    """One module that is imported, and where."""

    path: Path
    line: int
    name: str
    """Of the module, dotted; for `from a.b import c` it is `a.b`."""

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.name}"

    @property
    def top(self) -> str:
        return self.name.partition(".")[0]


def modules_under(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


@cache
def imports_of(path: Path) -> tuple[Import, ...]:
    """What a module imports, also within its functions and for types only."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [Import(path, node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            found.append(Import(path, node.lineno, node.module or ""))
    return tuple(found)


def imports_under(folder: str) -> list[Import]:
    return [one for path in modules_under(folder) for one in imports_of(path)]


def is_within(name: str, prefixes: set[str]) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)
