"""Apache's Java client: where it is installed, what it lacks, and the command that runs `JavaWorker.java` with it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from jepsen.clients.foreign import ForeignClient

ROOT: Final = Path(__file__).resolve().parents[2]
VERSION: Final = "5.3.3"
FOLDER: Final = ROOT / ".interop" / f"java-{VERSION}"


def lacking() -> str | None:
    """Say what this machine lacks for the Java client; None when it is installed."""
    if (FOLDER / ".ready").exists():
        return None
    return f"the Java client (Maven's rocketmq-client {VERSION}) is not installed: make interop"


JAVA: Final = ForeignClient(
    "java",
    "the Java client",
    lambda: [
        *("java", "-XX:+UseSerialGC", "-Xmx256m"),
        *("-cp", f"{FOLDER}/classes:{FOLDER}/jars/*", "JavaWorker"),
    ],
)
