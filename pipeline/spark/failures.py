"""The reason for a failure inside Spark, in one sentence.

An error that our code raises in a worker arrives as text: a Python traceback inside a Java exception, often
inside others. For streams the Python exception may say no more than "Writing job failed", so Java's causes are
read as well. And since Spark prints some 160 lines for one of ours, the process where it happens says its sentence
on standard error before.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pipeline.errors import InconclusiveError, PipelineError

_OURS: Final = re.compile(
    r"(?:pipeline|dledger_mq)(?:\.\w+)+Error: (.*?)"
    r"(?= SQLSTATE: |\n\s*\n|\n\s+at |\nTraceback|\n\n|\Z)",
    re.DOTALL,
)
_PYTHON: Final = re.compile(r"^(?:\w+\.)*\w+(?:Error|Exception): .*$", re.MULTILINE)
_CAUSES_MAX: Final = 20
_OUR_NAMES: Final = re.compile(r"(?:pipeline|dledger_mq)(?:\.\w+)+\.(\w+Error): ")
_UNKNOWN_OUTCOME: Final = "are not known to be stored"
_ONE_UNKNOWN_OUTCOME: Final = "is not known to be stored"
_OF_WORKERS: Final = (
    "Python worker failed to connect back",
    "Python worker exited unexpectedly",
    "Python worker did not connect back",
    "Cannot run program",
    "Connection reset",
    "ExecutorLostFailure",
    "java.io.EOFException",
)
"""The words of Spark when a process of its own died or did not come up in time."""


def reason_of(error: BaseException) -> str:
    """Return our own error's text if one is inside, else the last Python error's, else the first line."""
    text = _whole_text(error)
    ours = _OURS.findall(text)
    if ours:
        return " ".join(str(ours[-1]).split())
    python = [line for line in _PYTHON.findall(text) if not line.startswith("org.")]
    if python:
        return str(python[-1]).strip()
    lines = text.strip().splitlines()
    return lines[0] if lines else type(error).__name__


@contextmanager
def printed_first() -> Iterator[None]:
    """Print an error of ours on standard error, in one line, before Spark wraps it."""
    try:
        yield
    except PipelineError as error:
        sys.stderr.write(f"rocketmq: {error}\n")
        sys.stderr.flush()
        raise


def is_passing(error: BaseException) -> bool:
    """Return whether a failure may be over when the same is tried again: nobody answered, or a process died."""
    text = _whole_text(error)
    ours = _OUR_NAMES.findall(text)
    if ours:
        is_unknown = _UNKNOWN_OUTCOME in text or _ONE_UNKNOWN_OUTCOME in text
        return ours[-1] == InconclusiveError.__name__ or is_unknown
    return any(each in text for each in _OF_WORKERS)


def _whole_text(error: BaseException) -> str:
    """Return the error's text, and that of Java's causes, outermost first."""
    texts = [str(error)]
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    for _ in range(_CAUSES_MAX):
        if java is None or not hasattr(java, "getCause"):
            break
        texts.append(str(java.toString()))
        java = java.getCause()
    return "\n\n".join(texts)
