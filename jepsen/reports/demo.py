"""The report of `make demo` for people and scripts: the timeline of kills, who sent what, what became of it.

Everything is read from the history and from what the checkers found, so that no number can disagree with the verdict.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dledger.raft.ids import Term
from jepsen.checkers.messages import SendOp, read_queue_history
from jepsen.checkers.percentiles import percentile
from jepsen.checkers.results import Anomaly, CheckResult
from jepsen.history.ops import NEMESIS, OBSERVER, RECEIVE, Op
from jepsen.history.values import BEGINS_INJECTION, LeaderSeen, SendAsked, shaped, strike_of
from jepsen.measure import gaps_ms
from jepsen.reports.by_group import group_lines, group_tallies, groups_table, kill_costs
from jepsen.reports.summary import VERDICTS, why_not_valid, work_of
from jepsen.reports.timeline import leaderships
from jepsen.run import RunResult

OURS: Final = "ours"
MESSAGES: Final = "queue"
ANOMALIES_SHOWN: Final = 20
Counts = dict[str, object]


@dataclass(slots=True)
class ClientTally:
    """The fate of one client's messages, whoever read them.

    Attributes:
        sent, acknowledged, unknown, refused: by how the sends ended.
        received: read by anybody.
        lost: by a consumer group, though acknowledged.
        stored_twice: places beyond the first.
        rekeyed: of these: sent again under another UNIQ_KEY, which no broker can recognise.
        delivered_twice: places that a push consumer was handed again.
    """

    sent: int = 0
    acknowledged: int = 0
    unknown: int = 0
    refused: int = 0
    received: int = 0
    lost: int = 0
    stored_twice: int = 0
    rekeyed: int = 0
    delivered_twice: int = 0


@dataclass(frozen=True, slots=True)
class DemoFacts:
    """The facts of a run that a person is shown. Pure.

    Attributes:
        ops: the whole history.
        messages: the operations on plain messages alone.
        checks: what the checkers found, each with its part of the run in its name.
    """

    ops: Sequence[Op]
    messages: Sequence[Op]
    checks: Sequence[CheckResult]

    @property
    def lost(self) -> list[Anomaly]:
        """The findings of the checkers on plain messages that were lost."""
        found = self.check(f"{MESSAGES}/total-queue", "total-queue")
        return [one for one in found.anomalies if one.kind == "lost"] if found else []

    def check(self, *names: str) -> CheckResult | None:
        """Return the result of a checker by one of its names; None when it did not judge."""
        return next((check for check in self.checks if check.name in names), None)


def tallies(story: DemoFacts) -> dict[str, ClientTally]:
    """Count plain messages by the client that sent them. Pure."""
    history = read_queue_history(story.messages)
    sent = {send.key: send for send in history.sends}
    found: dict[str, ClientTally] = defaultdict(ClientTally)
    for send in history.sends:
        tally = found[client_of(send)]
        tally.sent += 1
        tally.acknowledged += send.is_ok
        tally.refused += send.type == "fail"
        tally.unknown += send.type == "info"
    for anomaly in story.lost:
        key = shaped(story.ops[anomaly.ops[0]].value, SendAsked)["key"]
        found[client_of(sent[key])].lost += 1
    uniqs: dict[str, dict[tuple[str, int], str]] = defaultdict(dict)
    handed: Counter[tuple[str, str, tuple[str, int]]] = Counter()
    for poll in history.polls:
        for message in poll.messages:
            known = uniqs[message.key].get(message.place, "")
            uniqs[message.key][message.place] = known or message.uniq
            if poll.completion.f == RECEIVE:
                handed[message.key, poll.group, message.place] += 1
    for key, places in uniqs.items():
        if key in sent:
            tally = found[client_of(sent[key])]
            tally.received += 1
            tally.stored_twice += len(places) - 1
            tally.rekeyed += len(set(places.values())) - 1 if all(places.values()) else 0
    for (key, _, _), times in handed.items():
        if key in sent:
            found[client_of(sent[key])].delivered_twice += times - 1
    return dict(sorted(found.items()))


def client_of(send: SendOp) -> str:
    """Return the name of the client that sent a message."""
    return shaped(send.invoke.value, SendAsked).get("client", OURS)


def stream_counts(story: DemoFacts) -> dict[str, Counts]:
    """Return the counts of transactions, due times, the ordered stream and hurried sends. Pure."""
    found: dict[str, Counts] = {}
    transactions = story.check("transactions/transactions")
    if transactions is not None:
        kinds = Counter(one.kind for one in transactions.anomalies)
        found["transactions"] = {
            **_counted(transactions, "committed", "rolled_back", "checks"),
            "lost": kinds["lost"],
            "seen_wrongly": kinds.total() - kinds["lost"],
            "delivered_twice": _count(story, "transactions/queue-log", "redelivered"),
        }
    timers = story.check("delay/delay")
    if timers is not None:
        late = story.check("delay/in-time")
        found["timers"] = {
            **_counted(timers, "acknowledged", "received", "lost", "early"),
            "twice": timers.counts.get("duplicate"),
            "late": len(late.anomalies) if late else 0,
            "excused": late.counts.get("excused") if late else 0,
            "delivered_twice": _count(story, "delay/queue-log", "redelivered"),
            "late_ms": timers.counts.get("late_ms", {}),
        }
    ordered = story.check("ordered/ordered")
    if ordered is not None:
        found["ordered"] = {
            "acknowledged": ordered.counts.get("acknowledged"),
            "received": ordered.counts.get("processed"),
            "lost": _count(story, "ordered/total-queue", "lost"),
            "twice": _count(story, "ordered/queue-log", "duplicate"),
            "violations": len(ordered.anomalies),
            "rewinds": _count(story, "ordered/offsets", "rewinds"),
        }
    places = story.check("sends/places")
    if places is not None:
        found["sends"] = {
            "acknowledged": _count(story, "sends/total-queue", "acknowledged"),
            **_counted(places, "compared"),
            "wrong": len(places.anomalies),
            "lost": _count(story, "sends/total-queue", "lost"),
            "twice": _count(story, "sends/queue-log", "duplicate"),
        }
    return found


def _counted(result: CheckResult, *names: str) -> Counts:
    """Return some counts of a checker's result; a checker that crashed has none."""
    return {name: result.counts.get(name) for name in names}


