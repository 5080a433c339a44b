"""`dledger-admin upgrade-check`: whether members of a new version may vote (docs/upgrades.md).

The verdict is made in `upgrade.py`; here are the options, the table and the exit codes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from broker.admin.ask import NodeAnswer
from broker.admin.command import Command
from broker.admin.exit_codes import EXIT_DIFFERENT, EXIT_OK, EXIT_UNKNOWN
from broker.admin.nodes import ask_nodes
from broker.admin.options import add_nodes_of_group
from broker.admin.upgrade import UNTOLD, MemberVersion, UpgradeVerdict, judge
from dledger.runtime.commands import TABLE_WIDTH


def _add_options(command: argparse.ArgumentParser) -> None:
    """Add the nodes of the group, and what `upgrade-check` asks for besides them."""
    add_nodes_of_group(command)
    command.add_argument(
        "--node",
        action="append",
        default=[],
        metavar="NAME",
        help="the member that is to vote; may be given several times (default: those of another program than most)",
    )
    command.add_argument(
        "--entries",
        type=_entries,
        default=1,
        metavar="N",
        help="how many entries it must have folded by itself (default 1)",
    )


def _entries(text: str) -> int:
    """Read a number of entries.

    Raises:
        argparse.ArgumentTypeError: it is none, or less than 1.
    """
    if not text.isascii() or not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of entries from 1 on")
    return int(text)


def _run(options: argparse.Namespace) -> int:
    answers = ask_nodes(options)
    return show_upgrade_check(answers, options.node, options.entries, as_json=options.json)


def show_upgrade_check(
    answers: Sequence[NodeAnswer], names: Sequence[str], entries_min: int, *, as_json: bool
) -> int:
    """Judge, print, and return the exit code: a difference counts more than what is not known."""
    verdict = judge(answers, names, entries_min)
    if as_json:
        json.dump(_as_json(verdict), sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        _print(verdict)
    if verdict.refusals:
        return EXIT_DIFFERENT
    return EXIT_UNKNOWN if verdict.doubts else EXIT_OK


def _as_json(verdict: UpgradeVerdict) -> dict[str, Any]:
    """Return the verdict as scripts read it."""
    members = [
        asdict(member) | {"commands": sorted(member.commands or ())} for member in verdict.members
    ]
    return {
        "mayVote": verdict.may_vote,
        "index": verdict.comparison.index,
        "members": members,
        "digests": dict(verdict.comparison.digests),
        "differing": verdict.comparison.differing,
        "refusals": verdict.refusals,
        "doubts": verdict.doubts,
        "notes": verdict.notes,
    }


def _print(verdict: UpgradeVerdict) -> None:
    """Print a row per member, then what speaks against it, what is not known, and the verdict."""
    console = Console(width=None if sys.stdout.isatty() else TABLE_WIDTH)
    index = verdict.comparison.index
    table = Table(title=f"digests at applied index {index}" if index else "no digests to compare")
    for heading in ("node", "role", "program", "wire", "formats", "folded by itself", "digests"):
        table.add_column(heading)
    for member in verdict.members:
        table.add_row(*map(escape, _row(member, verdict)))
    console.print(table)
    for refusal in verdict.refusals:
        console.print(f"[bold red]{escape(refusal)}[/]", soft_wrap=True)
    for text in (*verdict.doubts, *verdict.notes):
        console.print(f"[yellow]{escape(text)}[/]", soft_wrap=True)
    judged = ", ".join(member.name for member in verdict.members if member.is_judged)
    if verdict.may_vote:
        console.print(f"[green]{escape(judged)} may vote[/]")
    elif verdict.refusals:
        console.print(
            f"[bold red]{escape(judged) or 'nobody new'} must not vote beside the others[/]"
        )


def _row(member: MemberVersion, verdict: UpgradeVerdict) -> tuple[str, ...]:
    """Return a member's cells."""
    index = verdict.comparison.index
    began = UNTOLD if member.began_at is None else str(member.began_at + 1)
    is_odd = member.name in verdict.comparison.odd
    formats = ", ".join(f"{name} {version}" for name, version in sorted(member.formats.items()))
    return (
        f"{member.name} *" if member.is_judged else member.name,
        member.role,
        member.program,
        member.wire,
        formats or UNTOLD,
        f"{began}..{index}" if index else UNTOLD,
        "DIFFER" if is_odd else "equal" if index else UNTOLD,
    )


UPGRADE_CHECK = Command(
    "upgrade-check",
    "may members of a new version vote? digests and versions of all members",
    _add_options,
    _run,
    "upgrade-check -n 127.0.0.1:9876 --node n2",
)
