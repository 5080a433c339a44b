"""The judgement of groups: every state of a member, who is away and why, and answers that do not fit together."""

from __future__ import annotations

import json

import pytest

from broker.admin.ask import NodeAnswer
from broker.admin.facts import MEMBERS_MAX, read_facts
from broker.admin.health import (
    ClusterHealth,
    GroupHealth,
    MemberHealth,
    MemberState,
    Sight,
    judge,
)
from tests.unit.admin.runtime_tables import ADDRESSES, GROUP, answer_of, foreign_table, table_of

NAME_SERVER = {"127.0.0.1:9876": ""}


def sight_of(*answers: NodeAnswer, later: tuple[NodeAnswer, ...] = ()) -> Sight:
    """Return a look in which name servers know all addresses that were asked."""
    return Sight(
        NAME_SERVER,
        {GROUP: frozenset(one.address for one in answers)},
        {one.address: one for one in answers},
        {one.address: one for one in later},
    )


def group_of(sight: Sight) -> GroupHealth:
    (group,) = judge(sight, {}).groups
    return group


def member(group: GroupHealth, node_id: str) -> MemberHealth:
    (found,) = [one for one in group.members if one.node_id == node_id]
    return found


def states(group: GroupHealth) -> dict[str, str]:
    return {one.node_id or one.address: one.state.value for one in group.members}


def whole() -> list[NodeAnswer]:
    return [answer_of(node_id) for node_id in ADDRESSES]


def test_a_group_in_which_nothing_is_wrong() -> None:
    health = judge(sight_of(*whole()), {})
    (group,) = health.groups
    assert states(group) == {"n0": "leader", "n1": "follower", "n2": "follower"}
    assert (group.leader, health.is_led, health.is_whole) == (member(group, "n0"), True, True)
    assert {one.lag_entries for one in group.members if one.node_id != "n0"} == {0}
    facts = member(group, "n1").facts
    assert facts is not None
    # The connection of whoever asked is not a client's.
    assert (facts.log_bytes, facts.clients, facts.up_ms) == (4000, 2, 7_300_000)


def test_a_member_that_does_not_answer_is_away_with_the_reason() -> None:
    away = NodeAnswer(ADDRESSES["n2"], problem="Connection refused")
    group = group_of(sight_of(*whole()[:2], away))
    assert member(group, "n2").state is MemberState.AWAY
    assert member(group, "n2").reason.startswith("Connection refused")
    assert (group.is_led, group.is_whole) == (True, False)


def test_a_member_that_no_name_server_knows_is_shown_since_the_others_name_it() -> None:
    group = group_of(sight_of(*whole()[:2]))
    assert states(group)["n2"] == "away"
    assert member(group, "n2").address == ADDRESSES["n2"]


def test_a_member_whose_address_nobody_knows_is_shown() -> None:
    unknown = json.dumps({"n0": {"log": "h:1"}})
    answers = [
        answer_of(one, raftMemberAddresses=unknown, raftConnected="") for one in ("n0", "n1")
    ]
    group = group_of(sight_of(*answers))
    assert member(group, "n2").address == ""
    assert "nobody knows where its clients connect" in member(group, "n2").reason


def test_a_connection_with_a_member_that_does_not_answer_is_named() -> None:
    away = NodeAnswer(ADDRESSES["n2"], problem="no answer within 2 s")
    group = group_of(sight_of(answer_of("n0"), answer_of("n1", raftConnected="n0"), away))
    assert member(group, "n2").reason == "no answer within 2 s, but has a connection with n0"


def test_who_lacks_entries_is_catching_up_and_by_how_much() -> None:
    behind = answer_of("n2", raftAppliedIndex="10", commitLogMaxOffset="2000")
    group = group_of(sight_of(*whole()[:2], behind))
    found = member(group, "n2")
    assert (found.state, found.lag_entries, found.lag_bytes) == (MemberState.CATCHING_UP, 30, 3000)
    assert (group.is_led, group.is_whole) == (True, False)


def test_who_has_the_entries_at_the_second_look_is_not_behind_though_the_leader_went_on() -> None:
    behind = answer_of("n2", raftAppliedIndex="39")
    leader_later = answer_of("n0", raftCommitIndex="900", raftAppliedIndex="900")
    sight = sight_of(*whole()[:2], behind, later=(answer_of("n2"), leader_later))
    assert states(group_of(sight))["n2"] == "follower"
    still = sight_of(*whole()[:2], behind, later=(behind,))
    assert member(group_of(still), "n2").lag_entries == 1


def test_who_does_not_answer_the_second_time_is_away() -> None:
    gone = NodeAnswer(ADDRESSES["n2"], problem="no answer within 2 s")
    behind = answer_of("n2", raftAppliedIndex="1")
    assert states(group_of(sight_of(*whole()[:2], behind, later=(gone,))))["n2"] == "away"


