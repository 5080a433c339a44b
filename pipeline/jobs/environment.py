"""`dledger-pipeline environment`: can this machine run the pipeline, and with what?"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from rich.table import Table

from pipeline.errors import EXIT_FINE, EXIT_INCONCLUSIVE, JavaMissingError
from pipeline.jobs.context import JobContext
from pipeline.jobs.tables import alarming, new_table

name = "environment"
summary = "say which Java, PySpark and Python the jobs run with"

PACKAGES: Final = ("pyspark", "pyarrow", "pandas", "numpy")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --start."""
    parser.add_argument(
        "--start", action="store_true", help="also start a session and run a task in a worker"
    )


def run(context: JobContext) -> int:
    """Report what this machine has and, with --start, start a session."""
    found: dict[str, str] = {"python": f"{sys.version.split()[0]} ({sys.executable})"}
    missing: list[str] = []
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = ""
            missing.append(
                f"{package} is not installed: the extra `spark` brings it (docs/installing.md)"
            )
    found["java"], problem = _java()
    missing.extend(problem)
    if context.options.start and not missing:
        found["master"] = str(context.spark.sparkContext.master)
        found["tasks"] = str(context.spark.range(4).count())
    context.report(found | {"missing": missing}, lambda: _table(found, missing))
    return EXIT_INCONCLUSIVE if missing else EXIT_FINE


def _java() -> tuple[str, list[str]]:
    """Describe the Java runtime that was found, and why it does not fit."""
    from pipeline.spark.java import find_java

    try:
        java = find_java()
    except JavaMissingError as error:
        return "", [str(error)]
    return f"{java.version} ({java.origin}: {java.home})", []


def _table(found: dict[str, str], missing: list[str]) -> Table:
    title = "the pipeline runs with" if not missing else "the pipeline cannot run here"
    table = new_table(title, "part", "found")
    for part, text in found.items():
        table.add_row(part, text or alarming("nothing"))
    for problem in missing:
        table.add_row(alarming("missing"), problem)
    return table
