"""What lets a JVM of Spark that lives for seconds, and its Python workers, start with less work.

A session with its first table takes 14 s of processor time so, and 18 s where Java proves again that Spark's classes
are sound. Nobody gets it who starts Spark outside of the tests.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

WORKERS: Final = str(Path(__file__).with_name("workers"))
"""What is first on the path of Spark's Python workers."""

JAVA_OPTIONS: Final = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""No compiler that pays after minutes, no threads for collections, and no proof that Spark's classes are sound."""

JAVA_VARIABLE: Final = "JDK_JAVA_OPTIONS"
"""Read by every `java` from 9 on: of drivers, executors, masters, and of the launchers before them."""


def start_quickly(patch: pytest.MonkeyPatch) -> None:
    """Let a JVM that is started from here on, and its Python workers, start so."""
    patch.setenv("PYTHONPATH", WORKERS, prepend=os.pathsep)
    patch.setenv(JAVA_VARIABLE, JAVA_OPTIONS)
