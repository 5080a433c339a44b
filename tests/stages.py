"""Both ways to put messages into the log: by compiled code, and by the Python code that does the same."""

from __future__ import annotations

import shutil
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import settings

from dledger_mq.message import compiled

PYTHON_H = Path(sysconfig.get_paths()["include"]) / "Python.h"

needs_compiler = pytest.mark.skipif(
    shutil.which("cc") is None or not PYTHON_H.exists(), reason="no C compiler, or no Python.h"
)
needs_compiled = pytest.mark.skipif(not compiled.is_built, reason="nothing was compiled here")

EACH = [pytest.param(True, id="compiled", marks=needs_compiled), pytest.param(False, id="python")]


@contextmanager
def stage(*, is_compiled: bool) -> Iterator[None]:
    """Everything within goes one of the ways."""
    was_used = compiled.is_used
    compiled.choose(is_wanted=is_compiled)
    assert compiled.is_used == is_compiled, "it was not compiled"
    try:
        yield
    finally:
        compiled.choose(is_wanted=was_used)


def examples(count: int) -> settings:
    """So many examples, or a part of them: as many of a hundred as the profile asks for (tests/conftest.py)."""
    return settings(max_examples=count * settings().max_examples // 100)
