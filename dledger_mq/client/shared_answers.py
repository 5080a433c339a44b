"""Questions that several tasks have at the same time: one task asks, and all who wait share its answer, or its failure.

The question goes on when those who wait give up. So what its answer changes is there for the next one, however little
time each of them has. It must not know what is asked, nor whom.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import anyio
from anyio.abc import TaskGroup

from dledger_mq.client.errors import ClientClosedError, ClientError

log = logging.getLogger(__name__)

_T = TypeVar("_T")


class _Answer(Generic[_T]):
    """One question, and its end: values has the answer, else there is a failure."""

    def __init__(self) -> None:
        self.ended = anyio.Event()
        self.values: list[_T] = []
        self.failure: Exception = ClientClosedError("the client was left")


class SharedAnswers(Generic[_T]):
    """Asks by keys, one question of each at a time.

    Args:
        nursery: the questions run there; they end with it.
        ask: takes a key; returns the answer, in a time that it bounds itself, or raises.
    """

    def __init__(self, nursery: TaskGroup, ask: Callable[[str], Awaitable[_T]]) -> None:
        self._nursery = nursery
        self._ask = ask
        self._under_way: dict[str, _Answer[_T]] = {}

    async def get(self, key: str) -> _T:
        """Return the answer to the question that is under way, or to a new one.

        Raises:
            ClientClosedError: the client is being left.
            What the question raises.
        """
        answer = self._under_way.get(key)
        if answer is None:
            if self._nursery.cancel_scope.cancel_called:
                raise ClientClosedError("the client was left")
            answer = self._under_way[key] = _Answer()
            self._nursery.start_soon(self._carry_out, key, answer, name=f"question {key}")
        await answer.ended.wait()
        if not answer.values:
            raise answer.failure
        return answer.values[0]

    async def _carry_out(self, key: str, answer: _Answer[_T]) -> None:
        try:
            answer.values.append(await self._ask(key))
        except ClientError as error:
            answer.failure = error
        except Exception as error:
            # A mistake, here or in a hook. It ends what was asked for, perhaps by nobody any more, and not the client.
            log.exception("the question %s ended with an error that none may end with", key)
            answer.failure = error
        finally:
            del self._under_way[key]
            answer.ended.set()
