"""Bars that show how far the readings of a long log have come, on the error output of a terminal.

It must not know what is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

BytesDone = Callable[[int, int], None]
"""Called now and then with the bytes that were read, and all that there are."""


@contextmanager
def progress_bars(*texts: str, is_shown: bool) -> Iterator[tuple[BytesDone, ...]]:
    """Show how far each reading has come, on the standard error, as long as that is a terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not (is_shown and console.is_terminal)
    ) as bar:

        def shown(text: str) -> BytesDone:
            task = bar.add_task(text, total=None)
            return lambda done, total: bar.update(task, completed=done, total=total)

        yield tuple(map(shown, texts))
