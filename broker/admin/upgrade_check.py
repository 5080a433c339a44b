"""`dledger-admin upgrade-check`: whether members of a new version may vote (docs/upgrades.md).

The verdict is made in `upgrade.py`; here are the options, the table and the exit codes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from broker.admin.ask import NodeAnswer
from broker.admin.command import Command
from broker.admin.exit_codes import EXIT_DIFFERENT, EXIT_OK, EXIT_UNKNOWN
from broker.admin.nodes import ask_nodes
from broker.admin.options import add_nodes_of_group
from broker.admin.printing import print_json, print_line, print_table
from broker.admin.upgrade import UNTOLD, MemberVersion, UpgradeVerdict, judge


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
        print_json(_as_json(verdict))
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
    index = verdict.comparison.index
    title = f"digests at applied index {index}" if index else "no digests to compare"
    headings = ("node", "role", "program", "wire", "formats", "folded by itself", "digests")
    print_table(title, headings, [_row(member, verdict) for member in verdict.members])
    for refusal in verdict.refusals:
        print_line(refusal, "bold red")
    for text in (*verdict.doubts, *verdict.notes):
        print_line(text, "yellow")
    judged = ", ".join(member.name for member in verdict.members if member.is_judged)
    if verdict.may_vote:
        print_line(f"{judged} may vote", "green")
    elif verdict.refusals:
        print_line(f"{judged or 'nobody new'} must not vote beside the others", "bold red")


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
