"""A fault of a shared disk: other programs write to it and sync, as a build or another group would."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Final

import trio

from jepsen.nemeses.api import Fault
from jepsen.systems.api import System

WRITERS: Final = 6
_PROGRAM: Final = """
import os, sys, threading
def ends_with_its_parent():
    sys.stdin.read()
    os._exit(0)
threading.Thread(target=ends_with_its_parent, daemon=True).start()
block = bytes(1 << 20)
with open(sys.argv[1], "wb", buffering=0) as file:
    while True:
        file.seek(0)
        for _ in range(96):
            file.write(block)
        os.fsync(file.fileno())
"""
"""Writes 96 MiB at the same place and syncs, for ever; ends when its standard input does."""


def _start_writer(file: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", _PROGRAM, str(file)], stdin=subprocess.PIPE)


class BusyDisk(Fault):
    """Writers with syncs of their own on the disk that holds the stores, until the cure."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._writers: list[subprocess.Popen[bytes]] = []
        self._folder: Path | None = None

    async def inject(self, system: System, chance: random.Random) -> str:
        """Start the writers."""
        self._folder = system.folder / "busy-disk"
        self._folder.mkdir(exist_ok=True)
        self._writers = [_start_writer(self._folder / f"{number}") for number in range(WRITERS)]
        return f"{WRITERS} programs write and sync beside the stores"

    async def cure(self, system: System) -> str:
        """End them and remove what they wrote."""
        count = len(self._writers)
        await trio.to_thread.run_sync(self.clean_up)
        return f"{count} programs ended" if count else ""

    def clean_up(self) -> None:
        """Remove the fault's files."""
        writers, self._writers = self._writers, []
        for writer in writers:
            writer.kill()
        for writer in writers:
            writer.wait()
            assert writer.stdin is not None, "it was made with a pipe"
            writer.stdin.close()
        folder, self._folder = self._folder, None
        if folder is not None:
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()
