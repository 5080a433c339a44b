"""What clients and faults may know of a system under test: its processes, stores and links."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from jepsen.processes import Process


class Links(Protocol):
    """The directed links between nodes, each a proxy (`nemeses/proxy.py`) or a veth pair.

    Links are named by their ends, (from, to); "clients" is an end too.
    """

    def cut(self, source: str, target: str) -> None:
        """Let nothing through from `source` to `target`; what is on its way is lost."""

    def heal(self) -> None:
        """Let everything through again, unchanged."""


class System(Protocol):
    """A group of real processes.

    Attributes:
        folder: of stores and logs.
        nodes: the members, in the order of their names.
        links: None when the run was started without proxies and namespaces.
    """

    folder: Path
    nodes: Sequence[Process]
    links: Links | None

    def node(self, name: str) -> Process:
        """Return the member called `name`."""

    def store(self, name: str) -> Path:
        """Return the folder that holds the store of a member."""

    @property
    def leader(self) -> str | None:
        """Who leads, as the observer last saw it."""
