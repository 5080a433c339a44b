"""Runtime information as brokers send it, for tests of what is made of it."""

from __future__ import annotations

import json

from broker.admin.ask import NodeAnswer

GROUP = "broker-a"
ADDRESSES = {"n0": "127.0.0.1:10911", "n1": "127.0.0.2:10911", "n2": "127.0.0.3:10911"}


def table_of(
    node_id: str, *, leader: str = "n0", group: str = GROUP, **more: str
) -> dict[str, str]:
    """Return the table of a member of a group of three in which nothing is wrong."""
    is_leader = node_id == leader
    table = {
        "brokerVersionDesc": "V4_9_8",
        "commitLogMinOffset": "1000",
        "commitLogMaxOffset": "5000",
        "raftNode": node_id,
        "raftGroup": group,
        "raftRole": "leader" if is_leader else "follower",
        "raftServing": str(is_leader).lower(),
        "raftTerm": "7",
        "raftLeader": leader,
        "raftCommitIndex": "40",
        "raftAppliedIndex": "40",
        "raftDisk": "ok",
        "raftWentBack": "no",
        "raftFreeBytes": "20000000000",
        "raftMembers": ",".join(ADDRESSES),
        "raftMemberAddresses": json.dumps(
            {name: {"log": "127.0.0.1:1", "clients": each} for name, each in ADDRESSES.items()}
        ),
        "raftConnected": ",".join(name for name in ADDRESSES if name != node_id),
        "raftClients": "3",
        "raftStopping": "",
        "raftTrouble": "",
        "raftRoleMs": "61000",
        "raftUpMs": "7300000",
        "raftVersion": "0.2.0",
        "digestAlarms": "",
    }
    return table | more


def answer_of(node_id: str, **more: str) -> NodeAnswer:
    return NodeAnswer(ADDRESSES[node_id], table_of(node_id, **more))


def foreign_table() -> dict[str, str]:
    """Return what an Apache broker sends, in part: it knows nothing of members."""
    return {
        "brokerVersionDesc": "V4_9_8",
        "bootTimestamp": "1700000000000",
        "commitLogMinOffset": "0",
        "commitLogMaxOffset": "123456",
        "commitLogDirCapacity": "Total : 98.3 GiB, Free : 23.4 GiB.",
        "runtime": "[ 1 days, 2 hours, 3 minutes, 4 seconds ]",
    }
