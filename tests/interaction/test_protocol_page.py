"""docs/protocol.md prints the table of roles as the code has it. `REWRITE=1` makes it so."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import get_args

from dledger.raft.messages import Message
from dledger.raft.roles import role_table

PAGE = Path(__file__).parents[2] / "docs/protocol.md"
TABLE = re.compile(r"(<!-- roles: [^>]*-->\n).*?(<!-- /roles -->)", re.DOTALL)


def test_the_table_of_roles_is_current() -> None:
    text = PAGE.read_text()
    current = TABLE.sub(lambda found: f"{found[1]}{role_table()}\n{found[2]}", text)
    if os.environ.get("REWRITE"):
        PAGE.write_text(current)
        return
    assert TABLE.search(text)
    assert text == current


def test_every_message_has_its_row() -> None:
    text = PAGE.read_text()
    for kind in get_args(Message):
        assert f"\n| {kind.__name__} | " in text
