"""`dledger-bench report`: cost curves of a group by clients, in flight, size, queues and members, as a part of a page.

The floor is drawn beside each curve: what the machine itself took, in the same run, for what no broker can do without.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rich.console import Console

from bench.compare.command import exit_code
from bench.compare.floors import write_floor_us
from bench.compare.results import SystemComparison, SystemResult
from bench.compare.rows import BODY_BYTES, QUEUES, BenchRow, RowKind
from bench.compare.runners import CONTENDERS
from bench.compare.running import Plan, compare
from bench.compare.tables import spread_text
from bench.exits import EXIT_FOUND, EXIT_INTERRUPTED, EXIT_OK
from bench.floor import Floor
from bench.load.native import lacking_generator
from bench.load.running import RoundPlan
from bench.options import positive, several, whole
from bench.progress import StageBar
from bench.systems.brokers import Setup

PAGE: Final = Path("docs/performance.md")
BEGIN: Final = "<!-- cost curves: written by make bench-report -->"
END: Final = "<!-- end of the cost curves -->"
HEAT_S: Final = 3.0
NARROW, WIDE = 64, 1024
HEAD: Final = """\
Sends of {body_bytes} bytes over {queues} queues to a group of three, fsync on a majority before the answer, on one
machine with {cores} cores; medians of rounds. The load of the machine was {before:.1f} before and {after:.1f}
after: with other work beside, read processor time and floors, not rates.

*Floors*: how many times what the machine took, just before, without any broker. Of a wait: a durable write and two
round trips. Of processor time: decoding one header and summing up one body, in Python."""
EXAMPLES: Final = """
examples:
  dledger-bench report                                   rewrites that part of docs/performance.md: four minutes
  dledger-bench report --queues 1,16 --members 3 --out /tmp/curves.md
"""


@dataclass(frozen=True, slots=True)
class Curve:
    """One curve: its title, what changes along it, and a row for each value."""

    title: str
    along: str
    values: Sequence[int]
    rows: Sequence[BenchRow]
    is_latency: bool = False


def add_report(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "report",
        help="cost curves of our group, with the floor beside them, into docs/performance.md",
        description="Measure how rate, latency and processor time change, and write it between two comments of a page.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name, default, what in (
        ("--clients", "1,4,16,64,256", "sync connections"),
        ("--in-flight", "1,16,64,256,1024", "in flight of one connection"),
        ("--sizes", "100,1024,4096,65536", "bytes of a body"),
        ("--queues", "1,16,1000,10000", "queues of the topic"),
        ("--members", "1,3,5", "members of the group"),
    ):
        parser.add_argument(
            name,
            type=several,
            default=several(default),
            metavar="N,N",
            help=f"{what} (default {default})",
        )
    parser.add_argument(
        "--seconds", type=positive, default=1.5, help="of each round (default %(default)s)"
    )
    parser.add_argument("--rounds", type=whole, default=3, help="of each row (default %(default)s)")
    parser.add_argument(
        "--warm-up", type=positive, default=1.0, help="of each row (default %(default)s)"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=PAGE,
        help="the page: what stands between the two comments is replaced, and a page without them is made anew "
        "(default %(default)s)",
    )
    parser.set_defaults(run=run)


def curves_of(options: argparse.Namespace) -> list[Curve]:
    """Return the curves of one group of three."""
    send = BenchRow("", "", RowKind.SEND, in_flight=NARROW)
    made = {
        "clients": ("Clients that wait for each answer", "connections", options.clients),
        "in-flight": ("One connection", "in flight", options.in_flight),
        "sizes": (f"Size, {NARROW} in flight", "bytes", options.sizes),
        "queues": (f"Queues, {NARROW} in flight", "queues", options.queues),
    }
    change = {
        "clients": lambda value: replace(send, connections=value, in_flight=1),
        "in-flight": lambda value: replace(send, in_flight=value),
        "sizes": lambda value: replace(send, body_bytes=value),
        "queues": lambda value: replace(send, queues=value),
    }
    return [
        Curve(
            title,
            along,
            values,
            [
                replace(change[name](value), name=f"{name}-{value}", label=f"{along} {value}")
                for value in values
            ],
            is_latency=name == "clients",
        )
        for name, (title, along, values) in made.items()
    ]


def member_rows() -> list[BenchRow]:
    """Return the rows for groups of different sizes."""
    return [
        BenchRow(f"members-{width}", f"{width} in flight", RowKind.SEND, in_flight=width)
        for width in (1, NARROW, WIDE)
    ]


def run(options: argparse.Namespace) -> int:
    """Measure, and write the page; return the exit code."""
    console = Console(stderr=True, emoji=False)
    if lack := lacking_generator():
        console.print(f"{lack}: some rows are skipped")
    curves = curves_of(options)
    pace = RoundPlan(options.warm_up, options.seconds, options.rounds)
    whole_group = Plan(
        contenders=[CONTENDERS["ours"]],
        rows=[row for curve in curves for row in curve.rows],
        pace=pace,
        heat_s=HEAT_S,
        setup=Setup(),
    )
    by_members = [
        replace(whole_group, rows=member_rows(), setup=Setup(nodes=nodes))
        for nodes in options.members
    ]
    plans = [whole_group, *by_members]
    with StageBar(console, sum(plan.system_s for plan in plans)) as stages:
        results: list[SystemComparison] = []
        for plan in plans:
            results.append(compare(plan, stages, "dledger-bench report"))
            if results[-1].is_interrupted:
                return EXIT_INTERRUPTED
    section = section_of(curves, results[0], list(zip(options.members, results[1:], strict=True)))
    before = options.out.read_text() if options.out.exists() else ""
    options.out.write_text(page_with(before, section))
    console.print(f"written: {options.out}", highlight=False)
    codes = {exit_code(result) for result in results}
    return EXIT_OK if codes == {EXIT_OK} else EXIT_FOUND


def page_with(page: str, section: str) -> str:
    """Return a page with another section between the comments; pure."""
    part = f"{BEGIN}\n\n{section}\n{END}"
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    return head + part + tail if begin and end else f"# Cost curves\n\n{part}\n"


def section_of(
    curves: Sequence[Curve],
    result: SystemComparison,
    by_members: Sequence[tuple[int, SystemComparison]],
) -> str:
    """Return what stands between the comments; pure."""
    machine = result.machine
    head = HEAD.format(
        body_bytes=BODY_BYTES,
        queues=QUEUES,
        cores=machine.cores,
        before=machine.load_before,
        after=machine.load_after,
    )
    lines, system = [head], result.systems[0]
    for curve in curves:
        lines += [
            "",
            f"### {curve.title}",
            "",
            *_table_of(curve, system),
            "",
            *_chart_of(curve, system),
        ]
    lines += ["", "### Members", "", *_members_of(by_members)]
    return "\n".join(lines) + "\n"


def _figures_of(curve: Curve, system: SystemResult) -> Iterator[tuple[int, float, float, Floor]]:
    """Yield value, p50 and the leader's time of what was measured."""
    for value, row in zip(curve.values, curve.rows, strict=True):
        found = system.row(row.name)
        if found and found.measured and found.measured.leader_us and system.floor:
            p50_us = found.measured.over(lambda each: each.p50_us).median
            yield value, p50_us, found.measured.leader_us.median, system.floor


