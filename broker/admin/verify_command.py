"""`dledger-admin verify`: shows whether all replicas have the same state; the comparison is made in `verify.py`."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from rich.markup import escape
from rich.table import Table

from broker.admin.command import Command
from broker.admin.exit_codes import EXIT_DIFFERENT, EXIT_OK, EXIT_UNKNOWN
from broker.admin.nodes import ask_nodes
from broker.admin.options import add_nodes_of_group
from broker.admin.printing import console, print_json
from broker.admin.verify import Comparison, compare


def _run(options: argparse.Namespace) -> int:
    verdict = compare(ask_nodes(options))
    if options.json:
        print_json(asdict(verdict) | {"equal": verdict.is_equal, "whole": verdict.is_whole})
    else:
        _print(verdict)
    if not verdict.is_equal:
        return EXIT_DIFFERENT
    return EXIT_OK if verdict.is_whole else EXIT_UNKNOWN


def _print(verdict: Comparison) -> None:
    """Print the comparison of the replicas: digests, alarms, problems, and the way to mend a replica that differs."""
    out = console()
    if verdict.index:
        table = Table(title=f"digests at applied index {verdict.index}")
        for heading in ("component", *verdict.nodes, ""):
            table.add_column(heading)
        for component, values in verdict.digests.items():
            is_different = component in verdict.differing
            mark = "[bold red]DIFFERS[/]" if is_different else "[green]equal[/]"
            table.add_row(component, *values, mark)
        out.print(table)
    for node, alarm in verdict.alarms.items():
        out.print(f"[bold red]{escape(node)} has found itself different at: {escape(alarm)}[/]")
    for problem in verdict.problems:
        out.print(f"[yellow]{escape(problem)}[/]")
    if verdict.odd:
        out.print(
            f"[bold red]not like the majority: {', '.join(verdict.odd)}[/] "
            "(stop it, remove its folder `snapshots`, start it: it folds the log anew)"
        )


VERIFY = Command(
    "verify",
    "compare the digests of all replicas at the same applied index",
    add_nodes_of_group,
    _run,
    "verify -n 127.0.0.1:9876",
)