@pytest.mark.parametrize(
    ("role", "serving", "state"),
    [
        ("leader", "false", "elected"),
        ("candidate", "false", "candidate"),
        ("pre-candidate", "false", "candidate"),
        ("learner", "false", "learner"),
        ("what it likes", "false", "candidate"),
    ],
)
def test_the_other_roles(role: str, serving: str, state: str) -> None:
    odd = answer_of("n1", raftRole=role, raftServing=serving)
    group = group_of(sight_of(answer_of("n0"), odd, answer_of("n2")))
    assert states(group)["n1"] == state
    assert not group.is_whole


def test_of_two_that_lead_the_one_of_the_older_term_is_an_old_leader() -> None:
    old = answer_of("n0", raftTerm="6")
    new = answer_of("n1", leader="n1", raftTerm="7")
    group = group_of(sight_of(old, new, answer_of("n2", leader="n1")))
    assert states(group) == {"n0": "old leader", "n1": "leader", "n2": "follower"}
    assert not group.is_whole


def test_without_a_leader_a_group_is_not_led() -> None:
    lost = [answer_of(one, leader="", raftRole="follower") for one in ("n1", "n2")]
    group = group_of(sight_of(*lost, NodeAnswer(ADDRESSES["n0"], problem="Connection refused")))
    assert (group.leader, group.is_led) == (None, False)
    assert member(group, "n1").reason == "knows no leader"
    stale = [answer_of(one, leader="n0") for one in ("n1", "n2")]
    assert member(group_of(sight_of(*stale)), "n1").reason == "knows n0 as leader"


def test_a_follower_of_somebody_else_is_remarked() -> None:
    group = group_of(sight_of(*whole()[:2], answer_of("n2", raftLeader="n1")))
    assert member(group, "n2").reason == "follows n1"
    assert not group.is_whole


@pytest.mark.parametrize(
    "wrong",
    [
        {"raftDisk": "slow: 979 ms"},
        {"raftTrouble": "3 damaged entries are asked for"},
        {"raftWentBack": "9 entries are lost"},
        {"digestAlarms": "queues@40"},
        {"raftStopping": "passes requests on to n1 for up to 30 s"},
    ],
)
def test_whoever_reports_something_wrong_is_not_well(wrong: dict[str, str]) -> None:
    group = group_of(sight_of(answer_of("n0"), answer_of("n1", **wrong), answer_of("n2")))
    assert (group.is_led, group.is_whole) == (True, False)


def test_a_broker_of_another_kind_is_shown_and_no_fault_is_found_in_its_group() -> None:
    foreign = NodeAnswer("127.0.0.1:30911", foreign_table())
    group = group_of(sight_of(foreign))
    (found,) = group.members
    assert (found.state, group.is_led, group.is_whole) == (MemberState.OTHER_KIND, True, True)
    assert found.facts is not None
    assert (found.facts.version, found.facts.log_bytes) == ("V4_9_8", 123_456)
    # Beside members of ours, under their name, it is one.
    assert states(group_of(sight_of(*whole(), foreign)))["127.0.0.1:30911"] == "other kind"


def test_a_group_of_which_nobody_answers_is_not_led() -> None:
    gone = [NodeAnswer(address, problem="Connection refused") for address in ADDRESSES.values()]
    group = group_of(sight_of(*gone))
    assert (len(group.members), group.is_led) == (3, False)


def test_an_address_at_which_another_group_answers() -> None:
    other = NodeAnswer("127.0.0.9:1", table_of("n0", group="broker-z"))
    health = judge(sight_of(*whole(), other), {})
    ours = next(group for group in health.groups if group.name == GROUP)
    (stranger,) = [one for one in ours.members if one.address == "127.0.0.9:1"]
    assert (stranger.state, stranger.reason) == (MemberState.OTHER_GROUP, "is n0 of broker-z")
    assert ours.leader is not None
    assert not ours.is_whole
    assert health.members[GROUP] == ADDRESSES, "it is no member that the next look asks for"


def test_who_answers_where_a_member_should_is_named() -> None:
    others = NodeAnswer(ADDRESSES["n2"], table_of("n7", group="broker-z"))
    group = judge(sight_of(*whole()[:2], others), {}).groups[0]
    assert member(group, "n2").reason.startswith("n7 of broker-z answers there")
    foreign = NodeAnswer(ADDRESSES["n2"], foreign_table())
    group = group_of(sight_of(*whole()[:2], foreign))
    assert member(group, "n2").reason.startswith("a broker of another kind answers there")


def test_one_process_at_two_addresses_is_one_member_and_two_processes_are_remarked() -> None:
    same = NodeAnswer("localhost:10911", table_of("n0"))
    group = group_of(sight_of(*whole(), same))
    assert member(group, "n0").address == ADDRESSES["n0"]
    assert group.is_whole
    copied = json.dumps({"n0": {"clients": "127.0.0.7:1"}})
    copy = NodeAnswer("127.0.0.7:1", table_of("n0", raftMemberAddresses=copied))
    group = group_of(sight_of(*whole(), copy))
    assert "says that it is n0, too" in member(group, "n0").reason


