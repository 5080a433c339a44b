"""`dledger-admin import`: take over a store of Apache RocketMQ, or say what would become of it (docs/migration.md).

The work is that of `broker/importing`; here are the options, the report and the exit codes.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

from broker.admin.command import Command
from broker.admin.exit_codes import EXIT_DIFFERENT, EXIT_OK, EXIT_UNKNOWN, EXIT_USAGE
from broker.admin.printing import print_error, print_json, print_line, print_table
from broker.admin.progress import progress_bars
from broker.importing.check import QueueDifference, check_store
from broker.importing.copying import StoreCopy, check_target, target_folder
from broker.importing.errors import ImportFailedError, SourceError, TargetError
from broker.importing.plan import DELAYS_MS_DEFAULT, ImportPlan, make_plan
from broker.importing.source_lock import hold_source
from broker.importing.survey import Source, SourceSurvey, find_log, survey
from broker.importing.waiting import TooManyWaitError
from broker.store.schedule import parse_delay_levels
from dledger_mq.message.numbers import PhysicalOffset

_NEXT = """\
Put copies of {target} in the store folders of all nodes of the new group, and start them; or start one node with it as
a group of one (docs/migration.md)."""


def _add_options(command: argparse.ArgumentParser) -> None:
    """Add its options; without `--store` or with `--dry-run` it only says what would be imported."""
    command.add_argument(
        "source",
        type=Path,
        metavar="SOURCE",
        help="RocketMQ's storePathRootDir; its broker is stopped",
    )
    command.add_argument(
        "--commitlog",
        type=Path,
        action="append",
        metavar="DIR",
        help="the commit log, where it is neither SOURCE/commitlog nor SOURCE/dledger-ID/data; may be given several "
        "times",
    )
    command.add_argument(
        "-s", "--store", type=Path, metavar="TARGET", help="folder of the new store"
    )
    command.add_argument("--json", action="store_true", help="one JSON object for scripts")
    _add_judgements(command)


def _add_judgements(command: argparse.ArgumentParser) -> None:
    """Add the options by which whoever imports says what the store itself does not tell."""
    command.add_argument(
        "--dry-run",
        action="store_true",
        help="read everything, say what would be imported, write nothing",
    )
    command.add_argument(
        "--leave-out",
        action="append",
        default=[],
        metavar="NAME",
        help="do not import this topic, or what the report names so (POP, consumequeue/TOPIC, ...)",
    )
    command.add_argument(
        "--until",
        type=int,
        metavar="OFFSET",
        help="take the commit log for ended at this physical offset, where it is damaged",
    )
    command.add_argument(
        "--after-crash",
        action="store_true",
        help="the broker was not stopped in order, and cannot be",
    )
    command.add_argument(
        "--delay-levels",
        type=_delay_levels,
        default=[],
        metavar="LEVELS",
        help="messageDelayLevel of the broker.conf, if it has one",
    )


def _delay_levels(text: str) -> list[int]:
    """Read delay levels in milliseconds.

    Raises:
        argparse.ArgumentTypeError: one is no time.
    """
    try:
        return parse_delay_levels(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def run_import(options: argparse.Namespace) -> int:
    """Import, or say what would be imported; return the exit code."""
    if options.store is None and not options.dry_run:
        return _failed(
            "import: --store names the folder of the new store, or say --dry-run", EXIT_USAGE
        )
    try:
        with hold_source(options.source):
            return _import(options)
    except (SourceError, TargetError) as error:
        return _failed(error, EXIT_USAGE)
    except TooManyWaitError as error:
        return _failed(error, EXIT_DIFFERENT)
    except ImportFailedError as error:
        return _failed(error, EXIT_UNKNOWN)


def _import(options: argparse.Namespace) -> int:
    """Read, plan, write and compare; raises what keeps it from that."""
    if options.store is not None:
        target_folder(options.store)  # the log is long, and whoever waits for it may have gone
    folders = options.commitlog or [find_log(options.source)]
    until = None if options.until is None else PhysicalOffset(options.until)
    with progress_bars("reading", is_shown=not options.json) as (progress,):
        found = survey(Source(options.source, folders, until), progress)
    plan = make_plan(
        found,
        leave_out=options.leave_out,
        after_crash=options.after_crash,
        is_until=until is not None,
        delays_ms=options.delay_levels or DELAYS_MS_DEFAULT,
    )
    report = _report(found, plan)
    if plan.problems or options.dry_run:
        if options.store is not None:
            check_target(options.store, plan)
        return _finish(options, report, plan, [])
    now_ms = time.time_ns() // 1_000_000
    copy = StoreCopy(found, plan, options.store, now_ms=now_ms, delays_ms=options.delay_levels)
    differences: list[QueueDifference] = []
    with progress_bars("writing", "comparing", is_shown=not options.json) as (writing, comparing):

        def compare(store: Path) -> bool:
            differences.extend(check_store(store, plan, copy.digests, comparing))
            return not differences

        report["imported"] = copy.run(writing, compare)
    return _finish(options, report, plan, differences)


def _finish(
    options: argparse.Namespace,
    report: dict[str, Any],
    plan: ImportPlan,
    differences: list[QueueDifference],
) -> int:
    """Print the report, and return the exit code."""
    report["differences"] = [asdict(each) for each in differences]
    if options.json:
        print_json(report)
    else:
        _print_report(report, plan)
        if differences:
            title = "the new store differs: do not use it"
            _print_rows(title, report["differences"], "bold red")
        elif report["imported"]:
            for line in _NEXT.format(target=options.store).splitlines():
                print_line(line)
    return EXIT_DIFFERENT if plan.problems or differences else EXIT_OK


def _report(found: SourceSurvey, plan: ImportPlan) -> dict[str, Any]:
    """Return everything that a script may want to know."""
    queues: dict[str, list[dict[str, int]]] = defaultdict(list)
    for (topic, queue_id), queue in plan.queues.items():
        queues[topic.decode(errors="replace")].append(
            {
                "queue": queue_id,
                "min": queue.min_offset,
                "max": queue.max_offset,
                "messages": queue.message_count,
                "bytes": queue.message_bytes,
            }
        )
    return {
        "imported": False,
        "files": len(found.files),
        "begin": found.files[0].first_offset,
        "end": found.end.physical_offset,
        "records": found.message_count,
        "recordBytes": found.message_bytes,
        "position": plan.position,
        "messages": plan.message_count,
        "topics": {topic.name: queues.pop(topic.name, []) for topic in plan.topics} | queues,
        "openTransactions": plan.half_count,
        "timers": plan.timer_count,
        "groups": [group.name for group in plan.groups],
        "offsets": len(plan.offsets),
        "leftOut": [asdict(each) for each in plan.left_out],
        "warnings": plan.warnings,
        "problems": [asdict(each) for each in plan.problems],
    }


def _print_report(report: dict[str, Any], plan: ImportPlan) -> None:
    """Print the report as tables."""
    title = f"{report['records']} records, physical offsets {report['begin']} to {report['end']}"
    headings = ("topic", "queues", "messages", "bytes", "queue offsets")
    rows = [
        (
            topic,
            str(len(queues)),
            str(sum(each["messages"] for each in queues)),
            str(sum(each["bytes"] for each in queues)),
            _offsets_text(queues),
        )
        for topic, queues in sorted(report["topics"].items())
    ]
    print_table(title, headings, rows, right=headings[1:4])
    print_line(
        f"{report['openTransactions']} open transactions, {report['timers']} timers, {len(plan.groups)} consumer "
        f"groups, {report['offsets']} consumer offsets"
    )
    _print_rows("not imported", report["leftOut"])
    for warning in plan.warnings:
        print_line(warning, "yellow")
    _print_rows("nothing can be imported", report["problems"], "bold red")


def _offsets_text(queues: list[dict[str, int]]) -> str:
    """Return the offsets of the first queues, in words."""
    shown = [f"{each['min']}..{each['max']}" for each in queues[:4]]
    return ", ".join(shown) + (", ..." if len(queues) > len(shown) else "")


def _print_rows(title: str, rows: list[dict[str, Any]], style: str = "") -> None:
    """Print rows of the same fields as a table; nothing if there are none."""
    if rows:
        cells = [[str(value) for value in row.values()] for row in rows]
        print_table(title, list(rows[0]), cells, style=style)


def _failed(error: Exception | str, exit_code: int) -> int:
    print_error(error)
    return exit_code


IMPORT = Command(
    "import",
    "take over a store of Apache RocketMQ 4.9 or 5.3 into a new group",
    _add_options,
    run_import,
    "import /home/mq/store --store data/n0",
)
