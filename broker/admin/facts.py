"""The facts in a broker's runtime information (28), read with care: whoever answers at an address may send anything.

What is missing or no number is None: older versions and brokers of another kind do not know all of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from broker.admin.ask import NodeAnswer
from dledger_mq.remoting.errors import BodyError
from dledger_mq.remoting.json_body import read_object

MEMBERS_MAX: Final = 15
"""More than any group has; the rest is dropped."""

NAME_LENGTH_MAX: Final = 255
DIGESTS_MAX: Final = 2
"""Of access rules: one for each secret that a group may accept."""

_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_DECIMAL: Final = re.compile(r"[0-9]{1,12}(\.[0-9]{1,6})?")
_FINE: Final = frozenset({"", "ok", "no"})


@dataclass(frozen=True, slots=True)
class MemberFacts:
    """The answer of a broker about itself.

    Attributes:
        address: where it was asked.
        node_id: its id in its group; empty: it is not a broker of this kind.
        group: broker name; empty: it has not sent one.
        role: as the log names it, for example `leader`.
        is_serving: it leads, and takes requests; None: not known.
        leader_id: the member that it follows; empty: nobody.
        end_position: end of the committed log, in bytes from its first beginning.
        log_bytes: committed log that it keeps.
        free_bytes: room on the disk of its store.
        clients: connections, without those of members and the one that asked.
        role_ms, up_ms: for how long it has its role, and for how long it runs.
        stored_count: messages that the group has ever stored.
        given_count: messages that it has given to consumers since its start.
        sync_ms: how long its disk takes to make a write durable.
        stopping: how far an orderly stop is; empty: none is wanted.
        troubles: what is wrong with it in its own words.
        members: ids of the whole group, with the address for clients where it is known.
        connected: members with which it has a connection.
        access_rules: digests of its access rules, empty where it has none; None: it does not tell.
    """

    address: str
    node_id: str = ""
    group: str = ""
    role: str = ""
    is_serving: bool | None = None
    leader_id: str = ""
    term: int | None = None
    commit_index: int | None = None
    applied_index: int | None = None
    end_position: int | None = None
    log_bytes: int | None = None
    free_bytes: int | None = None
    clients: int | None = None
    role_ms: int | None = None
    up_ms: int | None = None
    stored_count: int | None = None
    given_count: int | None = None
    sync_ms: float | None = None
    version: str = ""
    stopping: str = ""
    troubles: tuple[str, ...] = ()
    members: Mapping[str, str] = field(default_factory=dict)
    connected: frozenset[str] = frozenset()
    access_rules: frozenset[str] | None = None

    @property
    def own_address(self) -> str:
        """The address for clients that it has announced."""
        return self.members.get(self.node_id, "")


def read_facts(answer: NodeAnswer) -> MemberFacts | None:
    """Return the facts in an answer; None when there is none."""
    table = answer.table
    if not table:
        return None
    first, end = _number(table, "commitLogMinOffset"), _number(table, "commitLogMaxOffset")
    clients = _number(table, "raftClients")
    return MemberFacts(
        answer.address,
        node_id=_name(table, "raftNode"),
        group=_name(table, "raftGroup"),
        role=_name(table, "raftRole"),
        is_serving={"true": True, "false": False}.get(table.get("raftServing", "")),
        leader_id=_name(table, "raftLeader"),
        term=_number(table, "raftTerm"),
        commit_index=_number(table, "raftCommitIndex"),
        applied_index=_number(table, "raftAppliedIndex"),
        end_position=end,
        log_bytes=end - first if first is not None and end is not None and end >= first else None,
        free_bytes=_number(table, "raftFreeBytes"),
        clients=max(0, clients - 1) if clients is not None else None,
        role_ms=_number(table, "raftRoleMs"),
        up_ms=_number(table, "raftUpMs"),
        stored_count=_number(table, "putMessageTimesTotal"),
        given_count=_number(table, "msgGetTotalTodayNow"),
        sync_ms=_decimal(table, "raftSyncMs"),
        version=_name(table, "raftVersion") or _name(table, "brokerVersionDesc"),
        stopping=table.get("raftStopping", ""),
        troubles=_troubles(table),
        members=_members(table),
        connected=frozenset(table.get("raftConnected", "").split(",")) - {""},
        access_rules=_access_rules(table),
    )


def whole_number(text: str) -> int | None:
    """Return a number from 0 on, of 18 digits at most; None: the text is none."""
    return int(text) if _NUMBER.fullmatch(text) else None


def read_object_in(table: Mapping[str, str], key: str) -> dict[str, object]:
    """Return the object of JSON that a value is; empty: there is none, or it cannot be read."""
    try:
        found = read_object(table.get(key, "{}").encode())
    except (BodyError, UnicodeEncodeError):
        return {}
    return {str(name): value for name, value in found.items()}


def _name(table: Mapping[str, str], key: str) -> str:
    return table.get(key, "")[:NAME_LENGTH_MAX]


def _number(table: Mapping[str, str], key: str) -> int | None:
    return whole_number(table.get(key, ""))


def _decimal(table: Mapping[str, str], key: str) -> float | None:
    text = table.get(key, "")
    return float(text) if _DECIMAL.fullmatch(text) else None


def _troubles(table: Mapping[str, str]) -> tuple[str, ...]:
    """Return what a member reports as wrong, each with what it concerns."""
    found = {
        "disk": table.get("raftDisk", ""),
        "log": table.get("raftTrouble", ""),
        "lost": table.get("raftWentBack", ""),
        "digests differ": table.get("digestAlarms", ""),
    }
    return tuple(f"{what}: {text}" for what, text in found.items() if text not in _FINE)


def _access_rules(table: Mapping[str, str]) -> frozenset[str] | None:
    text = table.get("raftAccessRules")
    return None if text is None else frozenset(text.split(",")[:DIGESTS_MAX]) - {""}


def _members(table: Mapping[str, str]) -> dict[str, str]:
    """Return all members of the group, with the addresses for clients where they were announced."""
    ids = [each for each in table.get("raftMembers", "").split(",") if each]
    known = {node_id[:NAME_LENGTH_MAX]: "" for node_id in ids[:MEMBERS_MAX]}
    announced = read_object_in(table, "raftMemberAddresses")
    for node_id in known:
        addresses = announced.get(node_id)
        clients = addresses.get("clients") if isinstance(addresses, dict) else None
        if isinstance(clients, str):
            known[node_id] = clients[:NAME_LENGTH_MAX]
    return known