def test_an_older_version_that_names_no_group_belongs_where_it_is_registered() -> None:
    old = [
        NodeAnswer(
            one.address,
            {
                key: value
                for key, value in one.table.items()
                if key in ("raftNode", "raftRole", "raftTerm", "raftLeader", "raftMembers")
            },
        )
        for one in whole()
    ]
    group = group_of(sight_of(*old))
    assert states(group) == {"n0": "leader", "n1": "follower", "n2": "follower"}
    assert member(group, "n1").lag_entries is None


def test_members_that_were_seen_before_are_shown_when_all_of_them_are_gone() -> None:
    before = judge(sight_of(*whole()), {})
    refused = {
        address: NodeAnswer(address, problem="Connection refused") for address in ADDRESSES.values()
    }
    later = judge(Sight(NAME_SERVER, {}, refused), before.members)
    (group,) = later.groups
    assert set(states(group).values()) == {"away"}
    assert {one.reason for one in group.members} == {"Connection refused"}
    assert not later.is_led


def test_nodes_named_by_address_that_nobody_can_place_stand_apart() -> None:
    dead, known = "127.0.0.9:1", ADDRESSES["n2"]
    answers = [*whole()[:2], *(NodeAnswer(one, problem="refused") for one in (dead, known))]
    sight = Sight({}, {"": frozenset((dead, known))}, {one.address: one for one in answers})
    health = judge(sight, {})
    assert {group.name: len(group.members) for group in health.groups} == {"": 1, GROUP: 3}


def test_a_name_server_that_is_away_is_no_fault_but_for_the_strict() -> None:
    sight = sight_of(*whole())
    health = judge(Sight({"a:1": "", "b:1": "refused"}, sight.registered, sight.answers), {})
    assert (health.is_led, health.is_whole) == (True, False)


@pytest.mark.parametrize("text", ["", "-1", "1e9", "٣", "9" * 19, "nan", "0x10"])
def test_what_is_no_number_is_not_known(text: str) -> None:
    facts = read_facts(answer_of("n0", raftCommitIndex=text, commitLogMaxOffset=text))
    assert facts is not None
    assert (facts.commit_index, facts.log_bytes, facts.end_position) == (None, None, None)


@pytest.mark.parametrize(
    "text", ["[]", "{", "1", '{"n1": 5}', '{"n1": {"clients": ["x"]}}', "\ud800", "[" * 500]
)
def test_nonsense_about_members_leaves_their_ids(text: str) -> None:
    facts = read_facts(answer_of("n0", raftMemberAddresses=text))
    assert facts is not None
    assert facts.members == {"n0": "", "n1": "", "n2": ""}


def test_the_members_of_a_liar_are_bounded() -> None:
    facts = read_facts(answer_of("n0", raftMembers=",".join(f"n{one}" for one in range(10_000))))
    assert facts is not None
    assert len(facts.members) == MEMBERS_MAX


def test_without_anything_there_is_no_group() -> None:
    health = judge(Sight(NAME_SERVER, {}, {}), {})
    assert health == ClusterHealth(NAME_SERVER, ())
    assert (health.is_led, health.is_whole) == (False, False)


def test_an_expected_group_of_which_nothing_is_seen_is_missing() -> None:
    sight = sight_of(*whole())
    assert judge(sight, {}, [GROUP]).is_whole
    health = judge(sight, {}, [GROUP, "broker-z"])
    assert [(group.name, group.is_led) for group in health.groups] == [
        (GROUP, True),
        ("broker-z", False),
    ]
    assert (health.is_led, health.is_whole) == (False, False)


@pytest.mark.parametrize(
    ("n0", "n1", "reason"),
    [
        ("aa", "aa", ""),
        ("aa,bb", "bb,cc", ""),
        ("aa", "bb", "its access rules differ from those of n0"),
        ("aa", "", "lets everybody in, unlike n0: it has no access rules"),
        ("", "aa", "has access rules, unlike n0, which lets everybody in"),
        ("aa", None, ""),
        (None, "aa", ""),
    ],
)
def test_who_goes_by_other_access_rules_is_named(
    n0: str | None, n1: str | None, reason: str
) -> None:
    told = {"n0": n0, "n1": n1}
    answers = [
        answer_of(name, **({} if text is None else {"raftAccessRules": text}))
        for name, text in told.items()
    ]
    group = group_of(sight_of(*answers, answer_of("n2")))
    assert member(group, "n1").reason == reason
    assert (member(group, "n0").reason, member(group, "n2").reason) == ("", "")
    assert group.is_whole is not bool(reason)
