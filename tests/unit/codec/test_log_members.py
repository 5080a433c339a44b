"""Who belongs to the log, in a status: what was encoded comes back, and nothing else is believed."""

from __future__ import annotations

import pytest

from dledger.codec.log_members import (
    LOG_MEMBERS_ATTRIBUTE,
    LogMember,
    LogMembers,
    decode_log_members,
    encode_log_members,
)

NOBODY = LogMembers(0, [])
KNOWN = LogMembers(
    7,
    [
        LogMember("n0", "10.0.0.1:20911", "voter", is_heard=True),
        LogMember("n3", "", "joining", is_heard=False),
    ],
)


def test_what_a_node_knows_comes_through() -> None:
    assert decode_log_members(encode_log_members(KNOWN)) == KNOWN
    assert encode_log_members(NOBODY) == {}
    assert decode_log_members({"role": "leader"}) == NOBODY


@pytest.mark.parametrize(
    "text", ["", "[]", '{"index": -1, "members": []}', '{"index": 1, "members": [{"id": "n0"}]}']
)
def test_what_is_not_to_be_understood_names_nobody(text: str) -> None:
    assert decode_log_members({LOG_MEMBERS_ATTRIBUTE: text}) == NOBODY
