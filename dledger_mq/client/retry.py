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
QUICK_S: Final = 0.5  # what is answered sooner was not held
QUICK_PAUSE_MAX_S: Final = 0.5
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


def backoff_s(tries: int, max_s: float = BACKOFF_MAX_S) -> float:
    """Return the pause before the next try, after `tries` (1, 2, ...) that failed in a row: `max_s` at most."""
    return min(BACKOFF_FIRST_S * (1 << min(tries - 1, 10)), max_s)


class QuickAnswers:
    """The answers in a row that brought nothing although nobody held the question.

    Brokers are asked to hold a pull until there is something. One that does not (it stops, it holds too many, it is set
    to) would be asked again and again, as fast as it answers.
    """

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count = 0

    def forget(self) -> None:
        """Begin anew: there was something."""
        self._count = 0

    def pause_s(self, held_s: float) -> float:
        """Return the pause after an answer that brought nothing, `held_s` after it was asked for."""
        if held_s >= QUICK_S:
            self._count = 0
            return 0.0
        self._count += 1
        return backoff_s(self._count, QUICK_PAUSE_MAX_S)
