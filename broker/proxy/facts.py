"""What brokers say of topics and groups: kinds of messages, order, retries. Remembered for a moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from broker.proxy.protocol.numbers import MessageType
from broker.proxy.refusals import refused_with
from dledger_mq.client.session import Session
from dledger_mq.remoting.codes import RequestCode, ResponseCode

KEPT_S: Final = 10.0
KEPT_MAX: Final = 4096

_ALL_KINDS: Final = (
    MessageType.NORMAL,
    MessageType.FIFO,
    MessageType.DELAY,
    MessageType.TRANSACTION,
)
_KIND_ATTRIBUTE: Final = "message.type"


class GroupFacts(NamedTuple):
    """The settings of a consumer group; these hold for one that is not there yet."""

    is_ordered: bool = False
    retries_max: int = 16


class Facts:
    """Asks brokers, and remembers for KEPT_S."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._kept: dict[tuple[str, str], tuple[float, Any]] = {}

    async def kinds(self, topic: str, broker_name: str) -> tuple[MessageType, ...]:
        """Return the kinds of messages that a topic takes: of its attribute `message.type`, or all where it has none.

        Raises:
            CallRefusedError: a broker refuses the question.
            ClientError: nobody could be asked.
        """
        code, field = RequestCode.GET_TOPIC_CONFIG, "topic"
        found = await self._ask(
            code, field, topic, broker_name=broker_name, absent=ResponseCode.TOPIC_NOT_EXIST
        )
        said = str((found.get("attributes") or {}).get(_KIND_ATTRIBUTE, ""))
        return (MessageType[said],) if said in MessageType.__members__ else _ALL_KINDS

    async def group(self, group: str, broker_name: str) -> GroupFacts:
        """Return the settings of a consumer group. Raises as `kinds` does."""
        code, field = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, "group"
        absent = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        found = await self._ask(code, field, group, broker_name=broker_name, absent=absent)
        usual = GroupFacts()
        return GroupFacts(
            bool(found.get("consumeMessageOrderly", usual.is_ordered)),
            int(found.get("retryMaxTimes", usual.retries_max)),
        )

    async def _ask(
        self, code: RequestCode, field: str, name: str, *, broker_name: str, absent: ResponseCode
    ) -> dict[str, Any]:
        """Return an object that a broker group tells of a name; empty where it knows none."""
        now: Callable[[], float] = self._session.loop.now
        key = (field, f"{broker_name} {name}")
        at, kept = self._kept.get(key, (-KEPT_S, None))
        if kept is not None and now() - at < KEPT_S:
            return dict(kept)
        answer = await self._session.call_group(broker_name, code, {field: name})
        if answer.code not in (ResponseCode.SUCCESS, absent):
            raise refused_with(answer.code, answer.remark or "")
        found: dict[str, Any] = {}
        if answer.code == ResponseCode.SUCCESS:
            try:
                found = msgspec.json.decode(answer.body, type=dict[str, Any])
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                raise refused_with(ResponseCode.SYSTEM_ERROR, f"{broker_name}: {error}") from error
        if len(self._kept) >= KEPT_MAX:
            self._kept.clear()
        self._kept[key] = (now(), found)
        return found
