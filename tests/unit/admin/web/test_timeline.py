"""The timeline of leaders: begun where a leader says, and a group without a leader is seen as such."""

from __future__ import annotations

from broker.admin.web import timeline
from broker.admin.web.timeline import Election, Timeline
from tests.unit.admin.runtime_tables import ADDRESSES, GROUP, answer_of
from tests.unit.admin.web.consoles import look_of, whole_look


def test_the_first_look_shows_since_when_somebody_leads() -> None:
    seen = Timeline()
    seen.note(100_000, whole_look(raftRoleMs="61000").health)
    (span,) = seen.spans(GROUP)
    assert (span.leader, span.term, span.begin_ms, span.seen_ms) == ("n0", 7, 39_000, 100_000)
    assert seen.elections(9) == []


def test_an_election_stands_where_the_new_leader_says() -> None:
    seen = Timeline()
    seen.note(100_000, whole_look().health)
    seen.note(104_000, whole_look(leader="n1", raftTerm="8", raftRoleMs="1500").health)
    assert seen.elections(9) == [Election(102_500, GROUP, "n1", 8, "n0", 0)]
    assert [span.seen_ms for span in seen.spans(GROUP)] == [102_500, 104_000]


def test_a_time_without_a_leader_is_counted() -> None:
    seen = Timeline()
    followers = look_of({ADDRESSES["n1"]: answer_of("n1", raftLeader="")})
    seen.note(100_000, whole_look().health)
    seen.note(102_000, followers.health)
    seen.note(104_000, followers.health)
    seen.note(106_000, whole_look(leader="n2", raftTerm="9", raftRoleMs="500").health)
    assert [span.leader for span in seen.spans(GROUP)] == ["n0", "", "n2"]
    assert seen.elections(9) == [Election(105_500, GROUP, "n2", 9, "n0", 3_500)]


def test_a_leader_that_is_elected_again_is_an_election() -> None:
    seen = Timeline()
    seen.note(100_000, whole_look().health)
    seen.note(102_000, whole_look(raftTerm="8", raftRoleMs="100").health)
    assert [each.term for each in seen.elections(9)] == [8]


def test_what_a_leader_says_is_held_between_the_looks() -> None:
    seen = Timeline()
    seen.note(100_000, whole_look().health)
    seen.note(102_000, whole_look(leader="n1", raftTerm="8", raftRoleMs="9000000").health)
    assert seen.spans(GROUP)[1].begin_ms == 100_000


def test_spans_and_groups_are_bounded() -> None:
    seen = Timeline()
    for number in range(timeline.SPANS_MAX + 50):
        seen.note(number, whole_look(raftTerm=str(number)).health)
    assert len(seen.spans(GROUP)) == timeline.SPANS_MAX
    for number in range(timeline.GROUPS_MAX + 5):
        name = f"g{number}"
        seen.note(1, look_of({"a:1": answer_of("n0", raftGroup=name)}).health)
    assert seen.spans("g0")
    assert not seen.spans(f"g{timeline.GROUPS_MAX + 4}")
