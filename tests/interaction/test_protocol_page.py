"""docs/protocol.md prints the tables of the core as the code has them. `REWRITE=1` makes it so."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import get_args

import pytest

from dledger.raft.admission import admission_table
from dledger.raft.messages import Message
from dledger.raft.roles import role_table

PAGE = Path(__file__).parents[2] / "docs/protocol.md"
TABLES = {"roles": role_table, "admission": admission_table}


@pytest.mark.parametrize("name", TABLES)
def test_its_tables_are_current(name: str) -> None:
    table = re.compile(rf"(<!-- {name}: [^>]*-->\n).*?(<!-- /{name} -->)", re.DOTALL)
    text = PAGE.read_text()
    current = table.sub(lambda found: f"{found[1]}{TABLES[name]()}\n{found[2]}", text)
    if os.environ.get("REWRITE"):
        PAGE.write_text(current)
        return
    assert table.search(text)
    assert text == current


def test_every_message_has_its_row() -> None:
    text = PAGE.read_text()
    for kind in get_args(Message):
        assert f"\n| {kind.__name__} | " in text