def _table_of(curve: Curve, system: SystemResult) -> list[str]:
    """Return a line for each value."""
    head = (
        curve.along,
        "messages/s",
        "spread",
        "p50 us",
        "floors",
        "leader us",
        "floors",
        "follower us",
    )
    lines = [_line(head), _line(["---"] * len(head))]
    figures = {
        value: (p50, leader, floor) for value, p50, leader, floor in _figures_of(curve, system)
    }
    for value, row in zip(curve.values, curve.rows, strict=True):
        found = system.row(row.name)
        if found is None or found.measured is None or value not in figures:
            lines.append(_line([f"{value:,}", "skipped", *["-"] * (len(head) - 2)]))
            continue
        p50_us, leader_us, floor = figures[value]
        follower = found.measured.follower_us
        cells = [
            f"{value:,}",
            f"{found.measured.per_second.median:,.0f}",
            spread_text(found.measured.per_second),
            f"{p50_us:,.0f}",
            f"{p50_us / write_floor_us(floor):.1f}",
            f"{leader_us:.1f}",
            f"{leader_us / floor.parse_us:.0f}",
            f"{follower.median:.1f}" if follower else "-",
        ]
        lines.append(_line(cells))
    return lines


def _chart_of(curve: Curve, system: SystemResult) -> list[str]:
    """Return a chart that whoever shows the page draws: the figure, and below it the floor."""
    figures = list(_figures_of(curve, system))
    if not figures:
        return []
    if curve.is_latency:
        what = "p50 us"
        pairs = [(p50_us, write_floor_us(floor)) for _, p50_us, _, floor in figures]
    else:
        what = "leader us a message"
        pairs = [(leader_us, floor.parse_us) for _, _, leader_us, floor in figures]
    return [
        "```mermaid",
        "xychart-beta",
        f'  title "{what}, and the floor"',
        f'  x-axis "{curve.along}" [{", ".join(str(value) for value, *_ in figures)}]',
        f'  y-axis "{what}"',
        f"  line [{', '.join(f'{figure:.1f}' for figure, _ in pairs)}]",
        f"  line [{', '.join(f'{floor:.1f}' for _, floor in pairs)}]",
        "```",
    ]


def _members_of(by_members: Sequence[tuple[int, SystemComparison]]) -> list[str]:
    """Return a table: a line for each size of the group, and for each number in flight rate, p50 and leader."""
    rows = member_rows()
    head = ["members"]
    for row in rows:
        head += [f"{row.label}: messages/s", "p50 us", "leader us"]
    lines = [_line(head), _line(["---"] * len(head))]
    for members, result in by_members:
        cells = [str(members)]
        for row in rows:
            found = result.systems[0].row(row.name)
            if found is None or found.measured is None or found.measured.leader_us is None:
                cells += ["skipped", "-", "-"]
                continue
            figures = found.measured
            p50_us = figures.over(lambda each: each.p50_us).median
            leader = found.measured.leader_us
            cells += [f"{figures.per_second.median:,.0f}", f"{p50_us:,.0f}", f"{leader.median:.1f}"]
        lines.append(_line(cells))
    return lines


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
