"""Ctrl-C while a job uses Spark: one KeyboardInterrupt, and no page of noise.

PySpark answers Ctrl-C inside the signal handler, with a call over the connection that the interrupted call is reading
from; that fails, with tracebacks of both. For jobs nothing is gained by it, because they stop their session as they
end. And a JVM that is left alone while it starts prints a page, too.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.spark.names import SparkContext

HELD = "\nstopping as soon as Spark has started (Ctrl-C again: at once)\n"


@contextmanager
def interrupts_held(context_class: type[SparkContext]) -> Iterator[None]:
    """Delay the first Ctrl-C while a JVM starts; afterwards Ctrl-C raises KeyboardInterrupt, not PySpark's handler.

    Args:
        context_class: `pyspark.SparkContext`, which installs a handler as soon as there is one.

    Raises:
        KeyboardInterrupt: at the end, if there was one; or at the second.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    noted: list[int] = []

    def note(number: int, _: object) -> None:
        if noted:
            raise KeyboardInterrupt
        noted.append(number)
        sys.stderr.write(HELD)

    logging.getLogger().addFilter(is_no_interrupt)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # what fails there is raised as well
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:  # as a shell has it for what runs in the background
        signal.signal(signal.SIGINT, note)
    call = context_class.cancelAllJobs
    context_class.cancelAllJobs = lambda _: None
    try:
        yield
    finally:
        context_class.cancelAllJobs = call
        signal.signal(signal.SIGINT, before)
    if noted:
        raise KeyboardInterrupt


def is_no_interrupt(record: logging.LogRecord) -> bool:
    """Filter out what Py4J logs of a call that Ctrl-C ends: a traceback."""
    return not (record.exc_info and isinstance(record.exc_info[1], KeyboardInterrupt))
