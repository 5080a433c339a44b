"""The facts that a member sends of itself: read when they are asked for, and left out where they are not known."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.server.handlers.disk_room import DiskRoom, room_table, size_text
from broker.server.handlers.member_info import MemberInfo
from broker.server.links.private_codes import SERVICE_ADDRESS
from dledger import NodeId, RoleView, Term, parse_peers
from dledger.raft.effects import Role
from dledger.runtime.roster import Roster

N0, N1 = NodeId("n0"), NodeId("n1")


class Member:
    """A member and its process, as far as it is asked."""

    node_id = N0

    def __init__(self) -> None:
        self.now_ms = 1000
        self.is_serving = False
        self.is_accepted = True
        self.clients = 0
        self.stage = ""
        self.known: dict[str, dict[str, str]] = {
            "n0": {SERVICE_ADDRESS: "h0:10911"},
            "n1": {SERVICE_ADDRESS: "h1:10911"},
        }
        self.status = cast("Any", self)
        config = SimpleNamespace(broker_name="broker-a", group="group-a")
        self.roster = Roster(N0, parse_peers("n0-h0:1;n1-h1:2;n2-h2:3"), joins=False)
        self.info = MemberInfo(
            cast("Any", config),
            cast("Any", self),
            monotonic_ms=lambda: self.now_ms,
            client_count=lambda: self.clients,
            stop_stage=lambda: self.stage,
            rules_digests=None,
        )

    def attributes(self, node_id: str) -> dict[str, str]:
        return self.known.get(node_id, {})

    def address_of(self, node_id: str) -> str:
        peer = self.roster.peer(node_id)
        return "" if peer is None else peer.address

    def peers_connected(self) -> list[str]:
        return ["n1"]

    def role(self, role: Role, *, is_serving: bool = False, term: int = 1) -> None:
        self.is_serving = is_serving
        self.info.role_changed(RoleView(role, Term(term), N0, is_serving))


def test_a_leaders_time_begins_when_it_serves_and_a_new_leader_elsewhere_is_no_new_role() -> None:
    member = Member()
    member.role(Role.LEADER)
    member.now_ms = 1500
    member.role(Role.LEADER, is_serving=True)
    member.now_ms = 4000
    table = member.info.table()
    assert (table["raftServing"], table["raftRoleMs"], table["raftUpMs"]) == (
        "true",
        "2500",
        "3000",
    )
    member.role(Role.FOLLOWER, term=2)
    member.now_ms = 4700
    member.role(Role.FOLLOWER, term=3)
    member.now_ms = 5000
    table = member.info.table()
    assert (table["raftServing"], table["raftRoleMs"], table["raftUpMs"]) == (
        "false",
        "1000",
        "4000",
    )


def test_members_have_the_addresses_that_they_announced() -> None:
    table = Member().info.table()
    assert json.loads(table["raftMemberAddresses"]) == {
        "n0": {"log": "h0:1", "clients": "h0:10911"},
        "n1": {"log": "h1:2", "clients": "h1:10911"},
        "n2": {"log": "h2:3"},
    }
    assert (table["raftConnected"], table["raftGroup"]) == ("n1", "broker-a")


def test_clients_stops_and_troubles_are_those_of_now() -> None:
    member = Member()
    quiet = member.info.table()
    assert (quiet["raftClients"], quiet["raftStopping"], quiet["raftTrouble"]) == ("0", "", "")
    member.clients, member.stage = 7, "leaves"
    member.known["n0"] |= {"store": "an older copy", "repair": "2 damaged entries", "disk": "slow"}
    table = member.info.table()
    assert (table["raftClients"], table["raftStopping"]) == ("7", "leaves")
    assert table["raftTrouble"] == "an older copy; 2 damaged entries"
    member.known["n0"]["membership"] = "removed: n0 is no member any more"
    assert "removed" not in member.info.table()["raftTrouble"], "it is one, as far as it knows"
    member.is_accepted = False
    assert member.info.table()["raftTrouble"].endswith("; removed: n0 is no member any more")


def test_the_room_on_a_disk_is_that_of_an_ordinary_user() -> None:
    table = room_table(DiskRoom(1000 << 20, 700 << 20, 200 << 20))
    assert (table["raftFreeBytes"], table["commitLogDiskRatio"]) == (str(200 << 20), "0.7778")
    assert table["commitLogDirCapacity"] == "Total : 1000.0 MiB, Free : 200.0 MiB."
    assert DiskRoom(0, 0, 0).used_ratio == "0.0000"


def test_a_disk_that_cannot_be_asked_has_no_figures() -> None:
    assert set(room_table(None).values()) == {"", "-1"}


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (105_600_000_000, "98.3 GiB")],
)
def test_sizes_are_written_as_rocketmq_does(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text
