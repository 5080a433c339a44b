"""Prolonging messages, with a clock in hand."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

pytest.importorskip("google.protobuf")

from broker.proxy import renewals
from broker.proxy.handles import message_of
from broker.proxy.renewals import INVISIBLE_MS, KEPT_S, RENEW_AFTER_S, RETRY_S, Renewals
from dledger_mq.client.ack_errors import (
    AckOutcomeUnknownError,
    AckRefusedError,
    HandleExpiredError,
)
from dledger_mq.client.popped_messages import PoppedMessage
from tests.unit.client.test_push_consumer import until

pytestmark = pytest.mark.anyio

RECEIPT = "5 1750000000000 60000 0 1 broker-a 3 17 4096 T"


class Kept:
    """One message that is kept, and what a broker says when it is to be prolonged."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.says: Exception | None = None
        self.asked = 0
        acknowledging: Any = self
        self.renewals = Renewals(lambda _group: acknowledging, lambda: self.now)
        self.renewals.keep("c", "g", RECEIPT, message_of(RECEIPT, "T"))

    async def change(self, message: PoppedMessage, _invisible_ms: int) -> PoppedMessage:
        self.asked += 1
        if self.says is not None:
            raise self.says
        return message

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, and the proxy look twice."""
        self.now += seconds
        for key, kept in self.renewals._due():
            kept.is_waiting = True
            await self.renewals._renew(key, kept)


async def test_a_message_is_prolonged_in_time_and_not_for_ever() -> None:
    kept = Kept()
    await kept.pass_time(RENEW_AFTER_S - 1)
    assert kept.asked == 0
    await kept.pass_time(1)
    await kept.pass_time(RENEW_AFTER_S)
    assert kept.asked == 2
    await kept.pass_time(KEPT_S)
    assert len(kept.renewals) == 0


@pytest.mark.parametrize("failure", [AckRefusedError("x"), AckOutcomeUnknownError("x")])
async def test_what_failed_is_tried_again_before_the_time_is_over(failure: Any) -> None:
    kept = Kept()
    kept.says = failure
    await kept.pass_time(RENEW_AFTER_S)
    assert (kept.asked, len(kept.renewals)) == (1, 1)
    kept.says = None
    await kept.pass_time(RETRY_S)
    assert kept.asked == 2


async def test_what_nobody_has_in_flight_is_kept_no_longer() -> None:
    kept = Kept()
    kept.says = HandleExpiredError("x")
    await kept.pass_time(RENEW_AFTER_S)
    assert len(kept.renewals) == 0


async def test_a_message_that_is_held_is_not_prolonged_until_all_have_gone_on() -> None:
    kept = Kept()
    await kept.renewals.hold("g", RECEIPT)
    await kept.renewals.hold("g", RECEIPT)
    kept.renewals.resume("g", RECEIPT)
    await kept.pass_time(RENEW_AFTER_S)
    assert kept.asked == 0
    kept.renewals.resume("g", RECEIPT)
    await kept.pass_time(0)
    assert kept.asked == 1


async def test_what_may_be_done_with_is_found_until_its_time_is_over() -> None:
    kept = Kept()
    await kept.renewals.hold("g", RECEIPT)
    kept.renewals.leave("g", RECEIPT)
    await kept.pass_time(INVISIBLE_MS / 1000)
    assert kept.asked == 0
    assert await kept.renewals.hold("g", RECEIPT) is not None
    await kept.pass_time(1)
    assert await kept.renewals.hold("g", RECEIPT) is None


async def test_who_is_broken_off_while_it_waits_holds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = Kept()
    monkeypatch.setattr(renewals, "LOOK_S", 0.001)
    kept.now += RENEW_AFTER_S
    asked = anyio.Event()

    async def stuck(_message: PoppedMessage, _invisible_ms: int) -> PoppedMessage:
        asked.set()
        await anyio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(kept, "change", stuck)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(kept.renewals.run)
        await asked.wait()
        with anyio.move_on_after(0.01):
            await kept.renewals.hold("g", RECEIPT)
        (one,) = kept.renewals._kept.values()
        await until(lambda: one.holds == 0)
        tasks.cancel_scope.cancel()


async def test_nothing_is_left_of_a_client_that_is_gone() -> None:
    kept = Kept()
    kept.renewals.drop_client("c")
    assert len(kept.renewals) == 0
    assert not kept.renewals._by_client
