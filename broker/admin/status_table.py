"""The health of groups as a table for people.

Whatever a broker sends is shown as text: no markup, no control characters, and no more of it than fits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.filesize import decimal
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from broker.admin.health import (
    UNKNOWN_GROUP,
    ClusterHealth,
    GroupHealth,
    MemberHealth,
    MemberState,
)
from broker.admin.printing import shown

NAME_SHOWN_MAX: Final = 60
REASON_SHOWN_MAX: Final = 300
REMARK_SHOWN_MAX: Final = 1200
ADDRESS_WIDTH: Final = 21
"""Of an IPv4 address with its port; whatever is longer may be folded."""

WIDE: Final = 100
"""Columns of a terminal from which on there is room for version and the time since the start."""

_STYLES: Final = {
    MemberState.LEADER: "bold green",
    MemberState.FOLLOWER: "green",
    MemberState.CATCHING_UP: "yellow",
    MemberState.LEARNER: "yellow",
    MemberState.CANDIDATE: "yellow",
    MemberState.ELECTED: "yellow",
    MemberState.OLD_LEADER: "yellow",
    MemberState.AWAY: "bold red",
    MemberState.OTHER_KIND: "cyan",
    MemberState.OTHER_GROUP: "bold red",
}
_HEADINGS: Final = ("member", "state", "address", "lag", "log", "free", "clients", "up", "version")
_RIGHT: Final = frozenset({"lag", "log", "free", "clients", "up"})
_WIDE_ONLY: Final = frozenset({"up", "version"})


@dataclass(frozen=True, slots=True)
class StatusTable:
    """The table of one look.

    Attributes:
        health: what it shows.
        at_s: when that was, in seconds since 1970.
        remark: a line about the look itself; empty: none.
    """

    health: ClusterHealth
    at_s: float
    remark: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Lay it out for the width that there is at this moment."""
        yield self._first_line()
        if self.remark:
            yield Text(_shown(self.remark, REMARK_SHOWN_MAX), style="bold red")
        is_wide = options.max_width >= WIDE
        rows = {group.name: list(map(_cells, group.members)) for group in self.health.groups}
        widths = _widths([row for group in rows.values() for row in group])
        for place, group in enumerate(self.health.groups):
            yield Text()
            yield _group_line(group)
            table = _table(widths, is_wide=is_wide, show_header=place == 0)
            for row in rows[group.name]:
                table.add_row(*_chosen(row, is_wide=is_wide))
            yield table
            for line in _remarks(group):
                yield Padding(Text(line, style="yellow"), (0, 0, 0, 1))

    def _first_line(self) -> Text:
        """Return the time, how many groups are led, and the name servers."""
        groups = self.health.groups
        led = sum(group.is_led for group in groups)
        line = Text(time.strftime("%H:%M:%S", time.localtime(self.at_s)))
        style = "" if led == len(groups) else "bold red"
        line.append(f"  {led} of {len(groups)} groups have a leader", style=style)
        for place, (address, problem) in enumerate(self.health.name_servers.items()):
            line.append(", " if place else "; name servers: ")
            line.append(_shown(address), style="bold red" if problem else "")
            if problem:
                line.append(f" ({_shown(problem, REASON_SHOWN_MAX)})", style="bold red")
        return line


def _shown(text: str, length_max: int = NAME_SHOWN_MAX) -> str:
    return shown(text, length_max)


def _group_line(group: GroupHealth) -> Text:
    """Return the group's name, and who leads it since when."""
    name = "group not known" if group.name == UNKNOWN_GROUP else _shown(group.name)
    line = Text(name, style="bold")
    facts = group.leader.facts if group.leader is not None else None
    if not group.members:
        return line.append("  missing: no name server and no broker knows it", style="bold red")
    if facts is None:
        text = "  another kind of broker" if group.is_led else "  no leader"
        return line.append(text, style="cyan" if group.is_led else "bold red")
    line.append(f"  {_shown(facts.node_id)} leads", style="not bold")
    if facts.role_ms is not None:
        line.append(f" for {duration(facts.role_ms)}", style="not bold")
    line.append(f", term {_number(facts.term)}, ", style="not bold")
    return line.append(f"{_number(facts.commit_index)} entries committed", style="not bold")


def _cells(member: MemberHealth) -> tuple[Text, ...]:
    """Return one row, a cell for each of _HEADINGS; `-`: not known."""
    facts = member.facts
    state = Text(member.state.value, style=_STYLES[member.state])
    cells = [
        Text(_shown(member.node_id) or "-"),
        state,
        Text(_shown(member.address) or "-"),
    ]
    if facts is None:
        return (*cells, *(Text() for _ in _HEADINGS[len(cells) :]))
    lag = "" if member.state is MemberState.LEADER else _lag(member)
    texts = (
        lag,
        _size(facts.log_bytes),
        _size(facts.free_bytes),
        _number(facts.clients),
        duration(facts.up_ms) if facts.up_ms is not None else "-",
        _shown(facts.version, 20) or "-",
    )
    return (*cells, *map(Text, texts))


def _lag(member: MemberHealth) -> str:
    if not member.lag_entries:
        return _number(member.lag_entries)
    size = f" ({_size(member.lag_bytes)})" if member.lag_bytes else ""
    return f"{member.lag_entries}{size}"


def _remarks(group: GroupHealth) -> Iterator[str]:
    """Yield a line for everything that an operator should look into, and for stops."""
    for member in group.members:
        name = _shown(member.node_id or member.address)
        facts = member.facts
        if member.reason:
            yield f"{name} ({member.state.value}): {_shown(member.reason, REASON_SHOWN_MAX)}"
        if facts is not None and facts.stopping:
            yield f"{name} is stopping: {_shown(facts.stopping, REASON_SHOWN_MAX)}"
        if facts is not None:
            for trouble in facts.troubles:
                yield f"{name}, {_shown(trouble, REASON_SHOWN_MAX)}"


def _widths(rows: Sequence[Sequence[Text]]) -> list[int]:
    """Return the width of each column, the same for all groups."""
    return [
        max([len(heading), *(row[place].cell_len for row in rows)])
        for place, heading in enumerate(_HEADINGS)
    ]


def _table(widths: Sequence[int], *, is_wide: bool, show_header: bool) -> Table:
    """Return the table of one group without its rows; an address may be folded, nothing is cut off."""
    table = Table(box=None, show_header=show_header, padding=(0, 1), header_style="dim")
    for heading, width in zip(_HEADINGS, widths, strict=True):
        if is_wide or heading not in _WIDE_ONLY:
            table.add_column(
                heading,
                justify="right" if heading in _RIGHT else "left",
                min_width=min(width, ADDRESS_WIDTH),
                overflow="fold",
            )
    return table


def _chosen(row: Sequence[Text], *, is_wide: bool) -> list[Text]:
    return [
        cell
        for heading, cell in zip(_HEADINGS, row, strict=True)
        if is_wide or heading not in _WIDE_ONLY
    ]


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _size(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else decimal(size_bytes)


def duration(milliseconds: int) -> str:
    """Write a duration in its largest unit: 45 s, 12 min, 3 h, 5 d."""
    seconds = milliseconds // 1000
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"
