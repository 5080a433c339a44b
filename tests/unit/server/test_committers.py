"""Who commits an offset, as far as it matters (fencing of P6)."""

from __future__ import annotations

from broker.server.handlers import committers
from broker.server.handlers.committers import Committers
from broker.service.clients import ConsumerClient
from broker.store.locks import QueueLockTable

HERE = "1.2.3.4:5"


def make(*members: ConsumerClient, holder: str | None = "a") -> Committers:
    locks = QueueLockTable()
    if holder is not None:
        locks.lock("g", holder, [("T", 0)], now_ms=1, physical_offset=0)
    return Committers(lambda: locks, lambda group: {each.client_id: each for each in members})


def who(found: Committers, said: str = "", address: str = HERE) -> str:
    return found.who("g", "T", 0, address=address, given_id=said)


def test_where_nobody_locks_nobody_is_asked() -> None:
    assert who(make(ConsumerClient("g", "a", address=HERE), holder=None), "a") == ""


def test_a_client_is_known_by_its_word_its_heartbeat_or_its_lock_request() -> None:
    found = make(ConsumerClient("g", "b", address=HERE))
    assert who(found, "c") == "c"
    assert who(found) == "b"
    assert who(found, address="1.2.3.4:6") == ""
    found.has_locked("g", address="1.2.3.4:6", client_id="a")
    assert who(found, address="1.2.3.4:6") == "a"


def test_of_several_clients_on_a_connection_the_holder_counts() -> None:
    found = make(ConsumerClient("g", "b", address=HERE), ConsumerClient("g", "a", address=HERE))
    assert who(found) == "a"


def test_what_is_remembered_is_bounded(monkeypatch) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    monkeypatch.setattr(committers, "LOCKERS_MAX", 2)
    found = make()
    for number in range(4):
        found.has_locked("g", address=f"h:{number}", client_id="a")
    assert [who(found, address=f"h:{number}") for number in range(4)] == ["", "", "a", "a"]
