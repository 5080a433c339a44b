"""`dledger-admin top`: what goes in and out of topics, who is behind, who leads; again and again, or once."""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass, field
from typing import Final

import trio
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from broker.admin.answers import QueueStats
from broker.admin.ask import NobodyAnsweredError
from broker.admin.cluster import Cluster, open_cluster
from broker.admin.command import Command
from broker.admin.exit_codes import EXIT_DIFFERENT, EXIT_OK, EXIT_UNKNOWN
from broker.admin.failures import NotThereError
from broker.admin.health import ClusterHealth, GroupHealth
from broker.admin.looks import Looks
from broker.admin.options import add_json, add_namesrv, add_topic, count
from broker.admin.printing import NONE, at, console, number, shown
from broker.admin.status import WATCH_S, watch_s
from broker.admin.status_table import duration
from broker.admin.topics import kind_of
from broker.admin.traffic import (
    GroupTraffic,
    Place,
    TopicTraffic,
    TrafficLook,
    group_traffic,
    topic_traffic,
)
from broker.admin.watching import keep_watching, printer
from dledger_mq.client.errors import ClientError
from dledger_mq.message.names import is_system_group

TOPICS_MAX: Final = 256
"""Topics whose queues are asked for in one look; of more the rest is counted."""

ROWS: Final = 20
ROWS_MAX: Final = 1000
_ASKED_AT_ONCE: Final = 16
_RIGHT: Final = frozenset({"queues", "messages", "in/s", "out/s", "topics", "lag"})


@dataclass(frozen=True, slots=True)
class TopView:
    """One look, as it is shown.

    Attributes:
        at_ms: when it was, in ms since 1970.
        health: who leads, and who is away.
        problem: why nothing is known of topics and groups; empty: it is.
        rows_max: at most so many rows of each table are shown to people.
    """

    at_ms: int
    health: ClusterHealth
    topics: list[TopicTraffic] = field(default_factory=list)
    groups: list[GroupTraffic] = field(default_factory=list)
    left_out: int = 0
    problem: str = ""
    rows_max: int = ROWS

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lay it out: leaders, topics, groups."""
        yield Text(f"{at(self.at_ms)}  rates in messages a second; q or Ctrl-C ends", style="dim")
        for group in self.health.groups:
            yield _leader_line(group)
        if self.problem:
            yield Text(shown(self.problem), style="bold red")
        yield _table(
            ("topic", "queues", "messages", "in/s", "out/s"),
            [
                (
                    row.topic,
                    number(row.queues),
                    number(row.messages),
                    _rate(row.in_rate),
                    _rate(row.out_rate),
                )
                for row in self.topics[: self.rows_max]
            ],
        )
        yield _table(
            ("group", "topics", "lag", "out/s", "caught up in"),
            [
                (
                    row.group,
                    number(row.topics),
                    number(row.lag),
                    _rate(row.out_rate),
                    _time(row.seconds),
                )
                for row in self.groups[: self.rows_max]
            ],
        )
        hidden = max(0, len(self.topics) - self.rows_max), max(0, len(self.groups) - self.rows_max)
        if any(hidden) or self.left_out:
            yield Text(
                f"not shown: {hidden[0]} topics, {hidden[1]} groups; not asked: {self.left_out} topics",
                style="yellow",
            )

    def as_json(self) -> dict[str, object]:
        """Return it as scripts read it: all rows; a rate that is not known is null."""
        leaders = []
        for group in self.health.groups:
            facts = group.leader.facts if group.leader is not None else None
            leaders.append(
                {
                    "group": group.name,
                    "led": group.is_led,
                    "whole": group.is_whole,
                    "leader": facts.node_id if facts is not None else None,
                    "term": facts.term if facts is not None else None,
                }
            )
        return {
            "at_ms": self.at_ms,
            "leaders": leaders,
            "topics": [asdict(row) for row in self.topics],
            "groups": [asdict(row) for row in self.groups],
            "topics_not_asked": self.left_out,
            "problem": self.problem,
        }


def _leader_line(group: GroupHealth) -> Text:
    """Return who leads a group, and who is not well."""
    facts = group.leader.facts if group.leader is not None else None
    line = Text(shown(group.name), style="bold")
    if facts is None:
        line.append("  no leader", style="bold red")
    else:
        line.append(
            f"  {shown(facts.node_id)} leads, term {number(facts.term)}", style="not bold green"
        )
    away = [one for one in group.members if not one.is_well]
    if away:
        names = ", ".join(f"{one.node_id or one.address} {one.state.value}" for one in away)
        line.append(f"; {shown(names)}", style="not bold yellow")
    return line


def _table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    table = Table()
    for heading in headings:
        table.add_column(heading, justify="right" if heading in _RIGHT else "left")
    for row in rows:
        table.add_row(*(Text(shown(cell)) for cell in row))
    return table


def _rate(rate: float | None) -> str:
    return NONE if rate is None else number(round(rate)) if rate >= 10 else f"{rate:.1f}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "not as it goes"
    return duration(round(seconds * 1000)) if seconds else "caught up"


class _Looks:
    """One look after the other; rates come from two of them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._looks = Looks(options.namesrv)
        self._before: TrafficLook | None = None
        self._is_led = False
        self.problem = ""

    async def look(self) -> TopView:
        """Look once."""
        look = await self._looks.look()
        self._is_led = look.health.is_led
        now, before = TrafficLook(trio.current_time()), self._before
        self.problem = ""
        try:
            async with open_cluster(self._options.namesrv) as cluster:
                now = await _offsets(cluster, self._options.topic)
        except (ClientError, NotThereError) as error:
            self.problem = str(error)
        else:
            self._before = now
        return TopView(
            round(look.at_s * 1000),
            look.health,
            topic_traffic(now, before),
            group_traffic(now, before),
            now.left_out,
            self.problem,
            self._options.rows,
        )

    def exit_code(self) -> int:
        """Return what the last look means for a script."""
        if self.problem:
            return EXIT_UNKNOWN
        return EXIT_OK if self._is_led else EXIT_DIFFERENT


