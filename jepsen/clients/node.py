"""npm's `ali-ons`, RocketMQ 4.x in JavaScript: where it is, what it lacks, the command that runs `node_worker.mjs`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from jepsen.clients.foreign import ForeignClient

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / ".interop" / "node" / "node_modules" / "ali-ons"
WORKER: Final = Path(__file__).with_name("node_worker.mjs")


def lacking() -> str | None:
    """Say what this machine lacks for the Node client; None when it is installed."""
    if shutil.which("node") is None:
        return "there is no Node"
    if FOLDER.exists():
        return None
    return "the Node client (npm ali-ons) is not installed: make interop"


NODE: Final = ForeignClient("node", "the Node client", lambda: ["node", str(WORKER)])
