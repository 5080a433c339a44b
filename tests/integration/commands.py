"""Commands of ours run in this process: what a test asks for again and again, without a start of Python each time.

It must not know what they do. That each of them also runs as a program of its own is shown by other tests.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ended:
    """What a command has printed, and the exit code of its process, if it had one."""

    returncode: int
    stdout: str
    stderr: str


def run_here(main: Callable[[Sequence[str]], int], *words: str) -> Ended:
    """Run the `main` of a command to its end; what ends the process there ends only the command here."""
    out, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(errors):
        try:
            code = main(words)
        except SystemExit as ending:
            code = ending.code if isinstance(ending.code, int) else 1
    return Ended(code, out.getvalue(), errors.getvalue())
