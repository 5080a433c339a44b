"""A broker.conf that names no members: a group of one node. Pure.

RocketMQ's own files, but for those of DLedger, are of a master. Here such a master is a Raft group with one member.
It must not be taken for a member that lacks a line, so none of DLedger's keys may be there, and a name must be.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

MEMBER_KEYS: Final = ("dLegerGroup", "dLegerSelfId", "dLegerPeers")

_NODE: Final = "n0"
_HOST: Final = "127.0.0.1"
_PORT: Final = "10911"
_PORT_DISTANCE: Final = 10_000
_FOLDER_NAME: Final = re.compile("[A-Za-z0-9_-][A-Za-z0-9._-]*")


def names_members(given: Mapping[str, str]) -> bool:
    """Return whether one of the keys is there that make a node a member of a group."""
    return any(given.get(key, "").strip() for key in MEMBER_KEYS)


def complete(given: Mapping[str, str], home: str) -> dict[str, str]:
    """Return what a file without members leaves out; nothing for one that is not of a node of its own.

    Args:
        given: keys and values of the file and the command line.
        home: the folder below which the store lies, unless the file says where; empty: nobody knows one.
    """
    name = given.get("brokerName", "").strip()
    wants_members = given.get("enableDLegerCommitLog", "").strip().lower() == "true"
    if not name or wants_members or names_members(given):
        return {}
    added = {
        "dLegerGroup": name,
        "dLegerSelfId": _NODE,
        "dLegerPeers": f"{_NODE}-{_HOST}:{_member_port(given)}",
    }
    is_placed = bool(given.get("storePathRootDir", "").strip())
    if home and not is_placed and _FOLDER_NAME.fullmatch(name):
        added["storePathRootDir"] = f"{home}/dledger-store/{name}"
    return added


def _member_port(given: Mapping[str, str]) -> int:
    """Return a port at a fixed distance from the clients'; where that is no port, the one of the usual client port."""
    text = given.get("listenPort", "").strip() or _PORT
    port = int(text) if text.isascii() and text.isdigit() and len(text) <= 5 else int(_PORT)
    usual = port + _PORT_DISTANCE if port else int(_PORT) + _PORT_DISTANCE
    return usual if usual <= 65_535 else port - _PORT_DISTANCE
