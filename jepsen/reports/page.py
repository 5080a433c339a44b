"""The report for people: one page that needs nothing from elsewhere. Pure.

The verdict comes first, in words; then what happened over time; then the first broken promises with the operations
around them, and the tables. Everything that stands in a history is escaped: a queue's name may hold anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

import msgspec

from jepsen.checkers.availability import NAME as AVAILABILITY
from jepsen.checkers.results import Anomaly, CheckResult
from jepsen.history.ops import Op
from jepsen.history.phases import phase_spans, span_of
from jepsen.reports.style import STYLE
from jepsen.reports.summary import Summary
from jepsen.reports.svg import Axis, lanes_chart, latency_chart, rate_chart
from jepsen.reports.timeline import (
    ENDS,
    Span,
    end_of,
    fault_spans,
    gaps,
    leaderships,
    per_bucket,
    points,
)

ANOMALIES_SHOWN: Final = 12
AROUND: Final = 4
SPANS_SHOWN: Final = 60
GAPS_SHOWN: Final = 5
GAP_NS: Final = 250_000_000
VALUE_CHARS: Final = 160
CAUSES_SHOWN: Final = 8
BUCKETS: Final = 240
HEADLINES: Final = {
    "valid": "Valid: every promise was kept",
    "invalid": "Invalid: promises were broken",
    "unknown": "Unknown: the run proves nothing",
    "skipped": "Skipped: the run was not made",
}
MARKS: Final = {True: "kept", False: "broken", None: "unknown"}


def page(summary: Summary, ops: Sequence[Op]) -> str:
    """Build the HTML page of a run."""
    settings = summary.settings
    title = f"{settings.workload} under {settings.nemesis}: {summary.verdict}"
    spans = fault_spans(ops)
    parts = [
        _head(summary, ops, spans),
        _charts(ops, spans) if ops else "",
        _anomalies(summary.checks, ops),
        _checks(summary.checks),
        _operations(summary, ops),
        _faults(spans),
        _settings(summary),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _head(summary: Summary, ops: Sequence[Op], spans: Sequence[Span]) -> str:
    settings = summary.settings
    story = " ".join(_story(summary, ops, spans))
    why = f'<p class="why">{escape(summary.why)}</p>' if summary.why else ""
    return (
        f'<header class="{summary.verdict}"><p class="what">{escape(settings.workload)} workload, '
        f"{escape(settings.nemesis)} nemesis</p>"
        f"<h1>{HEADLINES[summary.verdict]}</h1><p>{escape(story)}</p>{why}</header>"
    )


def _story(summary: Summary, ops: Sequence[Op], spans: Sequence[Span]) -> Iterable[str]:
    """Yield the run in a few sentences."""
    settings = summary.settings
    yield (
        f"For {end_of(ops) / 1e9:.0f} s, {settings.workers} clients did {summary.operations} operations "
        f"on {settings.nodes} nodes."
    )
    if summary.work:
        yield f"While things were broken, {summary.work}."
    if spans:
        struck = ", ".join(
            f"{name} {_times(sum(span.name == name for span in spans))}"
            for name in dict.fromkeys(span.name for span in spans)
        )
        yield f"Faults: {struck}."
    elif settings.nemesis != "none":
        yield "No fault was injected."
    terms = {(lead.group, lead.term) for lead in leaderships(ops)}
    if terms:
        yield f"{len(terms)} leaders were seen, up to term {max(term for _, term in terms)}."
    longest = gaps(ops, GAP_NS)
    if longest:
        first = longest[0]
        yield (
            f"The longest time without a success was {first.ms / 1000:.2f} s, from {_s(first.start_ns)} on."
        )
    elif summary.operations:
        yield f"Nothing was unavailable for longer than {GAP_NS / 1e9:g} s."


def _charts(ops: Sequence[Op], spans: Sequence[Span]) -> str:
    """Draw all charts over one time axis, so that faults, latencies and rates can be compared by eye."""
    axis = Axis(max(end_of(ops), 1))
    bucket_ns = max(axis.end_ns // BUCKETS, 100_000_000)
    legend = "".join(
        f'<span class="key {ended}">{text}</span>'
        for ended, text in (
            ("ok", "ok: it happened"),
            ("fail", "fail: it surely did not"),
            ("info", "info: nobody knows"),
        )
    )
    rates = rate_chart(
        axis,
        per_bucket(ops, bucket_ns),
        bucket_ns=bucket_ns,
        spans=spans,
        until_ns=span_of(ops, "breaking")[1],
    )
    return (
        f'<section><h2>Over time</h2><div class="legend">{legend}'
        '<span class="key shade">a fault, until its cure</span></div>'
        f'<div class="charts">{lanes_chart(axis, spans, leaderships(ops), phase_spans(ops))}'
        f"<h3>Latency of each operation</h3>{latency_chart(axis, points(ops), spans)}"
        f"<h3>Operations ended per second</h3>"
        f"{rates}</div>"
        f"{_gaps(ops)}</section>"
    )


def _gaps(ops: Sequence[Op]) -> str:
    rows = [
        (f"{gap.ms} ms", _s(gap.start_ns), _s(gap.end_ns)) for gap in gaps(ops, GAP_NS)[:GAPS_SHOWN]
    ]
    if not rows:
        return ""
    return "<h3>Longest times without a success, while clients worked</h3>" + _table(
        ("for", "from", "to"), rows
    )


def _anomalies(checks: Sequence[CheckResult], ops: Sequence[Op]) -> str:
    found = [(check.name, anomaly) for check in checks for anomaly in check.anomalies]
    if not found:
        return ""
    shown = "".join(_anomaly(name, anomaly, ops) for name, anomaly in found[:ANOMALIES_SHOWN])
    more = len(found) - ANOMALIES_SHOWN
    rest = f"<p>… and {more} more in results.json.</p>" if more > 0 else ""
    return f"<section><h2>Broken promises ({len(found)})</h2>{shown}{rest}</section>"


def _anomaly(name: str, anomaly: Anomaly, ops: Sequence[Op]) -> str:
    """Show an anomaly with the operations around those that it names; its own are marked."""
    own = set(anomaly.ops)
    near = sorted(
        {
            index
            for at in anomaly.ops[:AROUND]
            for index in range(max(at - AROUND, 0), min(at + AROUND + 1, len(ops)))
        }
    )
    rows = [_op_row(ops[index], is_own=index in own) for index in near]
    table = f"<table class=ops>{''.join(rows)}</table>" if rows else ""
    return (
        f'<details open class="anomaly"><summary><b>{escape(anomaly.kind)}</b> '
        f"<small>{escape(name)}</small> {escape(anomaly.text)}</summary>{table}</details>"
    )


def _op_row(op: Op, *, is_own: bool) -> str:
    value = msgspec.json.encode(op.value).decode() if op.value is not None else ""
    if len(value) > VALUE_CHARS:
        value = value[:VALUE_CHARS] + " …"
    cells = (str(op.index), _s(op.t_ns), str(op.process), op.type, op.f, value, op.error, op.node)
    tds = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    return f'<tr class="{op.type}{" own" if is_own else ""}">{tds}</tr>'


def _checks(checks: Sequence[CheckResult]) -> str:
    """Build the table of checkers; counts that are lists or maps are left to results.json."""
    rows = []
    for check in checks:
        counts = ", ".join(
            f"{name.replace('_', ' ')} {value}"
            for name, value in check.counts.items()
            if not isinstance(value, dict | list)
        )
        kinds = {a.kind: sum(b.kind == a.kind for b in check.anomalies) for a in check.anomalies}
        what = ", ".join(f"{kind} x{count}" for kind, count in kinds.items()) or check.why_unknown
        mark = MARKS[check.valid]
        rows.append(
            f'<tr><td>{escape(check.name)}</td><td class="mark {mark}">{mark}</td>'
            f"<td>{escape(what)}</td><td>{escape(counts)}</td></tr>"
        )
    if not rows:
        return ""
    head = "<tr><th>checker</th><th>promise</th><th>what it found</th><th>what it counted</th></tr>"
    return f"<section><h2>Checkers</h2><table>{head}{''.join(rows)}</table></section>"


def _operations(summary: Summary, ops: Sequence[Op]) -> str:
    """Build the table of operations, with the most frequent errors of clients below it."""
    if not ops:
        return ""
    rows = [_operation_row(f, ops, summary.checks) for f in _kinds(ops)]
    causes: dict[str, int] = {}
    for op in ops:
        if op.error and op.is_client:
            text = op.error[:VALUE_CHARS]
            causes[text] = causes.get(text, 0) + 1
    often = sorted(causes.items(), key=lambda item: (-item[1], item[0]))[:CAUSES_SHOWN]
    errors = _table(("error", "times"), [(text, str(times)) for text, times in often])
    head = ("what", "begun", *ENDS, "ok per s", "p50 ms", "p99 ms", "longest ms")
    return (
        f"<section><h2>Operations</h2>{_table(head, rows)}"
        f"{'<h3>What clients were answered most often</h3>' + errors if often else ''}</section>"
    )


def _kinds(ops: Sequence[Op]) -> list[str]:
    return list(dict.fromkeys(op.f for op in ops if op.is_client and op.type == "invoke"))


def _operation_row(f: str, ops: Sequence[Op], checks: Sequence[CheckResult]) -> tuple[str, ...]:
    """Build the row of one operation: counts from the history, times from the checker of availability."""
    types: list[str] = [op.type for op in ops if op.f == f and op.is_client]
    counted = next((check.counts.get(f) for check in checks if check.name == AVAILABILITY), None)
    times: tuple[object, ...] = ("", "", "", "")
    if isinstance(counted, dict):
        latency = counted["latency_ms"]
        times = (counted["rate"], latency["p50"], latency["p99"], latency["p100"])
    texts = ("" if value is None else str(value) for value in times)
    return (f, *(str(types.count(each)) for each in ("invoke", *ENDS)), *texts)


def _faults(spans: Sequence[Span]) -> str:
    if not spans:
        return ""
    rows = [
        (span.name, _s(span.start_ns), span.done, _s(span.end_ns), span.cured or "never cured")
        for span in spans[:SPANS_SHOWN]
    ]
    more = len(spans) - SPANS_SHOWN
    rest = f"<p>… and {more} more in the history.</p>" if more > 0 else ""
    table = _table(("fault", "at", "what was done", "cured at", "cure"), rows)
    return f"<section><h2>Faults and their cures</h2>{table}{rest}</section>"


def _settings(summary: Summary) -> str:
    """Show the run's settings and the command that repeats it; what a seed does not fix is said there, too."""
    fields = msgspec.to_builtins(summary.settings)
    del fields["command"]  # stands below
    fields |= {
        name.replace("_s", ""): f"{a:g} to {b:g} s" for name, (a, b) in fields.pop("pace").items()
    }
    rows = [(name.replace("_", " "), str(value)) for name, value in fields.items()]
    return (
        f"<section><h2>The run</h2>{_table(('setting', 'value'), rows)}"
        f"<h3>To repeat it</h3><pre>{escape(summary.command)}</pre>"
        "<p>The seed fixes what clients do and when faults strike; processes and the machine still "
        "take turns as they like. Beside this page: results.json, history.jsonl, history.edn, and "
        "nodes/ with the log of each process.</p></section>"
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; columns of whole numbers are aligned as such."""
    body = list(rows)
    numbers = [
        all(_is_number(row[place]) for row in body) and bool(body) for place in range(len(head))
    ]

    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=number' if is_number else ''}>{escape(cell)}</{tag}>"
            for cell, is_number in zip(row, numbers, strict=True)
        )

    lines = "".join(f"<tr>{cells('td', row)}</tr>" for row in body)
    return f"<table><tr>{cells('th', head)}</tr>{lines}</table>"


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()


def _s(t_ns: int) -> str:
    return f"{t_ns / 1e9:.2f} s"


def _times(count: int) -> str:
    return "once" if count == 1 else "twice" if count == 2 else f"{count} times"
