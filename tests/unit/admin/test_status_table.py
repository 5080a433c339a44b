"""The table of groups: what stands in it, at which width, and that nobody's text gets out of its place."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console

from broker.admin.ask import NodeAnswer
from broker.admin.health import ClusterHealth, MemberState, Sight, judge
from broker.admin.status_json import health_json
from broker.admin.status_table import _STYLES, StatusTable, duration
from tests.unit.admin.runtime_tables import ADDRESSES, GROUP, answer_of, foreign_table


def health_of(
    *answers: NodeAnswer, name: str = GROUP, name_servers: dict[str, str] | None = None
) -> ClusterHealth:
    sight = Sight(
        name_servers or {"127.0.0.1:9876": ""},
        {name: frozenset(one.address for one in answers)},
        {one.address: one for one in answers},
    )
    return judge(sight, {})


def shown(health: ClusterHealth, *, width: int = 120, is_terminal: bool = False) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=is_terminal, highlight=False)
    console.print(StatusTable(health, 0.0))
    return out.getvalue()


def rows(text: str, start: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip().startswith(start)]


def test_a_group_has_a_line_and_each_member_a_row() -> None:
    behind = answer_of("n2", raftAppliedIndex="10", commitLogMaxOffset="2000")
    text = shown(health_of(answer_of("n0"), answer_of("n1"), behind))
    assert "1 of 1 groups have a leader; name servers: 127.0.0.1:9876" in text
    assert rows(text, GROUP) == ["broker-a  n0 leads for 61 s, term 7, 40 entries committed"]
    assert [row.split() for row in rows(text, "n")][:1] == [
        ["n0", "leader", ADDRESSES["n0"], "4.0", "kB", "20.0", "GB", "2", "2", "h", "0.2.0"]
    ]
    assert "catching up  127.0.0.3:10911  30 (3.0 kB)" in text


def test_reasons_stops_and_troubles_stand_below() -> None:
    text = shown(
        health_of(
            answer_of("n0", raftStopping="passes requests on for up to 30 s"),
            answer_of("n1", raftDisk="slow: 979 ms"),
            NodeAnswer(ADDRESSES["n2"], problem="Connection refused"),
        )
    )
    assert rows(text, "n0 is") == ["n0 is stopping: passes requests on for up to 30 s"]
    assert rows(text, "n1, ") == ["n1, disk: slow: 979 ms"]
    assert "n2 (away): Connection refused" in text


def test_without_a_leader_that_is_said_first() -> None:
    gone = [NodeAnswer(address, problem="Connection refused") for address in ADDRESSES.values()]
    text = shown(health_of(*gone, name_servers={"a:1": "", "b:1": "no answer within 2 s"}))
    assert text.splitlines()[0].endswith(
        "0 of 1 groups have a leader; name servers: a:1, b:1 (no answer within 2 s)"
    )
    assert rows(text, GROUP) == ["broker-a  no leader"]


def test_a_group_that_is_missing_says_so() -> None:
    text = shown(judge(Sight({"127.0.0.1:9876": ""}, {}, {}), {}, ["broker-z"]))
    assert "0 of 1 groups have a leader" in text
    assert "broker-z  missing" in text


def test_a_broker_of_another_kind_shows_what_it_sends() -> None:
    text = shown(health_of(NodeAnswer("127.0.0.1:30911", foreign_table())))
    assert rows(text, GROUP) == ["broker-a  another kind of broker"]
    (row,) = rows(text, "-")
    assert row == "-       other kind  127.0.0.1:30911    -  123.5 kB     -        -   -  V4_9_8"


@pytest.mark.parametrize("width", [80, 60, 40])
def test_a_narrow_terminal_leaves_columns_out_and_breaks_no_row(width: int) -> None:
    answers = [answer_of("n0"), answer_of("n1"), answer_of("n2", raftAppliedIndex="1")]
    text = shown(health_of(*answers), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert "version" not in text
    if width == 80:
        assert len(rows(text, "n")) == 3
        assert ADDRESSES["n2"] in text


def test_colours_are_for_terminals() -> None:
    health = health_of(answer_of("n0"), answer_of("n1"))
    assert "\x1b" not in shown(health)
    assert "\x1b[1;31maway" in shown(health, is_terminal=True)
    assert set(_STYLES) == set(MemberState)


def test_text_of_others_is_neither_markup_nor_control_nor_endless() -> None:
    name = "g[bold]\x1b]0;title\x07" + "y" * 200
    hostile = answer_of(
        "n1",
        group=name,
        raftVersion="\x1b[2J[red]v[/red]",
        raftTrouble="a\nb" + "x" * 5000,
        raftStopping="[/bold]\x07",
    )
    text = shown(health_of(answer_of("n0", group=name), hostile, name=name))
    assert not {"\x1b", "\x07"} & set(text)
    assert "[/bold]\\x07" in text
    assert len(text) < 3000
    assert max(map(len, text.splitlines())) <= 120


def test_json_has_numbers_or_null() -> None:
    away = NodeAnswer(ADDRESSES["n2"], problem="Connection refused")
    odd = answer_of("n1", raftFreeBytes="lots")
    found: dict[str, Any] = json.loads(
        json.dumps(health_json(health_of(answer_of("n0"), odd, away)))
    )
    (group,) = found["groups"]
    assert (found["led"], found["whole"]) == (True, False)
    assert (group["leader"], group["term"], group["leads_ms"]) == ("n0", 7, 61_000)
    n0, n1, n2 = group["members"]
    assert (n0["state"], n0["lag_entries"], n0["free_bytes"]) == ("leader", None, 20_000_000_000)
    assert (n1["lag_entries"], n1["lag_bytes"], n1["free_bytes"]) == (0, 0, None)
    assert (n2["id"], n2["state"], "log_bytes" in n2) == ("n2", "away", False)


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0, "0 s"), (119_999, "119 s"), (120_000, "2 min"), (7_200_000, "2 h"), (172_800_000, "2 d")],
)
def test_durations_are_in_their_largest_unit(milliseconds: int, text: str) -> None:
    assert duration(milliseconds) == text