async def _offsets(cluster: Cluster, only: str | None) -> TrafficLook:
    """Ask for the offsets of all applications' topics and groups; offsets of groups first, so that none seems ahead.

    Raises:
        ClientError: nobody could be asked.
    """
    committed: dict[str, dict[Place, int]] = {}
    wanted: list[tuple[str, str]] = []
    for broker in cluster.brokers:
        offsets = await cluster.inspector.consumer_offsets(broker)
        consumed: set[str] = set()
        for group, topics in offsets.items():
            if not is_system_group(group):
                for topic, queues in topics.items():
                    if only in (None, topic):
                        consumed.add(topic)
                        places = committed.setdefault(group, {})
                        places |= {(topic, broker, queue): at for queue, at in queues.items()}
        applications = {
            name for name in await cluster.topics(broker) if kind_of(name) == "application"
        }
        named = applications | consumed if only is None else {only} & (applications | consumed)
        wanted += [(broker, topic) for topic in sorted(named)]
    at_s = trio.current_time()
    queues_of = await _queues(cluster, wanted[:TOPICS_MAX])
    return TrafficLook(at_s, queues_of, committed, max(0, len(wanted) - TOPICS_MAX))


async def _queues(cluster: Cluster, wanted: list[tuple[str, str]]) -> dict[Place, QueueStats]:
    """Return what the queues of topics hold, some topics at a time; the first failure ends it. Raises ClientError."""
    found: dict[Place, QueueStats] = {}
    failures: list[ClientError] = []
    limiter = trio.CapacityLimiter(_ASKED_AT_ONCE)

    async def ask(broker: str, topic: str) -> None:
        async with limiter:
            try:
                queues = await cluster.queues(broker, topic)
            except ClientError as error:
                failures.append(error)
                nursery.cancel_scope.cancel()
            else:
                found.update({(topic, broker, queue): stats for queue, stats in queues.items()})

    async with trio.open_nursery() as nursery:
        for broker, topic in wanted:
            nursery.start_soon(ask, broker, topic)
    if failures:
        raise failures[0]
    return found


async def _once(options: argparse.Namespace) -> int:
    """Look twice, and print the second look.

    Raises:
        NobodyAnsweredError: nobody could be asked.
    """
    looks = _Looks(options)
    await looks.look()
    await trio.sleep(options.interval)
    view = await looks.look()
    if looks.problem:
        raise NobodyAnsweredError(looks.problem)
    printer(console(), TopView.as_json if options.json else None, is_stream=False)(view)
    return looks.exit_code()


async def _watch(options: argparse.Namespace) -> int:
    """Look until somebody ends it; return what the last look means."""
    looks, out = _Looks(options), console()
    await keep_watching(
        looks.look,
        printer(out, TopView.as_json if options.json else None, is_stream=True),
        interval_s=options.interval,
        out=out,
        is_live=not options.json,
    )
    return looks.exit_code()


def _add_options(command: argparse.ArgumentParser) -> None:
    """Add how often it looks, and how much it shows."""
    add_namesrv(command, required=True)
    command.add_argument(
        "-i",
        "--interval",
        type=watch_s,
        default=WATCH_S,
        metavar="SECONDS",
        help="from one look to the next (%(default)g)",
    )
    command.add_argument(
        "--once", action="store_true", help="two looks, so that there are rates, and one table"
    )
    command.add_argument(
        "--rows",
        type=count(1, ROWS_MAX),
        default=ROWS,
        metavar="N",
        help="rows of each table (%(default)s)",
    )
    add_topic(command, required=False, text="this topic only")
    add_json(command)


def _run(options: argparse.Namespace) -> int:
    return trio.run(_once if options.once else _watch, options)


TOP = Command(
    "top",
    "live: messages in and out of each topic, lag of each group, leaders and terms",
    _add_options,
    _run,
    "top -n 127.0.0.1:9876 --once",
    fields="at_ms, leaders: [group, led, whole, leader, term], problem, topics_not_asked,\n"
    "topics: [topic, queues, messages, in_rate, out_rate], groups: [group, topics, lag, out_rate, seconds]",
    details="Rates come from the offsets of two looks: in is what was stored, out what groups have committed. With "
    "--json there is one object a look, and without --once each stands on a line.",
)
