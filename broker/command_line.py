"""What the commands of this package have in common: options, files that they name, and the line with which they fail.

It must not know any command: what they do, and what else they print, is theirs.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markup import escape

from dledger.errors import ConfigError, DLedgerError

_log = logging.getLogger(__name__)

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


def read_secret(path: str, option: str) -> str:
    """Return the first line of a file that holds a secret.

    Args:
        path: of the file.
        option: what has named it, for the error.

    Raises:
        ConfigError: it cannot be read, or its first line is empty; names option and file.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{option} {path} cannot be read: {why_unreadable(error)}") from error
    secret = lines[0].strip() if lines else ""
    if not secret:
        raise ConfigError(f"{option} {path}: its first line is empty")
    return secret


def innermost(error: BaseException) -> BaseException:
    """Return the error that nurseries have wrapped in groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def print_error(console: Console, program: str, text: str) -> None:
    """Print why a command fails, in one line."""
    console.print(f"[red]{program}:[/red] {escape(text)}")


def print_line(console: Console, text: str) -> None:
    """Print a line of a program that goes on: neither a full disk nor a closed terminal ends it."""
    with suppress(OSError):
        # A line that cannot be written must not stay in the console's buffer.
        with console.capture() as captured:
            console.print(text)
        console.file.write(captured.get())
        console.file.flush()


def run_command(console: Console, program: str, command: Callable[[], int]) -> int:
    """Run a command; return its exit status. Whatever ends it early becomes one line."""
    if not __debug__:
        print_error(console, program, "assertions guard the log: Python must not run with -O")
        return EXIT_FAILED
    try:
        return command()
    except BaseException as error:  # noqa: BLE001  # the root: everything becomes a line and a status
        return _exit_with(console, program, innermost(error))


def _exit_with(console: Console, program: str, error: BaseException) -> int:
    """Print what has ended a command; return its exit status.

    An error that nobody has foreseen is a bug: its traceback is logged at the level debug.
    """
    match error:
        case SystemExit():  # rich ends a table like that whose reader has gone
            return error.code if isinstance(error.code, int) else EXIT_FAILED
        case KeyboardInterrupt():
            print_error(console, program, "interrupted")
        case ConfigError():
            print_error(console, program, str(error))
            return EXIT_USAGE
        case OSError() if error.filename and error.strerror:
            print_error(console, program, f"{error.filename}: {error.strerror}")
        case DLedgerError() | OSError():
            print_error(console, program, str(error))
        case _:
            _log.debug("internal error", exc_info=error)
            print_error(
                console,
                program,
                f"internal error, please report it: {type(error).__name__}: {error} (--log-level debug shows where)",
            )
    return EXIT_FAILED
