"""The errors of the pipeline. Each is one sentence for a user, and knows the exit code of a job.

Errors cross process borders: a task's error reaches the driver as text inside Java's. So the message alone
must say what happened, where, and with which values.
"""

from __future__ import annotations

from typing import ClassVar, Final

EXIT_FINE: Final = 0
EXIT_FOUND: Final = 1
EXIT_INCONCLUSIVE: Final = 2


class PipelineError(Exception):
    """Root of the pipeline's errors: something failed, or is not as it must be.

    Attributes:
        exit_code: what a job ends with.
    """

    exit_code: ClassVar[int] = EXIT_FOUND


class PipelineUsageError(PipelineError, ValueError):
    """The caller asked for something that does not exist or makes no sense; nothing was done."""

    exit_code = EXIT_INCONCLUSIVE


class InconclusiveError(PipelineError):
    """Nothing can be concluded: something that the answer needs is missing or does not respond."""

    exit_code = EXIT_INCONCLUSIVE


class JavaMissingError(InconclusiveError):
    """No Java runtime fits."""


class BadRowError(PipelineError):
    """A row that cannot be sent; says which one, and why."""


class DataLossError(PipelineError):
    """Messages that were to be read are gone for good."""
