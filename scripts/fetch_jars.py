"""Fetch the jars of a list from Maven Central: `fetch_jars.py LIST FOLDER`.

LIST has lines as sha256sum writes them, with paths below the repository. A file with another digest is
refused; nothing is left behind under a wrong name. Exit status 1 and a sentence when one cannot be had.
"""

from __future__ import annotations

import hashlib
import sys
import urllib.request
from pathlib import Path

REPOSITORY = "https://repo1.maven.org/maven2"
TIMEOUT_S = 60


def fetch(path: str, digest: str, folder: Path) -> None:
    """Put one file into `folder`.

    Raises:
        OSError: it cannot be had.
        ValueError: it is not what the list says.
    """
    with urllib.request.urlopen(f"{REPOSITORY}/{path}", timeout=TIMEOUT_S) as answer:  # noqa: S310 - https, above
        data = answer.read()
    if (found := hashlib.sha256(data).hexdigest()) != digest:
        raise ValueError(f"its digest is {found}, not {digest}")
    (folder / Path(path).name).write_bytes(data)


def main() -> None:
    """Fetch every jar of the list."""
    listed, folder = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for line in listed.read_text().splitlines():
        digest, path = line.split()
        try:
            fetch(path, digest, folder)
        except (OSError, ValueError) as error:
            sys.exit(f"{REPOSITORY}/{path}: {error}")


if __name__ == "__main__":
    main()