def _count(story: DemoFacts, check: str, name: str) -> int:
    result = story.check(check)
    value = result.counts.get(name, 0) if result else 0
    return value if isinstance(value, int) else 0


def line_for_scripts(story: DemoFacts) -> str:
    """Return the line of --json: plain messages first, then a member for each stream. Pure."""
    found = tallies(story).values()
    gaps = gaps_ms(story.ops)
    known = [gap for gap in gaps if gap is not None]
    line: Counts = {
        "acknowledged": sum(tally.acknowledged for tally in found),
        "received": sum(tally.received for tally in found),
        "lost": sum(tally.lost for tally in found),
        "duplicated": sum(tally.stored_twice + tally.delivered_twice for tally in found),
        "kills": len(gaps),
        "failover_ms": {
            "p50": round(percentile(known, 50)) if known else None,
            "max": round(max(known)) if known else None,
        },
        **stream_counts(story),
    }
    groups = group_tallies(story.checks)
    if groups:
        costs = kill_costs(story.ops)
        line["groups"] = {name: asdict(tally) for name, tally in groups.items()}
        line["pause_ms"] = [round(cost.pause_ms) for cost in costs]
        line["group_pause_ms"] = [
            None if cost.group_pause_ms is None else round(cost.group_pause_ms) for cost in costs
        ]
    return msgspec.json.encode(line).decode()


