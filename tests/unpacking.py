"""Unpacking our own archives on every Python that we support."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

FILTER: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""Python 3.11.4 brought filters; Debian 12 has 3.11.2, which unpacks everything as it is."""


def unpack(file: Path, folder: Path) -> None:
    """Unpack an archive into a folder."""
    with tarfile.open(file) as archive:
        archive.extractall(folder, **FILTER)
