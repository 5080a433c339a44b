"""`dledger-admin snapshots`: each node's snapshot, from its runtime information."""

from __future__ import annotations

import argparse
from typing import Final

from broker.admin.command import Command
from broker.admin.exit_codes import EXIT_OK, EXIT_UNKNOWN
from broker.admin.nodes import ask_nodes
from broker.admin.options import add_nodes_of_group
from broker.admin.printing import print_json, print_line, print_table

_COLUMNS: Final = (
    ("node", "raftNode"),
    ("role", "raftRole"),
    ("applied", "raftAppliedIndex"),
    ("first entry", "raftFirstIndex"),
    ("snapshot at", "snapshotIndex"),
    ("bytes", "snapshotBytes"),
    ("taken", "snapshotsTaken"),
    ("longest pause ms", "snapshotPauseMs"),
)


def _run(options: argparse.Namespace) -> int:
    """Print a row per node; return EXIT_UNKNOWN if any node is missing, so that a script sees a gap in the table."""
    answers = ask_nodes(options)
    rows = [
        {heading: each.table.get(key, "") for heading, key in _COLUMNS}
        for each in answers
        if each.table
    ]
    problems = [f"{each.address}: {each.problem}" for each in answers if not each.table]
    if options.json:
        print_json({"nodes": rows, "problems": problems})
    else:
        headings = [heading for heading, _ in _COLUMNS]
        print_table("snapshots", headings, [tuple(row.values()) for row in rows])
        for problem in problems:
            print_line(problem, "yellow")
    return EXIT_UNKNOWN if problems else EXIT_OK


SNAPSHOTS = Command(
    "snapshots",
    "each node's snapshot: index, size, pause",
    add_nodes_of_group,
    _run,
    "snapshots -n 127.0.0.1:9876",
)
