"""The options, columns and example of docs/pipeline.md are those of the code."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

import pytest

from pipeline.errors import PipelineUsageError
from pipeline.jobs import JOBS
from pipeline.sink.columns import COLUMNS
from pipeline.sink.options import read_options

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "pipeline.md").read_text()


def first_cells(title: str) -> set[str]:
    """The names in the first column of the table that begins with a title."""
    table = PAGE[PAGE.index(f"| {title} |") :].split("\n\n")[0]
    return {
        name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])
    }


def test_every_option_is_told() -> None:
    with pytest.raises(PipelineUsageError) as caught:
        read_options({"nameServer": "h:1", "nothing": "x"}, is_stream=False)
    known = str(caught.value).partition("(it has ")[2].rstrip(")").split(", ")
    assert first_cells("option") == set(known)


def test_every_column_is_told() -> None:
    assert first_cells("column") == set(COLUMNS)


def test_the_lines_that_matter_are_the_examples() -> None:
    example = (ROOT / "examples" / "enrich_orders.py").read_text()
    block = PAGE[PAGE.index("### The job") :].split("```python\n")[1].split("```")[0]
    statements = [ast.dump(one) for one in ast.parse(block).body]
    body = next(
        one
        for one in ast.parse(example).body
        if isinstance(one, ast.FunctionDef) and one.name == "main"
    ).body
    assert set(statements) <= {ast.dump(one) for one in body}


def test_code_on_the_page_is_python_and_its_commands_exist() -> None:
    for block in PAGE.split("```python\n")[1:]:
        compile(textwrap.dedent(block.split("```")[0]), "docs/pipeline.md", "exec")
    assert set(re.findall(r"`dledger-pipeline (\w+)", PAGE)) <= set(JOBS)
