"""Members of a new version: they may vote when they have folded what the others have, to the same state."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from broker.admin.ask import NodeAnswer
from broker.admin.upgrade import judge
from broker.admin.upgrade_check import show_upgrade_check
from tests.unit.admin.runtime_tables import answer_of

COMMANDS = "commit_offsets,put_topic"
SAME = {9: {"queues": "aa", "topics": "bb"}, 5: {"queues": "cc", "topics": "dd"}}


def answer(
    name: str, marks: Mapping[int, Mapping[str, str]] = SAME, **more: str | None
) -> NodeAnswer:
    """What a member says; None: what it does not say."""
    told: dict[str, str | None] = {
        "digestMarks": json.dumps(marks),
        "raftWireVersion": "1",
        "raftFormats": '{"control": 1, "state": 3}',
        "raftControlCommands": COMMANDS,
        "digestBeganAt": "0",
        **more,
    }
    found = answer_of(name, **{key: text for key, text in told.items() if text is not None})
    return NodeAnswer(
        found.address,
        {key: text for key, text in found.table.items() if told.get(key, "") is not None},
    )


def older(name: str) -> NodeAnswer:
    """A member from before there was this check."""
    return answer(
        name, raftWireVersion=None, raftFormats=None, raftControlCommands=None, digestBeganAt=None
    )


def group(new: NodeAnswer) -> list[NodeAnswer]:
    return [answer("n0"), answer("n1"), new]


def test_who_has_folded_to_the_same_state_may_vote() -> None:
    verdict = judge(group(answer("n2", raftVersion="0.3.0")), (), 1)
    assert verdict.may_vote
    assert [member.name for member in verdict.members if member.is_judged] == ["n2"]
    assert (verdict.refusals, verdict.doubts, verdict.notes) == ((), (), ())


def test_who_is_named_is_judged_whatever_it_runs() -> None:
    verdict = judge(group(answer("n2")), ["n1"], 1)
    assert verdict.may_vote
    assert [member.name for member in verdict.members if member.is_judged] == ["n1"]


def test_with_nobody_to_judge_nothing_is_said() -> None:
    verdict = judge(group(answer("n2")), (), 1)
    assert not verdict.may_vote
    assert "all members that answered run the same program" in verdict.doubts[0]


def test_of_members_that_do_not_answer_nothing_is_said() -> None:
    verdict = judge([NodeAnswer("127.0.0.1:1", problem="refused")], (), 1)
    assert verdict.doubts == (
        "127.0.0.1:1: refused",
        "no node answered: nothing was compared",
    )


def test_a_state_that_was_taken_over_proves_nothing() -> None:
    verdict = judge(group(answer("n2", digestBeganAt="9")), ["n2"], 1)
    assert not verdict.may_vote
    assert verdict.refusals == ()
    assert "has folded 0 entries" in verdict.doubts[0]
    assert judge(group(answer("n2", digestBeganAt="8")), ["n2"], 1).may_vote


def test_how_much_is_to_be_folded_can_be_said() -> None:
    new = answer("n2", digestBeganAt="4")
    assert judge(group(new), ["n2"], 5).may_vote
    assert "6 are wanted" in judge(group(new), ["n2"], 6).doubts[0]


def test_where_the_others_began_does_not_matter() -> None:
    answers = [answer("n0", digestBeganAt="9"), answer("n1", digestBeganAt="9"), answer("n2")]
    assert judge(answers, ["n2"], 1).may_vote


def test_a_different_digest_is_a_refusal() -> None:
    new = answer("n2", {9: {"queues": "aa", "topics": "xx"}})
    verdict = judge(group(new), ["n2"], 1)
    assert "topics differs at entry 9: not like the majority: n2" in verdict.refusals[0]


def test_an_alarm_of_earlier_is_a_refusal() -> None:
    verdict = judge(group(answer("n2", digestAlarms="timers@5")), ["n2"], 1)
    assert verdict.refusals == ("n2 has found itself different at: timers@5",)


def test_without_a_common_mark_nothing_is_known() -> None:
    verdict = judge(group(answer("n2", {7: {"queues": "aa"}})), ["n2"], 1)
    assert verdict.refusals == ()
    assert "no mark that all nodes have" in verdict.doubts[0]


def test_a_member_that_does_not_answer_leaves_a_doubt() -> None:
    answers = [answer("n0"), NodeAnswer("127.0.0.2:1", problem="refused"), answer("n2")]
    verdict = judge(answers, ["n1"], 1)
    assert not verdict.may_vote
    assert verdict.refusals == ()
    assert any("n1 is not among the nodes that answered" in doubt for doubt in verdict.doubts)


def test_control_records_that_others_do_not_know_part_the_states() -> None:
    new = answer("n2", raftControlCommands=f"{COMMANDS},put_settings")
    verdict = judge(group(new), ["n2"], 1)
    assert verdict.refusals == (
        "n2 may write control records that n0 does not carry out: put_settings",
        "n2 may write control records that n1 does not carry out: put_settings",
    )


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"raftWireVersion": "2"}, "different versions with each other: 1, 2"),
        ({"raftFormats": '{"control": 2, "state": 3}'}, "versions 1, 2: a member that leads"),
    ],
)
def test_versions_that_do_not_go_together(more: dict[str, str], reason: str) -> None:
    verdict = judge(group(answer("n2", SAME, **more)), ["n2"], 1)
    assert len(verdict.refusals) == 1
    assert reason in verdict.refusals[0]


def test_other_states_and_components_are_notes() -> None:
    new = answer("n2", {9: SAME[9] | {"pop": "1"}}, raftFormats='{"control": 1, "state": 4}')
    verdict = judge(group(new), ["n2"], 1)
    assert verdict.may_vote
    assert "only some members have pop" in verdict.notes[0]
    assert "different versions" in verdict.notes[1]


def test_members_from_before_the_check_are_noted_and_cannot_be_judged() -> None:
    answers = [older("n0"), older("n1"), answer("n2")]
    verdict = judge(answers, ["n2"], 1)
    assert verdict.may_vote
    assert len(verdict.notes) == 2
    assert "cannot be judged" in judge(answers, ["n0"], 1).doubts[0]


def test_nonsense_of_a_node_is_nothing_known() -> None:
    new = answer("n2", raftFormats="[1]", digestBeganAt="x")
    verdict = judge(group(new), ["n2"], 1)
    assert not verdict.may_vote
    assert "cannot be judged" in verdict.doubts[0]


@pytest.mark.parametrize(
    ("new", "code", "said"),
    [
        (answer("n2"), 0, "n2 may vote"),
        (answer("n2", digestBeganAt="9"), 3, "has folded 0 entries"),
        (answer("n2", {9: {"queues": "zz"}}), 1, "must not vote"),
    ],
)
def test_what_is_printed_and_returned(
    new: NodeAnswer, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show_upgrade_check(group(new), ["n2"], 1, as_json=False) == code
    assert said in " ".join(capsys.readouterr().out.split())


def test_what_scripts_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert show_upgrade_check(group(answer("n2")), ["n2"], 1, as_json=True) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["mayVote"], report["index"]) == (True, 9)
    assert [member["is_judged"] for member in report["members"]] == [False, False, True]
    assert report["members"][0]["commands"] == COMMANDS.split(",")
