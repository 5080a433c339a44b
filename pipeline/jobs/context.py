"""The context of a job: its options, a session when it wants one, and ways to speak.

Results go to standard output, as a table or text for people or as one JSON object (`--json`); progress goes to
standard error, and only when a person watches.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from pipeline.jobs.interrupts import interrupts_held

if TYPE_CHECKING:
    from pipeline.spark.names import SparkSession


def _console() -> Console:
    """Build a console that prints texts as they are: names may have brackets or colons."""
    return Console(markup=False, emoji=False, highlight=False)


def counted(progress: Progress, task: TaskID, total: int, then: str) -> Callable[[int], None]:
    """Return what moves a bar on by a number, and names the step behind it once the bar is full.

    Args:
        progress: the display.
        task: a bar in it.
        total: where it is full.
        then: the next step, of which nobody knows how long it takes; the bar stays full.
    """
    done = 0

    def count(number: int) -> None:
        nonlocal done
        done += number
        progress.update(task, completed=done)
        if done >= total:
            progress.update(task, description=then)

    return count


@dataclass
class JobContext:
    """The surroundings of one run of a job.

    Attributes:
        options: the parsed command line: the job's own options, and `json`, `master`, `log_level`.
        console: for people, on standard output.
    """

    options: argparse.Namespace
    console: Console = field(default_factory=_console)

    @cached_property
    def spark(self) -> SparkSession:
        """Return the session, made when a job first asks for it.

        Raises:
            InconclusiveError: PySpark or Java is missing, or the session could not be made.
        """
        from pipeline.spark.session import context_class, open_session

        name = f"dledger-pipeline {self.options.job}"
        with interrupts_held(context_class()):
            return open_session(name, master=self.options.master, log_level=self.options.log_level)

    def close(self) -> None:
        """End the session, if there is one."""
        if "spark" in self.__dict__:
            with suppress(
                Exception
            ):  # a JVM that died needs no end, and its errors would hide the cause
                self.spark.stop()

    def progress(self) -> Progress:
        """Return a progress display (use it in a `with`); silent unless a person watches."""
        console = Console(stderr=True)
        return Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=self.options.json or not console.is_terminal,
        )

    def report(self, result: Mapping[str, object], show: Callable[[], RenderableType]) -> None:
        """Print the result of the job: `result` as one JSON object, or what `show` makes of it."""
        if self.options.json:
            json.dump(result, sys.stdout, default=str)
            sys.stdout.write("\n")
        else:
            self.console.print(show())