class _Leaders:
    """The leader of each group, and the row of the timeline for a change."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[str, Term]] = {}
        self.term = ""  # the last one; empty where there are several groups

    def row(self, op: Op) -> tuple[str, str] | None:
        """Return text and term for a leader that is news; None for one that was not seen for a moment."""
        seen = shaped(op.value, LeaderSeen)
        group, lead = seen.get("group", ""), (op.node, seen["term"])
        if group and self._last.get(group) == lead:
            return None
        self._last[group] = lead
        self.term = "" if group else str(lead[1])
        return f"[green]{op.node} leads{f' {group}' if group else ''}[/green]", str(lead[1])


def _costs(ops: Sequence[Op]) -> list[tuple[str, str]]:
    """Return for each kill which groups lost their leader, and the time without an acknowledged send."""
    if not any(lead.group for lead in leaderships(ops)):
        gaps = gaps_ms(ops)
        return [("", "until the next kill" if gap is None else f"{gap:.0f} ms") for gap in gaps]
    found = []
    for cost in kill_costs(ops):
        led = f" (led {', '.join(cost.groups)})" if cost.groups else ""
        own = "" if cost.group_pause_ms is None else f"; there: {cost.group_pause_ms:.0f} ms"
        found.append((led, f"{cost.pause_ms:.0f} ms{own}"))
    return found


def timeline(ops: Sequence[Op]) -> Table:
    """Return kills, restarts and leaders in their order, each kill with what it cost."""
    table = Table(title="Timeline", title_justify="left")
    table.add_column("s", justify="right")
    table.add_column("what")
    table.add_column("term", justify="right")
    table.add_column("no acknowledged send for", justify="right")
    costs = iter(_costs(ops))
    leaders, led, said = _Leaders(), "", ""
    for op in ops:
        seconds = f"{op.t_ns / 1e9:.2f}"
        if op.process == OBSERVER and op.f == "leader":
            if (row := leaders.row(op)) is not None:
                table.add_row(seconds, *row, "")
        elif op.process == OBSERVER and op.f == "note":
            table.add_row(seconds, escape(shaped(op.value, str)), "", "")
        elif op.process == NEMESIS and op.value == BEGINS_INJECTION:
            led, said = next(costs, ("", ""))
        elif (strike := strike_of(op)) is not None and strike.get("do") == "inject":
            what = escape(strike.get("done", "")).replace("killed", "[red]kill -9[/red]")
            table.add_row(seconds, what + led, leaders.term, said)
        elif strike is not None and strike.get("do") == "cure":
            nodes = escape(strike.get("done", "")).removeprefix("started ")
            table.add_row(seconds, f"{nodes} started again", "", "")
    return table


def messages_table(found: dict[str, ClientTally]) -> Table:
    """Build the table of messages sent, acknowledged, received, lost and duplicated, a column for each client."""
    table = Table(title="Messages", title_justify="left")
    table.add_column("")
    for client in found:
        table.add_column(client, justify="right")
    for name in ClientTally.__slots__:
        label = "  sent again under another key" if name == "rekeyed" else name.replace("_", " ")
        table.add_row(label, *(str(getattr(tally, name)) for tally in found.values()))
    return table


def stream_lines(found: dict[str, Counts]) -> list[str]:
    """Return a line of counts for each stream."""
    lines = []
    for stream, counts in found.items():
        late = counts.get("late_ms")
        texts = [
            f"{name.replace('_', ' ')} {value}"
            for name, value in counts.items()
            if name != "late_ms"
        ]
        if isinstance(late, dict):
            texts += [
                f"{name} {ms} ms after the due time" for name, ms in late.items() if ms is not None
            ]
        lines.append(f"{stream}: {', '.join(texts)}")
    return lines


def kept_lines(story: DemoFacts) -> list[str]:
    """Return the lines on consumer offsets and on the comparison of replicas."""
    offsets = [check for check in story.checks if check.name.rpartition("/")[2] == "offsets"]
    lines = []
    if offsets:
        back = sum(_count(story, check.name, "rewinds") for check in offsets)
        asked = sum(_count(story, check.name, "reads") for check in offsets)
        lines.append(f"offsets of consumer groups: asked {asked} times, back {back}")
    replicas = story.check("replicas")
    if replicas is not None and replicas.valid is not None:
        are = "equal" if replicas.valid else "not equal"
        counts = replicas.counts
        at = (
            f"index {counts['last_index']}"
            if counts.get("compared", 1) == 1
            else "the newest marks"
        )
        lines.append(f"replicas: {counts['replicas']} {are} at {at}")
    return lines


def gaps_line(gaps: Sequence[float | None]) -> str:
    """Return the summary of the unavailability of all kills."""
    known = [gap for gap in gaps if gap is not None]
    if not known:
        return "no kill was followed by an acknowledged send"
    return (
        f"{len(known)} of {len(gaps)} kills overcome; time to the next acknowledged send: "
        f"p50 {percentile(known, 50):.0f} ms, max {max(known):.0f} ms"
    )


def print_report(console: Console, story: DemoFacts, result: RunResult) -> None:
    """Print the whole report of a finished run."""
    found = tallies(story)
    if found:
        console.print(timeline(story.ops))
        console.print(messages_table(found))
    streams = stream_counts(story)
    groups = group_tallies(story.checks)
    if groups:
        console.print(groups_table(story.ops, groups))
    for line in [*stream_lines(streams), *kept_lines(story)]:
        console.print(line, highlight=False)
    for line in group_lines(story.ops) if groups else [gaps_line(gaps_ms(story.ops))]:
        console.print(line)
    console.print(work_of(story.checks), highlight=False)
    anomalies = [(check.name, one) for check in story.checks for one in check.anomalies]
    for name, anomaly in anomalies[:ANOMALIES_SHOWN]:
        line = f"[red]{escape(anomaly.kind)}[/red] ({name}): {escape(anomaly.text)}"
        console.print(line, highlight=False)
    if len(anomalies) > ANOMALIES_SHOWN:
        console.print(f"... and {len(anomalies) - ANOMALIES_SHOWN} more")
    console.print(_verdict(result, len(anomalies), has_streams=bool(streams)), highlight=False)


def _verdict(result: RunResult, broken: int, *, has_streams: bool) -> str:
    match VERDICTS[result.valid]:
        case "valid":
            text = "nothing acknowledged was lost, every queue was consumed in order"
            if has_streams:
                text += ", every transaction, due time and key kept its promise"
            return f"[bold green]VALID[/bold green]: {text}"
        case "invalid":
            return f"[bold red]INVALID[/bold red]: {broken} promises were broken"
        case _:
            why = escape(why_not_valid(result))
            return f"[bold yellow]UNKNOWN[/bold yellow]: the run proves nothing: {why}"
