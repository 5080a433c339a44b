"""Topic configurations as bodies spell them (17, 21, 103), with the permission bits."""

from __future__ import annotations

from typing import Final

import msgspec

PERM_INHERIT: Final = 1
PERM_WRITE: Final = 2
PERM_READ: Final = 4

SYS_FLAG_UNIT: Final = 1
SYS_FLAG_UNIT_SUBSCRIPTION: Final = 2

TOPIC_FILTER_SINGLE_TAG: Final = "SINGLE_TAG"
TOPIC_FILTER_MULTI_TAG: Final = "MULTI_TAG"


class WireTopicConfig(msgspec.Struct, frozen=True, rename="camel"):
    """One topic of a broker; members in the order in which fastjson writes them."""

    order: bool = False
    perm: int = PERM_READ | PERM_WRITE
    read_queue_nums: int = 16
    topic_filter_type: str = TOPIC_FILTER_SINGLE_TAG
    topic_name: str = ""
    topic_sys_flag: int = 0
    write_queue_nums: int = 16
    attributes: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


class WireDataVersion(msgspec.Struct, frozen=True, rename="camel"):
    """Version of a table: two are the same table when all three members are equal."""

    counter: int = 0
    state_version: int = 0
    timestamp: int = 0
