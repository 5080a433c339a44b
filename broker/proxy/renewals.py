"""Messages that the proxy keeps for a consumer until it has finished with them.

A push consumer does not say for how long nobody else may have a message: it has it until it acknowledges it. Brokers
want a time, so the proxy gives one, and prolongs it as long as the consumer is there, for `KEPT_S` at most. Each time
makes another handle; the consumer goes on with the first. Of a message only that is kept: no body, no properties.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

import anyio
from msgspec.structs import replace

from dledger_mq.client.ack_errors import HandleExpiredError
from dledger_mq.client.acknowledging import Acknowledging
from dledger_mq.client.errors import ClientError
from dledger_mq.client.popped_messages import PoppedMessage

INVISIBLE_MS: Final = 60_000
"""For so long nobody else gets a message whose consumer has died, or whose proxy has."""

RENEW_AFTER_S: Final = 40.0
RETRY_S: Final = 2.0
"""After a try that did not succeed; twice as long after each further one, RENEW_AFTER_S at most."""

KEPT_S: Final = 3 * 3600.0
KEPT_MAX: Final = 100_000
KEPT_OF_CLIENT_MAX: Final = 10_000
"""So that one client that acknowledges nothing does not take the room of all others."""

LOOK_S: Final = 1.0
AT_ONCE_MAX: Final = 64

_log = logging.getLogger(__name__)
_Key = tuple[str, str]


@dataclass(slots=True)
class _Kept:
    """A message that is kept; its present handle is in `message`. Times are seconds of the loop's clock."""

    client_id: str
    group: str
    message: PoppedMessage
    until: float
    due: float
    failures: int = 0
    holds: int = 0
    """Requests under way that use its handle: nothing else may."""
    is_waiting: bool = False
    """For its turn to be prolonged."""
    renewed: anyio.Event | None = None
    """Of a request under way that prolongs it."""


class Renewals:
    """All messages that are kept, by group and first receipt.

    Args:
        acknowledging: of a group.
        now: the loop's seconds.
    """

    def __init__(
        self, acknowledging: Callable[[str], Acknowledging], now: Callable[[], float]
    ) -> None:
        self._acknowledging = acknowledging
        self._now = now
        self._kept: dict[_Key, _Kept] = {}
        self._by_client: dict[str, set[_Key]] = {}
        self._limiter = anyio.CapacityLimiter(AT_ONCE_MAX)

    def __len__(self) -> int:
        return len(self._kept)

    def is_full_for(self, client_id: str) -> bool:
        """Return whether nothing more can be kept for a client."""
        of_client = len(self._by_client.get(client_id, ()))
        return len(self._kept) >= KEPT_MAX or of_client >= KEPT_OF_CLIENT_MAX

    def keep(self, client_id: str, group: str, receipt: str, message: PoppedMessage) -> None:
        """Keep a message for a client from now on; nothing happens when too many are kept: it comes again."""
        if self.is_full_for(client_id):
            return
        now, key = self._now(), (group, receipt)
        self._remove(key)
        bare = _bare(message)
        self._kept[key] = _Kept(client_id, group, bare, now + KEPT_S, now + RENEW_AFTER_S)
        self._by_client.setdefault(client_id, set()).add(key)

    async def hold(self, group: str, receipt: str) -> PoppedMessage | None:
        """Prolong a message no more for now; return it with its present handle, None where it is not kept.

        `resume`, `leave` or `drop` has to follow, unless this raises.
        """
        kept = self._kept.get((group, receipt))
        if kept is None:
            return None
        kept.holds += 1
        try:
            if kept.renewed is not None:  # else the handle dies under the caller's request
                await kept.renewed.wait()
        except BaseException:  # its call is broken off: nobody would give it free
            kept.holds -= 1
            raise
        return kept.message

    def move(self, group: str, receipt: str, message: PoppedMessage) -> None:
        """Note that a message that is held has another handle by now."""
        if kept := self._kept.get((group, receipt)):
            kept.message = _bare(message)

    def resume(self, group: str, receipt: str) -> None:
        """Go on with a message that was held and is not done with."""
        if kept := self._kept.get((group, receipt)):
            kept.holds = max(kept.holds - 1, 0)

    def leave(self, group: str, receipt: str) -> None:
        """Prolong a message no more that may be done with; who tries again finds its handle until its time is over."""
        if kept := self._kept.get((group, receipt)):
            self.resume(group, receipt)
            kept.due, kept.until = inf, self._now() + INVISIBLE_MS / 1000

    def drop(self, group: str, receipt: str) -> None:
        """Keep a message no longer."""
        self._remove((group, receipt))

    def drop_client(self, client_id: str) -> None:
        """Keep nothing more for a client that is gone: its messages come again within INVISIBLE_MS."""
        for key in self._by_client.pop(client_id, set()):
            del self._kept[key]

    def _remove(self, key: _Key) -> None:
        kept = self._kept.pop(key, None)
        if kept is None:
            return
        of_client = self._by_client[kept.client_id]
        of_client.remove(key)
        if not of_client:
            del self._by_client[kept.client_id]

    async def run(self) -> None:
        """Prolong what is due, for ever."""
        async with anyio.create_task_group() as tasks:
            while True:
                await anyio.sleep(LOOK_S)
                for key, kept in self._due():
                    kept.is_waiting = True
                    tasks.start_soon(self._renew, key, kept)

    def _due(self) -> list[tuple[_Key, _Kept]]:
        """Return what is to be prolonged now; what was kept for long enough is kept no longer."""
        now = self._now()
        for key in [key for key, kept in self._kept.items() if now > kept.until]:
            self._remove(key)
        return [
            (key, kept)
            for key, kept in self._kept.items()
            if kept.due <= now and not kept.is_waiting and not kept.holds
        ]

    async def _renew(self, key: _Key, kept: _Kept) -> None:
        """Prolong one message; one that nobody has in flight is kept no longer, else what fails is tried again."""
        try:
            async with self._limiter:
                if self._kept.get(key) is kept and not kept.holds:
                    await self._renew_now(key, kept)
        finally:
            kept.is_waiting = False

    async def _renew_now(self, key: _Key, kept: _Kept) -> None:
        """Prolong one message, for which nobody else uses its handle meanwhile."""
        kept.renewed = anyio.Event()
        try:
            change = self._acknowledging(kept.group).change
            kept.message = await change(kept.message, INVISIBLE_MS)
            kept.due, kept.failures = self._now() + RENEW_AFTER_S, 0
        except HandleExpiredError as error:
            _log.info("a message is not kept any longer: %s", error)
            if self._kept.get(key) is kept:
                self._remove(key)
        except ClientError as error:  # also where it may have been done: the next try tells
            _log.info("a message could not be prolonged, and is tried again: %s", error)
            kept.due = self._now() + min(RETRY_S * 2**kept.failures, RENEW_AFTER_S)
            kept.failures = min(kept.failures + 1, 10)
        finally:
            kept.renewed.set()
            kept.renewed = None


def _bare(message: PoppedMessage) -> PoppedMessage:
    return replace(message, body=b"", properties={}, keys=())
