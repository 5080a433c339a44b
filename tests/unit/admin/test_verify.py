"""The comparison of digests: at one applied index, with the odd one named."""

from __future__ import annotations

import json
from collections.abc import Mapping

from broker.admin.ask import NodeAnswer
from broker.admin.verify import compare

MEMBERS = "n0,n1,n2"


def answer(
    name: str, marks: Mapping[int, Mapping[str, str]], *, alarms: str = "", members: str = MEMBERS
) -> NodeAnswer:
    table = {
        "raftNode": name,
        "raftMembers": members,
        "digestMarks": json.dumps(marks),
        "digestAlarms": alarms,
    }
    return NodeAnswer(f"{name}:1", table)


def same(*names: str) -> list[NodeAnswer]:
    return [answer(name, {5: {"queues": "aa", "topics": "bb"}}) for name in names]


def test_equal_digests_of_the_whole_group_are_well() -> None:
    verdict = compare(same("n0", "n1", "n2"))
    assert verdict.is_equal
    assert verdict.is_whole
    assert verdict.index == 5
    assert verdict.digests == {"queues": ("aa",) * 3, "topics": ("bb",) * 3}


def test_compared_is_at_the_newest_index_that_all_have() -> None:
    ahead = answer("n2", {5: {"queues": "aa", "topics": "bb"}, 9: {"queues": "cc"}})
    behind = answer("n0", {3: {"queues": "xx"}, 5: {"queues": "aa", "topics": "bb"}})
    verdict = compare([behind, *same("n1"), ahead])
    assert verdict.index == 5
    assert verdict.is_equal


def test_the_odd_one_is_named_with_its_component() -> None:
    odd = answer("n2", {5: {"queues": "aa", "topics": "cc"}})
    verdict = compare([*same("n0", "n1"), odd])
    assert not verdict.is_equal
    assert verdict.differing == ("topics",)
    assert verdict.odd == ("n2",)


def test_without_a_majority_nobody_is_right() -> None:
    verdict = compare([*same("n0"), answer("n1", {5: {"queues": "zz"}})])
    assert verdict.odd == ("n0", "n1")


def test_a_component_that_an_older_version_lacks_is_no_difference() -> None:
    verdict = compare([*same("n0", "n1"), answer("n2", {5: {"queues": "aa"}})])
    assert verdict.is_equal


def test_what_a_node_found_itself_counts() -> None:
    alarmed = answer("n2", {5: {"queues": "aa", "topics": "bb"}}, alarms="topics@3")
    verdict = compare([*same("n0", "n1"), alarmed])
    assert not verdict.is_equal
    assert verdict.alarms == {"n2": "topics@3"}


def test_members_that_do_not_answer_leave_it_open() -> None:
    verdict = compare([*same("n0", "n1"), NodeAnswer("n2:1", problem="nobody listens")])
    assert verdict.is_equal
    assert not verdict.is_whole
    assert verdict.problems == ("n2:1: nobody listens", "n2 is not known to the name server")


def test_without_a_common_mark_nothing_is_compared() -> None:
    verdict = compare([answer("n0", {}, members="n0")])
    assert not verdict.is_whole
    assert "no mark" in verdict.problems[0]


def test_nonsense_is_no_mark() -> None:
    odd = NodeAnswer("n0:1", {"raftNode": "n0", "digestMarks": "[1]"})
    assert not compare([odd]).is_whole
    assert not compare([NodeAnswer("n0:1", {"raftNode": "n0", "digestMarks": "{"})]).is_whole
