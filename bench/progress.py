"""Shows how far a measurement has come: a bar with what goes on now, and above it a line for each finding."""

from __future__ import annotations

from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn


class Stages(Protocol):
    """Something that is told how a measurement goes."""

    def stage(self, text: str, seconds: float) -> None:
        """Something else goes on from now, for about so many seconds."""
        ...

    def line(self, text: str) -> None:
        """Something was found."""
        ...


class StageBar:
    """A bar on a console; where that is no terminal, the lines alone."""

    def __init__(self, console: Console, total_s: float) -> None:
        """Make a bar of so many seconds; it is shown within its block."""
        self._console = console
        self._progress = Progress(
            BarColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}", markup=False),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=total_s)
        self._stage_s = 0.0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def stage(self, text: str, seconds: float) -> None:
        """See `Stages`."""
        self._progress.update(self._task, advance=self._stage_s, description=text)
        self._stage_s = seconds

    def line(self, text: str) -> None:
        """See `Stages`."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)
