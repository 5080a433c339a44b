"""The reason for a failure inside Spark, in one sentence.

An error that our code raises in a worker arrives as text: a Python traceback inside a Java exception, often
inside others. For streams the Python exception may say no more than "Writing job failed", so Java's causes are
read as well.
"""

from __future__ import annotations

import re
from typing import Final

_OURS: Final = re.compile(
    r"(?:pipeline|dledger_mq)(?:\.\w+)+Error: (.*?)"
    r"(?= SQLSTATE: |\n\s*\n|\n\s+at |\nTraceback|\n\n|\Z)",
    re.DOTALL,
)
_PYTHON: Final = re.compile(r"^(?:\w+\.)*\w+(?:Error|Exception): .*$", re.MULTILINE)
_CAUSES_MAX: Final = 20


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
