"""`dledger-bench`: what a group of brokers does, beside Apache RocketMQ and PySyncObj in the same run.

    dledger-bench compare                 the table: ours beside Apache RocketMQ, ten minutes
    dledger-bench COMMAND --help          options and examples

Exit codes: 0 measured; 1 something was refused, acknowledged and not there, or did not come to its end: its figures are
not to be believed; 2 wrong usage, or nothing could be measured here; 130 interrupted: every process was ended, and what
was measured until then is printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from bench.commands import add_commands
from bench.listing import add_list
from bench.report import add_report
from dledger.version import __version__
from jepsen.processes import sigterm_as_interrupt


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    options = _parser().parse_args(arguments)
    sigterm_as_interrupt()
    return int(options.run(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dledger-bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"dledger-bench {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    add_commands(commands)
    add_report(commands)
    add_list(commands)
    return parser
