"""`dledger-pipeline JOB`: the jobs on Spark as commands.

Exit codes: 0 fine; 1 differences were found, or something failed; 2 wrong usage, or nothing can be concluded.
Errors are one sentence on standard error; `--log-level info` lets Spark say more.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Final

from broker.admin.credentials_option import add_credentials_option, credentials_of
from broker.admin.tls_options import add_tls_options, tls_of
from dledger.errors import ConfigError, DLedgerError
from dledger.version import __version__
from dledger_mq.client.credentials import credentials_for_all
from dledger_mq.client.errors import ClientError
from dledger_mq.client.tls import tls_for_all
from pipeline.errors import EXIT_FOUND, EXIT_INCONCLUSIVE, PipelineError
from pipeline.jobs import JOBS, Job, load
from pipeline.jobs.context import JobContext
from pipeline.jobs.environment import PACKAGES

EXIT_INTERRUPTED: Final = 130
LOG_LEVELS: Final = ("error", "warn", "info", "debug")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a job; returns its exit code."""
    jobs = {job.name: job for job in map(load, JOBS)}
    options = _parser(jobs).parse_args(arguments)
    context = JobContext(options)
    try:
        try:
            with tls_for_all(tls_of(options)), credentials_for_all(credentials_of(options)):
                return jobs[options.job].run(context)
        finally:
            context.close()
    except BaseException as error:
        cause = _innermost(error)
        exit_code = _report(options.job, cause)
        if exit_code is None:
            raise
        return exit_code


def _innermost(error: BaseException) -> BaseException:
    """Return the exception that a nursery has wrapped in groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _report(job: str, error: BaseException) -> int | None:
    """Print one sentence for the user and return the exit code; None for an unexpected error."""
    match error:
        case PipelineError():
            return _print_error(job, str(error), error.exit_code)
        case KeyboardInterrupt():
            return _print_error(job, "interrupted", EXIT_INTERRUPTED)
        case BrokenPipeError():
            # Whoever read our output has seen enough; Python must not complain about it at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return EXIT_FOUND
        case ConfigError():
            return _print_error(job, str(error), EXIT_INCONCLUSIVE)
        case ModuleNotFoundError(name=str() as module) if module.partition(".")[0] in PACKAGES:
            package = module.partition(".")[0]
            # Some jobs need no Spark, but all that is read of a log is read into its arrays.
            text = f"{package} is not installed: the extra `spark` brings it (docs/installing.md)"
            return _print_error(job, text, EXIT_INCONCLUSIVE)
        case OSError() | DLedgerError() | ClientError():
            return _print_error(job, str(error), EXIT_FOUND)
        case _:
            reason = _spark_reason(error)
            return None if reason is None else _print_error(job, reason, EXIT_FOUND)


def _spark_reason(error: BaseException) -> str | None:
    """Return the reason for a failure inside Spark; None when it is no failure of Spark's."""
    if not type(error).__module__.startswith(("pyspark.", "py4j.")):
        return None
    from pipeline.spark.failures import reason_of

    return reason_of(error)


def _print_error(job: str, text: str, exit_code: int) -> int:
    sys.stderr.write(f"dledger-pipeline {job}: {text}\n")
    return exit_code


def _parser(jobs: dict[str, Job]) -> argparse.ArgumentParser:
    """Build the parser; the options that every job has are added after its own."""
    parser = argparse.ArgumentParser(
        prog="dledger-pipeline",
        description="jobs on the broker's topics and its log, with Spark",
        epilog="Exit codes: 0 fine; 1 something was found, or failed; 2 wrong usage, or nothing can be concluded; "
        "130 interrupted. Results go to standard output (one object with --json), the rest to standard error. "
        "docs/pipeline.md and docs/pipeline-jobs.md describe every job.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    add_tls_options(parser)
    add_credentials_option(parser)
    commands = parser.add_subparsers(dest="job", required=True, metavar="JOB")
    for job in jobs.values():
        command = commands.add_parser(job.name, help=job.summary, description=job.summary)
        job.add_arguments(command)
        command.add_argument("--json", action="store_true", help="one JSON object for scripts")
        command.add_argument(
            "--master",
            help="where Spark runs: local[N], local-cluster[...], spark://HOST:PORT; "
            "default: this machine, all cores",
        )
        command.add_argument(
            "--log-level",
            choices=LOG_LEVELS,
            default="error",
            help="what Spark says; default: error",
        )
    return parser


if __name__ == "__main__":
    sys.exit(main())
