"""A console as a process beside a real group, for tests."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jepsen.ports import free_ports
from jepsen.processes import Process, poll, program

PATIENCE_S = 180.0
TOKEN = "a token of the integration tests"


@contextmanager
def web_console(folder: Path, namesrv: str, *more: str) -> Iterator[str]:
    """Run `dledger-admin web`, and yield its address."""
    (port,) = free_ports(1)
    command = [program("dledger-admin"), "web", "-n", namesrv, "--listen", str(port), *more]
    console = Process("console", command, log=folder / "console.log", port=port)
    console.environment["DLEDGER_WEB_TOKEN"] = TOKEN
    console.start()
    try:
        assert poll(console.is_listening, PATIENCE_S), console.log.read_text()
        yield f"http://127.0.0.1:{port}"
    finally:
        status = console.stop(PATIENCE_S)
        assert status == 0, console.log.read_text()
        assert TOKEN not in console.log.read_text()


def chromium() -> tuple[str, str] | None:
    """Return Debian's browser and its driver; None: they are not on this machine."""
    found = [f"/usr/bin/{name}" for name in ("chromium", "chromedriver")]
    if not all(os.access(path, os.X_OK) for path in found):
        return None
    versions = [
        subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
        for path in found
    ]
    majors = {match.group(1) for text in versions if (match := re.search(r" (\d+)\.", text))}
    return (found[0], found[1]) if len(majors) == 1 else None
