"""The secret of groups that other machines could reach, as those in network namespaces: they do not start without one.

On loopback alone members have none, as people who try things out have none. It guards nothing: whoever reads the
source knows it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dledger import parse_peers
from dledger.config import is_loopback

KNOWN_TO_ALL: Final = "known to all who read this"


def secret_of(peers: str) -> str | None:
    """Return the secret of a group, for its clients; None: its members are on loopback, and have none."""
    return None if all(is_loopback(peer.host) for peer in parse_peers(peers)) else KNOWN_TO_ALL


def write_secret(folder: Path) -> Path:
    """Write the secret into a folder, for its owner's eyes; return the file."""
    path = folder / "group.secret"
    path.touch(mode=0o600)
    path.write_text(KNOWN_TO_ALL + "\n")
    return path
