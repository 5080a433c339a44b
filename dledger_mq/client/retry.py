"""What to do after an answer or a failure: made from the registry of response codes. Pure.

A send is tried again only under its UNIQ_KEY, by which the broker group recognises it, so trying again
after an unknown outcome is harmless; giving up after one is what the caller must know.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from dledger_mq.remoting.codes import DISK_FULL, RESPONSES, ResponseCode

BACKOFF_FIRST_S: Final = 0.005  # a new leader is found within milliseconds of its election
BACKOFF_MAX_S: Final = 0.05
FEW_TRIES: Final = 4  # another node may know better; asking all day does not help

_FEW_TRIES_CODES: Final = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    }
)

SEND_STATUS: Final = {
    int(ResponseCode.SUCCESS): "SEND_OK",
    int(ResponseCode.FLUSH_DISK_TIMEOUT): "FLUSH_DISK_TIMEOUT",
    int(ResponseCode.SLAVE_NOT_AVAILABLE): "SLAVE_NOT_AVAILABLE",
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): "FLUSH_SLAVE_TIMEOUT",
}
"""Answers to a send that mean: it is stored (rule C20)."""


class SendVerdict(Enum):
    """The next step that an answer to a send, or to another request, asks of the client."""

    DONE = "it took effect"
    AGAIN_HERE = "try again at the same address after a pause"
    AGAIN_ELSEWHERE = "ask for the route, try the other nodes of the group"
    GIVE_UP = "trying again cannot help"


def judge(code: int, attempts: int = 1, remark: str = "") -> SendVerdict:
    """Return what to do after `attempts` tries ended in `code`. Unknown codes end the matter."""
    if code in SEND_STATUS:
        return SendVerdict.DONE
    row = RESPONSES.get(code)  # type: ignore[call-overload]  # an int finds its IntEnum key
    if row is None or not row.retriable:
        return SendVerdict.GIVE_UP
    asks_few = code in _FEW_TRIES_CODES or remark.startswith(DISK_FULL)
    if asks_few and attempts >= FEW_TRIES:
        return SendVerdict.GIVE_UP
    if row.route_stale or code == ResponseCode.SYSTEM_ERROR:
        return SendVerdict.AGAIN_ELSEWHERE
    return SendVerdict.AGAIN_HERE


def backoff_s(tries: int) -> float:
    """Return the pause before the next try, after `tries` (1, 2, ...) that failed in a row."""
    return min(BACKOFF_FIRST_S * (1 << min(tries - 1, 10)), BACKOFF_MAX_S)
