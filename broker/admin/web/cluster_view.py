"""The page of the cluster: its groups, who leads and led them, who is away or behind. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from broker.admin.health import UNKNOWN_GROUP, GroupHealth, MemberHealth, MemberState
from broker.admin.web import grid, words
from broker.admin.web.charts import Bar, strip
from broker.admin.web.grid import Cell, Column, Grid
from broker.admin.web.sampler import Sampler
from broker.admin.web.timeline import Timeline

WINDOW_MS: Final = 30 * 60_000
WINDOW_MIN_MS: Final = 60_000
ELECTIONS_MAX: Final = 50
STALE_MS: Final = 15_000
"""A look takes up to five seconds where machines are dead."""

_MARKS: Final = {
    MemberState.LEADER: "good",
    MemberState.FOLLOWER: "good",
    MemberState.AWAY: "bad",
    MemberState.OTHER_GROUP: "bad",
    MemberState.OTHER_KIND: "",
}
_MEMBER_COLUMNS: Final = (
    Column("member", "Member"),
    Column("state", "State"),
    Column("address", "Address"),
    Column("term", "Term", is_number=True),
    Column("committed", "Committed", is_number=True),
    Column("lag", "Lag, entries", is_number=True),
    Column("lag-bytes", "Lag, bytes", is_number=True),
    Column("log", "Log", is_number=True),
    Column("free", "Disk free", is_number=True),
    Column("sync", "Sync, ms", is_number=True),
    Column("clients", "Clients", is_number=True),
    Column("up", "Up", is_number=True),
    Column("version", "Version"),
)
_ELECTION_COLUMNS: Final = (
    Column("time", "Time (UTC)"),
    Column("group", "Group"),
    Column("leader", "Leader"),
    Column("term", "Term", is_number=True),
    Column("before", "Before"),
    Column("without", "Nobody seen to lead for", is_number=True),
)


@dataclass(frozen=True, slots=True)
class Banner:
    """A line above a page: what is known about all of it, and how bad that is (`good`, `warn`, `bad`)."""

    text: str
    mark: str


@dataclass(frozen=True, slots=True)
class GroupPart:
    """One group of the page.

    Attributes:
        headline: who leads it.
        mark: as in `Banner`.
        remarks: what is to be looked into.
        bars: who led it in the time that the page shows.
        colours: the class of the colour of each who did.
        stored, given: messages a second.
    """

    name: str
    headline: str
    mark: str
    members: Grid
    remarks: Sequence[str]
    bars: Sequence[Bar]
    colours: Mapping[str, str]
    stored: str
    given: str


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The page."""

    name_servers: Mapping[str, str]
    groups: Sequence[GroupPart]
    elections: Grid
    begin: str
    end: str


def banner(sampler: Sampler, now_ms: int) -> Banner:
    """Return the line above every page."""
    look = sampler.look
    if look is None:
        return Banner("The cluster is being looked at for the first time.", "warn")
    age_ms = now_ms - round(look.at_s * 1000)
    if age_ms > STALE_MS:
        return Banner(f"The last look at the cluster was {words.duration(age_ms)} ago.", "bad")
    if look.remark:
        return Banner(f"{look.remark[:1].upper()}{look.remark[1:]}.", "bad")
    groups = look.health.groups
    led = sum(group.is_led for group in groups)
    text = f"{led} of {len(groups)} groups have a leader"
    if led < len(groups):
        return Banner(f"{text}.", "bad")
    if not look.health.is_whole:
        return Banner(f"{text}, and something is to be looked into.", "warn")
    return Banner(f"{text}, and nothing is to be looked into.", "good")


def cluster_view(sampler: Sampler, query: Mapping[str, str], now_ms: int) -> ClusterView:
    """Return the page of the cluster by the last look."""
    groups = sampler.health.groups
    begin_ms = _begin_ms(sampler.timeline, [group.name for group in groups], now_ms)
    return ClusterView(
        sampler.health.name_servers,
        [_group_part(sampler, group, begin_ms, now_ms, query=query) for group in groups],
        _elections(sampler.timeline, query),
        words.clock_of(begin_ms),
        words.clock_of(now_ms),
    )


