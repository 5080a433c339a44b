"""Receipts and transaction ids."""

from __future__ import annotations

import pytest

pytest.importorskip("google.protobuf")

from broker.proxy.handles import OpenTransaction, message_of, receipt_of
from broker.proxy.protocol.numbers import Code
from broker.proxy.refusals import CallRefusedError

RECEIPT = "5 1750000000000 60000 0 1 broker-a 3 17 4096 %RETRY%billing_Orders"


def test_a_receipt_says_all_that_is_needed() -> None:
    message = message_of(RECEIPT, "Orders")
    assert message.topic == "Orders"
    assert message.handle == "5 1750000000000 60000 0 1 broker-a 3 17"
    assert message.queue.topic == "%RETRY%billing_Orders"
    assert (message.queue.broker_name, message.queue.queue_id) == ("broker-a", 3)
    assert (message.queue_offset, message.physical_offset) == (17, 4096)
    assert message.invisible_until_ms == 1_750_000_060_000
    assert receipt_of(message) == RECEIPT


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        RECEIPT + " 1",
        RECEIPT.replace("17", "-1"),
        RECEIPT.replace("17", "²"),
        RECEIPT.replace("17", "1" * 19),
        RECEIPT.replace("4096", ""),
        RECEIPT + "x" * 3000,
    ],
)
def test_what_is_no_receipt_is_refused(text: str) -> None:
    with pytest.raises(CallRefusedError) as refused:
        message_of(text, "Orders")
    assert refused.value.code is Code.INVALID_RECEIPT_HANDLE


def test_a_transaction_id_names_its_half_message() -> None:
    place = OpenTransaction("01A2", "broker-a", 3, 4096)
    assert OpenTransaction.decode(place.encode()) == place


@pytest.mark.parametrize(
    "text", ["", "a b 1", "a b 1 x", "a b 1 2 3", "a  1 2", f"a b 1 {'2' * 19}"]
)
def test_what_is_no_transaction_id_is_refused(text: str) -> None:
    with pytest.raises(CallRefusedError) as refused:
        OpenTransaction.decode(text)
    assert refused.value.code is Code.INVALID_TRANSACTION_ID
