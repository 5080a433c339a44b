"""Topic configurations as bodies spell them (17, 21, 103), with the permission bits."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

PERM_INHERIT: Final = 1
PERM_WRITE: Final = 2
PERM_READ: Final = 4

SYS_FLAG_UNIT: Final = 1
SYS_FLAG_UNIT_SUBSCRIPTION: Final = 2

TOPIC_FILTER_SINGLE_TAG: Final = "SINGLE_TAG"
TOPIC_FILTER_MULTI_TAG: Final = "MULTI_TAG"


Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""Numbers of bodies as Java has them: what is larger no client could read, and no record hold."""


class WireTopicConfig(msgspec.Struct, frozen=True, rename="camel"):
    """One topic of a broker; members in the order in which fastjson writes them."""

    order: bool = False
    perm: Int32 = PERM_READ | PERM_WRITE
    read_queue_nums: Int32 = 16
    topic_filter_type: str = TOPIC_FILTER_SINGLE_TAG
    topic_name: str = ""
    topic_sys_flag: Int32 = 0
    write_queue_nums: Int32 = 16
    attributes: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


class WireDataVersion(msgspec.Struct, frozen=True, rename="camel"):
    """Version of a table: two are the same table when all three members are equal."""

    counter: Int64 = 0
    state_version: Int64 = 0
    timestamp: Int64 = 0
