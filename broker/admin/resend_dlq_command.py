"""`dledger-admin resend-dlq`: options, table and exit code; the work is `resend_dlq.py`'s."""

from __future__ import annotations

import argparse
from dataclasses import asdict

import trio
from rich.text import Text

from broker.admin.command import Command
from broker.admin.exit_codes import EXIT_DIFFERENT, EXIT_OK
from broker.admin.options import add_json, add_namesrv, consumer_group
from broker.admin.printing import print_json, print_table
from broker.admin.resend_dlq import TO_ORIGIN, TO_RETRY, Choice, ResendOutcome, resend


def _add_options(command: argparse.ArgumentParser) -> None:
    """Add its options; what an earlier run sent again is left out by default, so that a repeated call is harmless."""
    command.add_argument(
        "consumer_group", metavar="GROUP", type=consumer_group, help="the consumer group"
    )
    add_namesrv(command, required=True)
    command.add_argument("--topic", help="only those that were sent to this topic at first")
    command.add_argument(
        "--msg-id", action="append", metavar="ID", help="only this one; may be given several times"
    )
    command.add_argument(
        "--all", action="store_true", help="also those that were sent again by an earlier run"
    )
    command.add_argument(
        "--to",
        choices=(TO_RETRY, TO_ORIGIN),
        default=TO_RETRY,
        help="the group's retry topic (default), or the topic that each came from, for all its groups",
    )
    command.add_argument(
        "--limit", type=int, metavar="N", help="send at most N of them again, N from 1 on"
    )
    command.add_argument("--dry-run", action="store_true", help="list them without sending")
    add_json(command)


def _run(options: argparse.Namespace) -> int:
    """Send the dead letters again; return EXIT_DIFFERENT if some failed, since those that were sent stay sent."""
    choice = Choice(options.topic, frozenset(options.msg_id or ()), options.all)

    async def run() -> ResendOutcome:
        return await resend(
            ";".join(options.namesrv),
            options.consumer_group,
            choice,
            to=options.to,
            limit=options.limit,
            is_dry=options.dry_run,
        )

    outcome = trio.run(run)
    if options.json:
        print_json(asdict(outcome) | {"dryRun": options.dry_run})
    else:
        _print(outcome, is_dry=options.dry_run)
    return EXIT_DIFFERENT if outcome.failed else EXIT_OK


def _print(outcome: ResendOutcome, *, is_dry: bool) -> None:
    """Print a row for each dead letter that was meant; their keys are whatever their senders have chosen."""
    yes, no = Text("yes", style="green"), Text("no", style="bold red")
    headings = ("message", "would be sent again" if is_dry else "sent again", "because")
    rows = [(key, yes, "") for key in outcome.resent]
    rows += [(key, no, reason) for key, reason in outcome.failed.items()]
    print_table(f"{outcome.examined} dead letters examined", headings, rows)


RESEND_DLQ = Command(
    "resend-dlq",
    "send the dead letters of a consumer group again",
    _add_options,
    _run,
    "resend-dlq -n 127.0.0.1:9876 billing --dry-run",
    fields="resent: [...], failed: {...}, examined, dryRun",
)
