"""Pins of a group's log, put and removed from outside: by the archive, and by operators.

What a pin keeps, and for how long, is the group's matter (docs/retention.md); nothing here judges it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from broker.admin.ask import NobodyAnsweredError, make_links
from dledger_mq.client.errors import ClientError
from dledger_mq.remoting.codes import RequestCode, ResponseCode, is_definite
from dledger_mq.remoting.header import RemotingCommand

_ERRNO: Final = re.compile(r"\[Errno -?[0-9]+\] ")

PIN_TIMEOUT_S: Final = 10.0
"""Longer than a group is without a leader."""


class PinRefusedError(Exception):
    """The group does not take the pin, or has none of that name; the text says why.

    Attributes:
        is_definite: surely nothing was changed, by an earlier try neither.
    """

    def __init__(self, text: str, *, is_definite: bool = False) -> None:
        super().__init__(text)
        self.is_definite = is_definite


@dataclass(frozen=True, slots=True)
class PinBounds:
    """The bounds of a pin: the time for which it holds after it was put last, and the bytes of log that it may keep."""

    keep_ms: int
    keep_bytes: int


async def pin_log(
    addresses: Sequence[str], name: str, bounds: PinBounds, position: int | None = None
) -> int:
    """Have a group keep its log from a position on; None: from where it begins. Return the position.

    Raises:
        PinRefusedError: the group said no: the position is forgotten, or there are too many pins.
        NobodyAnsweredError: no member did it in time; the text says whether it may still be done.
    """
    ext = {"name": name, "keepMs": str(bounds.keep_ms), "keepBytes": str(bounds.keep_bytes)}
    if position is not None:
        ext["position"] = str(position)
    answer = await _call(addresses, RequestCode.PIN_LOG, ext)
    return int(answer["position"])


async def unpin_log(addresses: Sequence[str], name: str) -> None:
    """Have a group remove a pin.

    Raises:
        PinRefusedError: there is none of that name.
        NobodyAnsweredError: no member did it in time; the text says whether it may still be done.
    """
    await _call(addresses, RequestCode.UNPIN_LOG, {"name": name})


async def _call(
    addresses: Sequence[str], code: RequestCode, ext: Mapping[str, str]
) -> Mapping[str, str]:
    """Ask one member after the other until one has asked the leader; doing it twice is as once."""
    problems: list[str] = []
    may_be_done = False
    answer: RemotingCommand | None = None
    async with trio.open_nursery() as nursery:  # which would wrap what is raised within
        links = make_links(nursery)
        for address in addresses:
            try:
                answer = await links.get(address).call(code, ext, timeout_s=PIN_TIMEOUT_S)
            except ClientError as error:
                problems.append(_ERRNO.sub("", str(error)))
                may_be_done = may_be_done or not error.definite
                continue
            if answer.code == ResponseCode.SUCCESS or answer.code in _FINAL:
                break
            problems.append(f"{address}: {_reason(answer)}")
            may_be_done = may_be_done or not is_definite(answer.code)
            answer = None
        nursery.cancel_scope.cancel()
    tried = "; ".join(problems)
    if answer is None:
        what = "outcome unknown, it may yet be done" if may_be_done else "nothing was changed"
        raise NobodyAnsweredError(f"no member has done it: {tried or 'none is known'}; {what}")
    if answer.code != ResponseCode.SUCCESS:
        before = f" (outcome unknown of what was tried before: {tried})" if may_be_done else ""
        surely_not = is_definite(answer.code) and not may_be_done
        raise PinRefusedError(_reason(answer) + before, is_definite=surely_not)
    return answer.ext


def _reason(answer: RemotingCommand) -> str:
    return answer.remark or f"refused with code {answer.code}"


_FINAL: Final = frozenset(
    {
        ResponseCode.INVALID_PARAMETER,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        ResponseCode.SYSTEM_ERROR,
    }
)
"""Answers that another member would give, too."""
