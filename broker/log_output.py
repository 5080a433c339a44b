"""The log lines of a server: their form, text or JSON, and their place, standard error or a file that is rotated.

It must not know what is logged. A line that cannot be written is lost, and ends nothing.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from copy import copy
from dataclasses import dataclass
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

from broker.command_line import LOG_LEVELS, log_level
from dledger.errors import ConfigError

TEXT_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"
FORMATS: Final = ("text", "json")

FILE_BYTES_MAX: Final = 64 * 1024 * 1024
FILES_KEPT: Final = 4
"""Older files beside the one that is written, with .1 to .4 behind its name; 320 MiB together."""


class TextLogLines(logging.Formatter):
    """Formats a record as one line of text, followed by those of its exception, if there is one.

    What came from a stranger, the name of a broker perhaps, begins no line of its own, and tells a terminal nothing.
    """

    def __init__(self) -> None:
        super().__init__(TEXT_FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines."""
        message = record.getMessage()
        if not message.isprintable():
            record = copy(record)
            record.args = None
            record.msg = "".join(char if char.isprintable() else _escaped(char) for char in message)
        return super().format(record)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode()


class JsonLogLines(logging.Formatter):
    """Formats a record as one line of JSON, whose names never change.

    They are `time` (UTC, milliseconds), `level`, `logger`, `message`; of an event `event` and `fields`, whose values
    are texts, numbers, truth values or null; and `exception` where one was raised.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        event = getattr(record, "event", None)
        if event is not None:
            fields = getattr(record, "fields", {})
            line |= {"event": event, "fields": {name: _plain(fields[name]) for name in fields}}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _plain(value: object) -> object:
    """Return a value as JSON has it: numbers stay numbers."""
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)


def add_log_options(parser: argparse.ArgumentParser, *, level: str) -> None:
    """Add the options of a server's log; `level` is the default one."""
    parser.add_argument(
        "--log-level",
        default=level,
        type=log_level,
        metavar="LEVEL",
        help=f"what is logged: {', '.join(LOG_LEVELS)} (default: {level})",
    )
    parser.add_argument(
        "--log-format",
        default=FORMATS[0],
        choices=FORMATS,
        help="text, or a line of JSON for each record (default: text)",
    )
    parser.add_argument(
        "--log-file",
        metavar="FILE",
        help=f"log there instead of to standard error; at {FILE_BYTES_MAX >> 20} MiB a new file is begun, and "
        f"{FILES_KEPT} older ones stay",
    )


@dataclass(frozen=True, slots=True)
class LogOutput:
    """The lines that are wanted, their form, and the file that they go to; without one it is standard error.

    Attributes:
        level: one of `LOG_LEVELS`.
    """

    level: str
    is_json: bool = False
    file: str | None = None

    @classmethod
    def of(cls, options: argparse.Namespace) -> LogOutput:
        """Return what the options of `add_log_options` ask for."""
        return cls(options.log_level, options.log_format == "json", options.log_file)

    def passed_on(self, name: str, *, with_level: bool = True) -> tuple[str, ...]:
        """Return the options with which a process of this name logs so, into a file of its own."""
        options = ["--log-level", self.level] if with_level else []
        if self.is_json:
            options += ["--log-format", "json"]
        if self.file is not None:
            path = Path(self.file).absolute()
            options += ["--log-file", str(path.with_name(f"{path.stem}-{name}{path.suffix}"))]
        return tuple(options)

    def start(self) -> None:
        """Log so from here on.

        Raises:
            ConfigError: the file cannot be written.
        """
        handler = self._handler()
        handler.setFormatter(JsonLogLines() if self.is_json else TextLogLines())
        logging.basicConfig(level=self.level.upper(), handlers=[handler])
        if handler not in logging.getLogger().handlers:
            handler.close()  # whoever has started this program within his own logs it

    def _handler(self) -> logging.Handler:
        """Return what writes the lines."""
        if self.file is None:
            return logging.StreamHandler()
        try:
            return RotatingFileHandler(
                self.file,
                maxBytes=FILE_BYTES_MAX,
                backupCount=FILES_KEPT,
                encoding="utf-8",
                errors="backslashreplace",
            )
        except OSError as error:
            why = error.strerror or error
            raise ConfigError(f"--log-file {self.file} cannot be written: {why}") from error
