"""`dledger-admin verify`: shows whether all replicas have the same state; the comparison is made in `verify.py`."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from rich.text import Text

from broker.admin.command import Command
from broker.admin.exit_codes import EXIT_DIFFERENT, EXIT_OK, EXIT_UNKNOWN
from broker.admin.nodes import ask_nodes
from broker.admin.options import add_nodes_of_group
from broker.admin.printing import print_json, print_line, print_table
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
    if verdict.index:
        differs, equal = Text("DIFFERS", style="bold red"), Text("equal", style="green")
        rows: list[tuple[str | Text, ...]] = [
            (component, *values, differs if component in verdict.differing else equal)
            for component, values in verdict.digests.items()
        ]
        title = f"digests at applied index {verdict.index}"
        print_table(title, ("component", *verdict.nodes, ""), rows)
    for node, alarm in verdict.alarms.items():
        print_line(f"{node} has found itself different at: {alarm}", "bold red")
    for problem in verdict.problems:
        print_line(problem, "yellow")
    if verdict.odd:
        print_line(
            f"not like the majority: {', '.join(verdict.odd)} "
            "(stop it, remove its folder `snapshots`, start it: it folds the log anew)",
            "bold red",
        )


VERIFY = Command(
    "verify",
    "compare the digests of all replicas at the same applied index",
    add_nodes_of_group,
    _run,
    "verify -n 127.0.0.1:9876",
)
