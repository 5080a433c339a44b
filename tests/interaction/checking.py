"""Scripts compared with what they print; `REWRITE=1` makes them true instead, and the diff is read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from dledger.testing.datadriven import run_script


def check_script(path: Path, run: Callable[[str], list[str]]) -> None:
    """Carry out a script and compare, or rewrite it."""
    text = path.read_text()
    actual = run_script(text, run)
    if os.environ.get("REWRITE"):
        path.write_text(actual)
    else:
        assert actual == text
