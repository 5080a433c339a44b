"""The memory of a process as the kernel counts it."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec


class Memory(msgspec.Struct, frozen=True):
    """Resident memory of a process, in MiB. What is compared is its own: whoever maps its log has that in the other.

    Attributes:
        resident_mib: all of it, pages of mapped files among them.
        own_mib: without those of files, which the kernel may take back.
    """

    resident_mib: float
    own_mib: float

    @property
    def mapped_mib(self) -> float:
        """Pages of mapped files: the program, its libraries, and a log that is written through mappings."""
        return self.resident_mib - self.own_mib


def memory_of(pid: int) -> Memory:
    """Return the memory of a process now.

    Raises:
        OSError: it does not run.
    """
    status = Path(f"/proc/{pid}/status").read_text()
    kib = {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+) kB$", status, re.M)}
    return Memory(kib["VmRSS"] / 1024, (kib["RssAnon"] + kib["RssShmem"]) / 1024)
