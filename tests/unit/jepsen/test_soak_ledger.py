"""The account of a soak: each way to break a promise is found, and an honest run is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jepsen.soak.ledger import ANOMALIES_KEPT, EARLY_SLACK_S, Ledger, Place

KEPT_S = 180.0


def read_all(ledger: Ledger, count: int) -> None:
    for number in range(count):
        ledger.read(number, Place(0, number))


def honest(count: int = 30) -> Ledger:
    """So many messages in queue 0, acknowledged before and after they are read."""
    ledger = Ledger()
    assert ledger.send(count, 0.0) == 0
    for number in range(0, count, 2):
        ledger.acknowledge(number, Place(0, number))
    read_all(ledger, count)
    for number in range(1, count, 2):
        ledger.acknowledge(number, Place(0, number))
    return ledger


def test_an_honest_run_is_valid_and_counted() -> None:
    ledger = honest(30)
    result = ledger.judge()
    assert result.valid is True
    assert (result.counts["sent"], result.counts["acknowledged"], result.counts["read"]) == (
        30, 30, 30,
    )  # fmt: skip
    assert ledger.unread == 0


def test_what_was_not_read_when_a_soak_was_ended_is_not_lost() -> None:
    ledger = honest(30)
    ledger.acknowledge(ledger.send(1, 1.0), Place(0, 30))
    result = ledger.judge(is_read_out=False)
    assert result.valid is None
    assert result.why_unknown == "1 acknowledged messages were not read yet when it ended"
    assert honest(30).judge(is_read_out=False).valid is True


def lost(ledger: Ledger) -> None:
    ledger.acknowledge(ledger.send(1, 1.0), Place(0, 30))


def stands_elsewhere(ledger: Ledger) -> None:
    number = ledger.send(1, 1.0)
    ledger.acknowledge(number, Place(0, 30))
    ledger.read(number, Place(1, 30))


def stands_elsewhere_and_is_answered_late(ledger: Ledger) -> None:
    number = ledger.send(1, 1.0)
    ledger.read(number, Place(0, 31))
    ledger.acknowledge(number, Place(0, 30))


def stands_twice(ledger: Ledger) -> None:
    ledger.read(3, Place(0, 30))


def refused_and_stored(ledger: Ledger) -> None:
    number = ledger.send(1, 1.0)
    ledger.refuse(number)
    ledger.read(number, Place(0, 30))


def stored_and_refused(ledger: Ledger) -> None:
    number = ledger.send(1, 1.0)
    ledger.read(number, Place(0, 30))
    ledger.refuse(number)


def deleted_early(ledger: Ledger) -> None:
    ledger.begins_with(5, at_s=KEPT_S - EARLY_SLACK_S - 1, kept_s=KEPT_S)


@pytest.mark.parametrize(
    ("broken", "kind"),
    [
        (lost, "lost"),
        (stands_elsewhere, "wrong-place"),
        (stands_elsewhere_and_is_answered_late, "wrong-place"),
        (stands_twice, "twice"),
        (refused_and_stored, "refused"),
        (stored_and_refused, "refused"),
        (deleted_early, "early"),
    ],
)
def test_each_broken_promise_is_found(broken: Callable[[Ledger], None], kind: str) -> None:
    ledger = honest()
    broken(ledger)
    result = ledger.judge()
    assert result.valid is False
    assert [anomaly.kind for anomaly in result.anomalies] == [kind]


def test_of_a_send_without_an_outcome_nothing_is_promised() -> None:
    ledger = honest(30)
    first = ledger.send(3, 1.0)
    for number in range(first, first + 3):
        ledger.doubt(number)
    ledger.read(first, Place(0, 30))
    assert ledger.judge().valid is True
    assert ledger.counts["unknown"] == 3


def test_what_was_due_may_go_and_what_goes_unread_proves_nothing() -> None:
    ledger = honest()
    ledger.begins_with(5, at_s=KEPT_S + 1, kept_s=KEPT_S)
    assert ledger.judge().valid is True
    ledger.skip(7)
    result = ledger.judge()
    assert (result.valid, result.why_unknown) == (
        None,
        "7 messages were deleted before a reader came to them",
    )


@pytest.mark.parametrize(("skipped", "valid"), [(0, False), (4, False), (5, None), (7, None)])
def test_what_was_deleted_unread_is_not_lost(skipped: int, valid: bool | None) -> None:
    ledger = honest(30)
    for number in range(ledger.send(5, 1.0), 35):
        ledger.acknowledge(number, Place(0, number))
    ledger.skip(skipped)
    assert ledger.judge().valid is valid


def test_many_anomalies_are_counted_and_some_kept() -> None:
    ledger = honest(30)
    read_all(ledger, 30)
    result = ledger.judge()
    assert (len(result.anomalies), result.counts["anomalies"]) == (ANOMALIES_KEPT, 30)


def test_the_time_of_a_message_is_that_of_its_thousand() -> None:
    ledger = Ledger()
    for second in range(10):
        ledger.send(1000, 1000.0 * second)
    read_all(ledger, 10_000)
    ledger.begins_with(5999, at_s=5000.0 + KEPT_S - EARLY_SLACK_S, kept_s=KEPT_S)
    assert ledger.judge().valid is True
    ledger.begins_with(6000, at_s=5000.0 + KEPT_S, kept_s=KEPT_S)
    assert [one.kind for one in ledger.judge().anomalies] == ["early"]


def test_a_message_that_nobody_sent_is_an_error_of_the_harness() -> None:
    with pytest.raises(ValueError, match=r"message 30 at .* was never sent"):
        honest(30).read(30, Place(0, 30))


def test_nothing_read_proves_nothing() -> None:
    assert Ledger().judge().why_unknown == "nothing was read"