def _begin_ms(timeline: Timeline, names: Sequence[str], now_ms: int) -> int:
    """Return where the strips begin: with what is known, but neither too short nor longer than the window."""
    known = [spans[0].begin_ms for name in names if (spans := timeline.spans(name))]
    return max(now_ms - WINDOW_MS, min([*known, now_ms - WINDOW_MIN_MS]))


def _group_part(
    sampler: Sampler, group: GroupHealth, begin_ms: int, now_ms: int, *, query: Mapping[str, str]
) -> GroupPart:
    """Return what is shown of one group."""
    members = [one.node_id for one in group.members if one.node_id]
    bars = strip(sampler.timeline.spans(group.name), begin_ms, now_ms, members)
    mark = "good" if group.is_whole else "warn" if group.is_led else "bad"
    given = [
        rate
        for one in group.members
        if (rate := sampler.rates.rate(("given", group.name, one.node_id))) is not None
    ]
    return GroupPart(
        "Group not known" if group.name == UNKNOWN_GROUP else group.name,
        _headline(group),
        mark,
        Grid(
            "members",
            f"Members of {group.name}" if group.name else "Members",
            _MEMBER_COLUMNS,
            [*map(_row, group.members)],
            grid.sorting_of(query, "members"),
        ),
        _remarks(group),
        bars,
        {bar.name: bar.colour for bar in bars},
        words.rate(sampler.rates.rate(("stored", group.name))),
        words.rate(sum(given) if given else None),
    )


def _headline(group: GroupHealth) -> str:
    """Return who leads a group, and since when."""
    if not group.members:
        return "missing: no name server and no broker knows it"
    facts = group.leader.facts if group.leader is not None else None
    if facts is None:
        return "another kind of broker" if group.is_led else "no leader"
    text = f"{facts.node_id} leads in term {words.number(facts.term)}"
    if facts.role_ms is not None:
        text += f" for {words.duration(facts.role_ms)}"
    return f"{text}, {words.number(facts.commit_index)} entries committed"


def _row(member: MemberHealth) -> list[Cell]:
    """Return the row of a member; of one that is away, only what others know."""
    facts = member.facts
    mark = _MARKS.get(member.state, "warn")
    if mark == "good" and not member.is_well:
        mark = "warn"
    cells = [
        grid.text_cell(member.node_id),
        grid.text_cell(member.state.value, mark=mark),
        grid.text_cell(member.address),
    ]
    if facts is None:
        return cells + [Cell(words.NOT_KNOWN, -1.0)] * (len(_MEMBER_COLUMNS) - len(cells))
    sync = words.NOT_KNOWN if facts.sync_ms is None else f"{facts.sync_ms:.2f}"
    return [
        *cells,
        grid.number_cell(facts.term),
        grid.number_cell(facts.commit_index),
        grid.number_cell(member.lag_entries, mark="warn" if member.lag_entries else ""),
        grid.size_cell(member.lag_bytes),
        grid.size_cell(facts.log_bytes),
        grid.size_cell(facts.free_bytes),
        Cell(sync, facts.sync_ms),
        grid.number_cell(facts.clients),
        grid.duration_cell(facts.up_ms),
        grid.text_cell(facts.version),
    ]


def _remarks(group: GroupHealth) -> list[str]:
    """Return what is to be said about members, a line for each."""
    lines = []
    for member in group.members:
        who = member.node_id or member.address
        if member.reason:
            lines.append(f"{who} ({member.state.value}): {member.reason}")
        facts = member.facts
        if facts is not None:
            lines += [f"{who}: {trouble}" for trouble in facts.troubles]
            lines += [f"{who}: {facts.stopping}"] if facts.stopping else []
    return lines


def _elections(timeline: Timeline, query: Mapping[str, str]) -> Grid:
    """Return the last elections as a table."""
    rows = [
        [
            grid.time_cell(one.at_ms),
            grid.text_cell(one.group),
            grid.text_cell(one.leader),
            grid.number_cell(one.term),
            grid.text_cell(one.before),
            grid.duration_cell(one.without_ms or None, mark="warn" if one.without_ms else ""),
        ]
        for one in timeline.elections(ELECTIONS_MAX)
    ]
    return Grid(
        "elections",
        "Elections since this console was started",
        _ELECTION_COLUMNS,
        rows,
        grid.sorting_of(query, "elections", "-time"),
        nothing="No election was seen.",
    )
