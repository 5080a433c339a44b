"""The jobs of `dledger-pipeline`: one module each, listed in JOBS.

A job's module has `name`, `summary`, `add_arguments(parser)` and `run(context)`, which returns the exit
code (`pipeline.errors`). It is imported for every call of the command, so whatever is heavy (Spark, pandas)
is imported inside `run`. What it does is also a function of its own that takes a session and data frames.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Final, Protocol

from pipeline.jobs.context import JobContext

JOBS: Final = (
    "environment",
    "archive",
    "table",
    "find",
    "rebuild",
    "verify",
    "audit",
    "replay",
    "trace",
    "lag",
    "profile",
)


class Job(Protocol):
    """The interface of a job's module."""

    name: str
    summary: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the job's own options."""

    def run(self, context: JobContext) -> int:
        """Run the job; return its exit code, or raise a PipelineError."""


def load(name: str) -> Job:
    """Return the job that lives in `pipeline.jobs.NAME`."""
    job: Job = import_module(f"pipeline.jobs.{name}")
    return job
