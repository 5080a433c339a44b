"""Whether a group's messages are popped in order: as the caller said, else as the group is set at the brokers.

A pop says itself whether it is in order, and a broker believes it. RocketMQ 5's clients leave that to the proxy, which
asks the broker for the group (352, `consumeMessageOrderly`); here the consumer does. A broker that does not know the
group, or not the question, does not have it in order.
"""

from __future__ import annotations

from typing import Final

from dledger_mq.client.errors import RequestFailedError
from dledger_mq.client.session import REQUEST_TIMEOUT_S, Session
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.errors import BodyError
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.json_body import read_object

KEPT_S: Final = 10.0
"""So long an answer holds, as in RocketMQ's proxy: whoever sets a group otherwise is heard within it."""

_UNKNOWN: Final = frozenset(
    {ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, ResponseCode.REQUEST_CODE_NOT_SUPPORTED}
)


class GroupOrder:
    """The order of one group, at each broker group.

    Args:
        session: carries the questions.
        group: which group.
        told: whether it is in order, as the caller said; None: brokers are asked.
    """

    def __init__(self, session: Session, group: str, *, told: bool | None) -> None:
        self._session = session
        self._group = group
        self._told = told
        self._kept: dict[str, tuple[float, bool]] = {}

    async def at(self, address: str, broker_name: str) -> bool:
        """Return whether a broker group has the group in order; ask at the address of its leader.

        Raises:
            ConnectionLostError, RequestTimeoutError: no answer.
            RequestFailedError: the question is refused, or its answer cannot be read.
        """
        if self._told is not None:
            return self._told
        now = self._session.loop.now
        kept = self._kept.get(broker_name)
        if kept is not None and now() - kept[0] < KEPT_S:
            return kept[1]
        answer = await self._session.links.get(address).call(
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG,
            {"group": self._group},
            timeout_s=REQUEST_TIMEOUT_S,
        )
        is_ordered = _read(answer, self._group)
        self._kept[broker_name] = (now(), is_ordered)
        return is_ordered


def _read(answer: RemotingCommand, group: str) -> bool:
    if answer.code in _UNKNOWN:
        return False
    if answer.code != ResponseCode.SUCCESS:
        text = f"it is not known whether {group} is in order (say `ordered`): {answer.remark or ''}"
        raise RequestFailedError(answer.code, text)
    try:
        return read_object(answer.body).get("consumeMessageOrderly") is True
    except BodyError as error:
        raise RequestFailedError(answer.code, f"unreadable answer: {error}") from error
