"""What brokers say of topics and groups: kinds of messages, order, retries. Remembered for a moment.

All broker groups are made the same, so the first one that answers tells: one without a leader keeps nobody from the
queues of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from broker.proxy.protocol.numbers import Code, MessageType
from broker.proxy.refusals import CallRefusedError, refused_with
from dledger_mq.client.errors import ClientError, NoRouteError
from dledger_mq.client.session import REQUEST_TIMEOUT_S, Session
from dledger_mq.remoting.codes import RequestCode, ResponseCode

KEPT_S: Final = 10.0
KEPT_MAX: Final = 4096

FIRST_TIMEOUT_S: Final = 1.0
"""For a broker group when there are others to ask."""

_ALL_KINDS: Final = (
    MessageType.NORMAL,
    MessageType.FIFO,
    MessageType.DELAY,
    MessageType.TRANSACTION,
)
_KIND_ATTRIBUTE: Final = "message.type"
_Object = dict[str, Any]


class _Kind(NamedTuple):
    """A question, the field with the name that it is about, and the answer where there is none of that name."""

    code: RequestCode
    field: str
    absent: ResponseCode


_TOPICS: Final = _Kind(RequestCode.GET_TOPIC_CONFIG, "topic", ResponseCode.TOPIC_NOT_EXIST)
_GROUPS: Final = _Kind(
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, "group", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
)


class GroupFacts(NamedTuple):
    """The settings of a consumer group; these hold for one that is not there yet."""

    is_ordered: bool = False
    retries_max: int = 16


class Facts:
    """Asks brokers, and remembers for KEPT_S; longer, while none of them answers."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._kept: dict[tuple[str, str], tuple[float, _Object]] = {}

    async def kinds(self, topic: str, broker_names: Sequence[str]) -> tuple[MessageType, ...]:
        """Return the kinds of messages that a topic takes: of its attribute `message.type`, or all where it has none.

        Raises:
            CallRefusedError: a broker refuses the question.
            ClientError: nobody could be asked.
        """
        return _kinds_of(await self._find(_TOPICS, topic, broker_names))

    def known_kinds(self, topic: str) -> tuple[MessageType, ...]:
        """Return what `kinds` would without asking; nothing where it would ask."""
        kept = self._fresh(_TOPICS, topic)
        return () if kept is None else _kinds_of(kept)

    async def group(self, group: str, broker_names: Sequence[str]) -> GroupFacts:
        """Return the settings of a consumer group. Raises as `kinds` does."""
        found = await self._find(_GROUPS, group, broker_names)
        usual = GroupFacts()
        return GroupFacts(
            bool(found.get("consumeMessageOrderly", usual.is_ordered)),
            int(found.get("retryMaxTimes", usual.retries_max)),
        )

    async def _find(self, kind: _Kind, name: str, broker_names: Sequence[str]) -> _Object:
        """Return an object that a broker group tells of a name, in their order; empty where none knows it."""
        fresh = self._fresh(kind, name)
        if fresh is not None:
            return fresh
        kept = self._kept.get((kind.field, name))
        found: _Object | None = None
        failure: ClientError = NoRouteError(name, "no broker group is known")
        for place, broker_name in enumerate(broker_names, start=1):
            is_last = place == len(broker_names) and found is None and kept is None
            timeout_s = REQUEST_TIMEOUT_S if is_last else FIRST_TIMEOUT_S
            try:
                answer = await self._session.call_group(
                    broker_name, kind.code, {kind.field: name}, timeout_s=timeout_s
                )
            except ClientError as error:
                failure = error
                continue
            if answer.code == kind.absent:
                found = found or {}
                continue
            if answer.code != ResponseCode.SUCCESS:
                raise refused_with(answer.code, answer.remark or "")
            found = _decoded(answer.body, broker_name)
            break
        if found is None:
            if kept is None:
                raise failure
            found = kept[1]
        if len(self._kept) >= KEPT_MAX:
            self._kept.clear()
        self._kept[kind.field, name] = (self._session.loop.now(), found)
        return found

    def _fresh(self, kind: _Kind, name: str) -> _Object | None:
        """Return what is remembered and not too old."""
        kept = self._kept.get((kind.field, name))
        if kept is None or self._session.loop.now() - kept[0] >= KEPT_S:
            return None
        return kept[1]


def _kinds_of(topic_config: _Object) -> tuple[MessageType, ...]:
    said = str((topic_config.get("attributes") or {}).get(_KIND_ATTRIBUTE, ""))
    return (MessageType[said],) if said in MessageType.__members__ else _ALL_KINDS


def _decoded(body: bytes, broker_name: str) -> _Object:
    try:
        return msgspec.json.decode(body, type=_Object)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        text = f"{broker_name} answered with what cannot be read: {error}"
        raise CallRefusedError(Code.INTERNAL_SERVER_ERROR, text) from error
