"""Requests of RocketMQ's tools and brokers that have no meaning in this group, or none yet: each with a sentence why.

Brokers and name servers answer them with SYSTEM_ERROR and the sentence; what is in no table at all is answered with
REQUEST_CODE_NOT_SUPPORTED. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_RAFT: Final = (
    "the members of this group replicate one log by Raft, and elect their leader by themselves"
)
_CONTROLLER: Final = f"there is no controller: {_RAFT}"
_BROKERS: Final = f"that is for brokers of RocketMQ among themselves: {_RAFT}"
_CONTAINER: Final = (
    "there is no broker container: each member is a process of its own; use dledger-node"
)
_COLD: Final = "cold reads are not limited by group: each turn of a broker leaves them their share"
_ROCKSDB: Final = (
    "there is no RocksDB: settings, offsets and consume queues follow from the log on every member"
)
_FILTER: Final = (
    "code of clients is not run here, so there are no filter servers: filter by tags, or in SQL92"
)
_PEEK: Final = (
    "what could be popped is not shown: pop it (200050), or ask whether there is something (200054)"
)
_UNUSED: Final = "no broker of RocketMQ answers that either"
_TIMERS: Final = "the timers of this group follow from the log: there is no wheel to be copied or counted by delay"
_USERS: Final = (
    "users and rights of RocketMQ 5 are not supported, those of 4 are: accounts stand in plain_acl.yml (mqadmin "
    "updateAclConfig, deleteAclConfig)"
)
_STATIC: Final = "static topics, whose queues move between groups, are not supported"


def _each(codes: Iterable[int], why: str) -> dict[int, str]:
    return dict.fromkeys(codes, why)


REFUSED_CODES: Final[dict[int, str]] = {
    **_each((13, 22, 23, 27, 47, *range(209, 215)), _UNUSED),
    **_each((60, 61), _TIMERS),
    154: _UNUSED,
    **_each((301, 302), _FILTER),
    **_each((354, 355), _ROCKSDB),
    **_each((200_052, 200_055, 200_056), _PEEK),
    402: _BROKERS,
    513: _STATIC,
    **_each((902, 903), _CONTAINER),
    **_each((905, 906, 908), _BROKERS),
    **_each((*range(1001, 1007), *range(1008, 1014)), _CONTROLLER),
    **_each(range(2001, 2005), _COLD),
    **_each(range(3001, 3011), _USERS),
}
"""By request code."""
