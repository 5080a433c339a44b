"""Messages that the proxy keeps for a consumer until it has finished with them.

A push consumer does not say for how long nobody else may have a message: it has it until it acknowledges it. Brokers
want a time, so the proxy gives one, and prolongs it as long as the consumer is there, for `KEPT_S` at most. Each time
makes another handle; the consumer goes on with the first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import anyio

from dledger_mq.client.ack_errors import AckError
from dledger_mq.client.acknowledging import Acknowledging
from dledger_mq.client.errors import ClientError
from dledger_mq.client.popped_messages import PoppedMessage

INVISIBLE_MS: Final = 60_000
"""For so long nobody else gets a message whose consumer has died, or whose proxy has."""

RENEW_AFTER_S: Final = 40.0
KEPT_S: Final = 3 * 3600.0
KEPT_MAX: Final = 100_000
LOOK_S: Final = 1.0
AT_ONCE_MAX: Final = 64

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Kept:
    """A message that is kept; its present handle is in `message`."""

    client_id: str
    group: str
    message: PoppedMessage
    since: float
    due: float
    is_held: bool = False
    """A request under way ends it: nothing else may use its handle."""
    renewed: anyio.Event | None = None
    """Of a request under way that prolongs it."""


class Renewals:
    """All messages that are kept, by their first receipts.

    Args:
        acknowledging: of a group.
        now: the loop's seconds.
    """

    def __init__(
        self, acknowledging: Callable[[str], Acknowledging], now: Callable[[], float]
    ) -> None:
        self._acknowledging = acknowledging
        self._now = now
        self._kept: dict[tuple[str, str], _Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def is_full(self) -> bool:
        """True if nothing more can be kept."""
        return len(self._kept) >= KEPT_MAX

    def keep(self, client_id: str, group: str, receipt: str, message: PoppedMessage) -> None:
        """Keep a message for a client from now on; nothing happens when too many are kept: it comes again."""
        if self.is_full:
            return
        now = self._now()
        self._kept[group, receipt] = _Kept(client_id, group, message, now, now + RENEW_AFTER_S)

    async def hold(self, group: str, receipt: str) -> PoppedMessage | None:
        """Prolong a message no more for now; return it with its present handle, None where it is not kept."""
        kept = self._kept.get((group, receipt))
        if kept is None:
            return None
        kept.is_held = True
        if kept.renewed is not None:  # else the handle dies under the caller's request
            await kept.renewed.wait()
        return kept.message

    def resume(self, group: str, receipt: str) -> None:
        """Go on with a message that was held and is not done with."""
        if kept := self._kept.get((group, receipt)):
            kept.is_held = False

    def drop(self, group: str, receipt: str) -> None:
        """Keep a message no longer."""
        self._kept.pop((group, receipt), None)

    def drop_client(self, client_id: str) -> None:
        """Keep nothing more for a client that is gone: its messages come again within INVISIBLE_MS."""
        gone = [key for key, kept in self._kept.items() if kept.client_id == client_id]
        for key in gone:
            del self._kept[key]

    async def run(self) -> None:
        """Prolong what is due, for ever."""
        limiter = anyio.CapacityLimiter(AT_ONCE_MAX)
        async with anyio.create_task_group() as tasks:
            while True:
                await anyio.sleep(LOOK_S)
                now = self._now()
                for key, kept in list(self._kept.items()):
                    if now - kept.since > KEPT_S:
                        del self._kept[key]
                    elif kept.due <= now and kept.renewed is None and not kept.is_held:
                        kept.renewed = anyio.Event()
                        tasks.start_soon(self._renew, key, kept, limiter)

    async def _renew(
        self, key: tuple[str, str], kept: _Kept, limiter: anyio.CapacityLimiter
    ) -> None:
        """Prolong one message; what its broker refuses is kept no longer, and what nobody answers is tried again."""
        renewed = kept.renewed
        assert renewed is not None, f"{key} is said to be prolonged by nobody"
        try:
            async with limiter:
                if self._kept.get(key) is kept and not kept.is_held:
                    change = self._acknowledging(kept.group).change
                    kept.message = await change(kept.message, INVISIBLE_MS)
                    kept.due = self._now() + RENEW_AFTER_S
        except AckError as error:
            _log.info("a message is not kept any longer: %s", error)
            self._kept.pop(key, None)
        except ClientError as error:
            _log.info("a message could not be prolonged, and is tried again: %s", error)
            kept.due = self._now() + 2 * LOOK_S
        finally:
            kept.renewed = None
            renewed.set()
