"""A node that waits to be added: what is wrong is said soon, loudly and not too often, and may be corrected."""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random

import pytest

from dledger import ConfigError, NodeId, Peer
from dledger.raft.configuration import Configuration
from dledger.raft.ids import Index
from dledger.raft.member_record import MemberRecord, Start
from dledger.runtime import joining
from dledger.runtime.events_log import LimitedLog
from dledger.runtime.joining import PATIENCE_S, REPEAT_S, JoinWatch
from dledger.runtime.peer_links import PeerLinks
from dledger.runtime.roster import Roster
from dledger.runtime.store_identity import StoreIdentity
from dledger.storage.member_file import MemberFile
from dledger.testing.sim_disk import SimDisk

N0, N1, N3, N9 = (NodeId(f"n{number}") for number in (0, 1, 3, 9))
P0, P1, P3, P9 = (Peer(name, "127.0.0.1", 1 + place) for place, name in enumerate((N0, N1, N3, N9)))


class Bench:
    """A node n3 that looks for its group at n0 and n1, in a time that the test makes."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.roster = Roster(N3, (P0, P1, P3), joins=True)
        self.links = PeerLinks(N3, group_check=None, outsiders=LimitedLog())

    def later(self, seconds: float, watch: JoinWatch) -> None:
        self.now_s += seconds
        watch.look()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Bench:
    caplog.set_level(logging.ERROR, "dledger")
    made = Bench()
    monkeypatch.setattr(joining, "now_s", lambda: made.now_s)
    return made


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_a_group_that_is_not_found_is_an_error_with_all_reasons_now_and_then(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    watch = JoinWatch(bench.roster, bench.links)
    watch.not_reached(P0, f"{P0}: Connection refused")
    bench.later(PATIENCE_S / 2, watch)
    assert (lines(caplog), watch.trouble) == ([], "")
    bench.later(PATIENCE_S, watch)
    bench.later(REPEAT_S / 2, watch)
    (line,) = lines(caplog)
    assert line.startswith("group-not-found node=n3 ")
    assert f"{P0} (Connection refused); {P1} (no answer yet)" in line
    assert "the store may stay as it is" in watch.trouble
    bench.later(REPEAT_S, watch)
    assert len(lines(caplog)) == 2


def test_one_member_that_answers_is_enough_though_it_turns_the_node_away(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    watch = JoinWatch(bench.roster, bench.links)
    watch.not_reached(P0, "Connection refused")
    bench.later(2 * PATIENCE_S, watch)
    watch.reached(N1)
    bench.later(1, watch)
    assert (len(lines(caplog)), watch.trouble) == (1, "")
    # It is gone again: that is news.
    watch.not_reached(P1, "Connection refused")
    bench.later(1, watch)
    assert len(lines(caplog)) == 2


def test_a_node_that_is_taken_in_and_not_called_listens_elsewhere_than_the_group_believes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watch = JoinWatch(bench.roster, bench.links)
    watch.reached(N0)
    monkeypatch.setattr(bench.links, "connected", lambda: [N0])
    bench.later(2 * PATIENCE_S, watch)
    (line,) = lines(caplog)
    assert line.startswith("not-reached-by-members node=n3 ")
    assert f"connects to it at {P3.address}" in line
    assert f"add it as {P3}" in line
    monkeypatch.setattr(PeerLinks, "incoming_count", 1)
    bench.later(1, watch)
    assert (len(lines(caplog)), watch.trouble) == (1, "")


def test_who_is_added_waits_no_longer(bench: Bench) -> None:
    watch = JoinWatch(bench.roster, bench.links)
    assert watch.is_waiting
    bench.roster.change(Configuration((N0, N1), (N3,)), Index(7), is_committed=False)
    assert not watch.is_waiting


# The store of such a node, started again with other settings.

Open = Callable[..., MemberRecord]


@pytest.fixture
def open_store() -> Open:
    disk = SimDisk(Random(0))

    def open_once(
        *peers: Peer, joins: bool = True, group: str = "g", kept: MemberRecord | None = None
    ) -> MemberRecord:
        if kept is not None:
            MemberFile.open(disk).save(kept)
        StoreIdentity(group, 1, Roster(N3, peers, joins=joins)).open(disk, "data/n3")
        return MemberFile.open(disk).record

    return open_once


def test_a_store_that_has_met_nobody_goes_on_with_other_members_and_in_another_group(
    open_store: Open,
) -> None:
    open_store(P9, P3, group="typo")
    record = open_store(P0, P1, P3)
    assert (record.group, record.members, record.start.count) == ("g", {N0, N1, N3}, 2)
    assert record.has_joined


def test_a_store_that_was_begun_without_saying_that_it_joins_may_join(open_store: Open) -> None:
    open_store(P9, P3, joins=False)
    assert open_store(P0, P3).has_joined
    # And not back: what joins a group founds none with whatever it is given.
    with pytest.raises(ConfigError, match="belongs to a group of n0, n3; --peers"):
        open_store(P3, joins=False)


def test_a_store_that_joins_may_name_others_until_it_knows_the_members_by_the_log(
    open_store: Open,
) -> None:
    met = MemberRecord("g", N3, "", Start(1, 7), {}, frozenset({N9, N3}), has_joined=True)
    assert open_store(P0, P3, kept=met).members == {N0, N3}
    with pytest.raises(ConfigError, match="belongs to member n3 of group g, this is n3 of other"):
        open_store(P0, P3, group="other")
    known = MemberRecord(
        *("g", N3, "", Start(9, 7), {}, frozenset({N0, N3})),
        has_joined=True,
        configuration=Configuration((N0, N3), ()),
        configuration_index=Index(4),
    )
    with pytest.raises(ConfigError, match=r"by entry 4.*neither of them"):
        open_store(P9, P3, kept=known)


def test_a_store_of_a_group_that_it_founded_does_not_become_another_ones(open_store: Open) -> None:
    founded = MemberRecord("g", N3, "", Start(1, 7), {}, frozenset({N0, N1, N3}))
    with pytest.raises(ConfigError, match="belongs to a group of n0, n1, n3; --peers"):
        open_store(P9, P3, kept=founded)
