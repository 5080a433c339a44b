"""What the commands of this package have in common: options, and the words for files that cannot be read.

It must not know any command: what they print and how they end is theirs.
"""

from __future__ import annotations

import argparse
from typing import Final

LOG_LEVELS: Final = ("debug", "info", "warning", "error")

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2

SERVER_EXIT_CODES: Final = """\
exit codes:
  0  stopped in order
  1  it could not start, or has failed; one line says why
  2  the command line or a setting is wrong; nothing was started
"""


def log_level(text: str) -> str:
    """Read the value of --log-level, in whatever case.

    Raises:
        argparse.ArgumentTypeError: it is no level.
    """
    level = text.lower()
    if level not in LOG_LEVELS:
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(LOG_LEVELS)}")
    return level


def port(text: str) -> int:
    """Read a port that a server can be reached at.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    if not (text.isascii() and text.isdigit() and 0 < int(text[:6]) < 65536):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 1 to 65535")
    return int(text)


def why_unreadable(error: OSError | UnicodeDecodeError) -> str:
    """Say why a file cannot be read, without its name, which the caller gives."""
    if isinstance(error, UnicodeDecodeError):
        return f"it is not text in UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}"
    return error.strerror or str(error)
