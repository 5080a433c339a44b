"""Hostile histories: each breaks the law in one way, and in no other."""

from typing import Any

import pytest

from dledger_mq.message.hosts import pack_host
from dledger_mq.message.ids import offset_msg_id
from jepsen.checkers.places import check_places
from tests.unit.jepsen.checkers.histories import History, Q, assert_shows_only, kinds

Q1 = "orders/broker-a/1"
HOST = pack_host("127.0.0.1", 10911)


def id_of(at: int) -> str:
    return offset_msg_id(HOST, at)


def acknowledged(history: History, key: str, offset: int | None, at: int, **more: Any) -> None:
    asked = {"key": key, "queue": Q, "content": f"- {key}"}
    told = {"key": key, "queue": Q, "offset": offset, "uniq": f"U{key}", "id": id_of(at)} | more
    history.do(0, "send", asked, told)


def row(key: str, offset: int, at: int, content: str | None = None, uniq: str = "") -> list[Any]:
    return [offset, key, uniq or f"U{key}", at, content or f"- {key}"]


def frames(history: History, *frames: tuple[list[str], dict[str, Any]], queue: str = Q) -> None:
    """Requests that none waited for, with what each was told."""
    asked = [
        {"queue": queue, "messages": [[key, f"- {key}"] for key in keys]} for keys, _ in frames
    ]
    told = [{"end": "ok", "queue": queue} | answer for _, answer in frames]
    history.do(0, "frames", {"frames": asked}, {"frames": told})


def test_everything_stands_where_it_was_said() -> None:
    history = History()
    acknowledged(history, "a", 0, 100)
    acknowledged(history, "b", 1, 200)
    history.do(0, "send", {"key": "c", "queue": Q, "content": "- c"}, type_="info")
    history.poll(row("a", 0, 100), row("b", 1, 200), row("c", 2, 300))
    result = check_places(history.ops)
    assert result.valid is True
    assert result.counts == {"named": 2, "ids": 2, "compared": 2, "contents": 3}


def test_two_acknowledgements_at_one_place() -> None:
    history = History()
    acknowledged(history, "a", 0, 100)
    acknowledged(history, "b", 0, 200)
    history.poll(row("a", 0, 100))
    result = check_places(history.ops)
    assert sorted(kinds(result)) == ["other-message", "shared-place"]
    assert "a and b" in result.anomalies[0].text


def test_two_acknowledgements_with_one_id() -> None:
    history = History()
    acknowledged(history, "a", 0, 100)
    acknowledged(history, "b", 1, 100)
    history.poll(row("a", 0, 100))
    assert_shows_only(check_places(history.ops), "shared-place")


def test_any_number_of_different_messages_at_one_place_is_one_anomaly() -> None:
    history = History()
    for key in "abcd":
        acknowledged(history, key, 0, 100 + ord(key))
    history.poll([9, "z"])
    assert kinds(check_places(history.ops)) == ["shared-place"]


def test_an_acknowledgement_in_another_queue() -> None:
    """One message to queues 0 and 1 at once, both told of queue 0."""
    history = History()
    asked = {"key": "a", "queue": Q1}
    history.do(0, "send", asked, {**asked, "queue": Q, "offset": 0})
    history.poll(row("a", 0, 100))
    assert_shows_only(check_places(history.ops), "wrong-queue")


def test_any_queue_will_do_when_none_was_named() -> None:
    history = History()
    history.do(0, "send", {"key": "a", "queue": None}, {"key": "a", "queue": Q1, "offset": 0})
    history.poll(row("a", 0, 100), queue=Q1)
    assert check_places(history.ops).valid is True


def test_another_message_at_the_place() -> None:
    history = History()
    acknowledged(history, "a", 0, 100)
    history.poll(row("b", 0, 100))
    assert_shows_only(check_places(history.ops), "other-message")


def test_another_unique_key_at_the_place() -> None:
    history = History()
    acknowledged(history, "a", 0, 100)
    history.poll(row("a", 0, 100, uniq="UNIQ"))
    assert_shows_only(check_places(history.ops), "other-message")


@pytest.mark.parametrize("place", [0, 3])
def test_another_body_or_other_tags_wherever_it_is_read(place: int) -> None:
    history = History()
    acknowledged(history, "a", place, 100)
    history.poll(row("a", place, 100, "paid a"))
    assert_shows_only(check_places(history.ops), "other-content")


def test_a_send_of_unknown_outcome_is_read_as_it_was_sent_or_not_at_all() -> None:
    history = History()
    acknowledged(history, "a", 0, 100)
    history.do(0, "send", {"key": "b", "queue": Q, "content": "- b"}, type_="info")
    history.poll(row("a", 0, 100), row("b", 1, 200, "created b"))
    assert_shows_only(check_places(history.ops), "other-content")


def test_an_id_of_another_byte() -> None:
    history = History()
    acknowledged(history, "a", 0, 100)
    history.poll(row("a", 0, 101))
    assert_shows_only(check_places(history.ops), "wrong-id")


def test_an_id_that_is_none() -> None:
    history = History()
    acknowledged(history, "a", 0, 100, id="7F000001")
    history.poll(row("a", 0, 100))
    assert_shows_only(check_places(history.ops), "wrong-id")


def test_a_delayed_message_is_acknowledged_where_it_waits() -> None:
    history = History()
    asked = {"key": "a", "queue": None, "due_ns": 5, "content": "- a"}
    history.do(0, "send", asked, {**asked, "queue": Q, "id": id_of(100)})
    history.poll(row("a", 0, 900))
    assert check_places(history.ops).valid is True


def test_delayed_messages_have_places_of_their_own_where_they_wait() -> None:
    history = History()
    for key in "ab":
        asked = {"key": key, "queue": None, "due_ns": 5, "content": f"- {key}"}
        history.do(0, "send", asked, {**asked, "queue": Q, "id": id_of(100)})
    history.poll(row("a", 0, 900), row("b", 1, 1000))
    assert_shows_only(check_places(history.ops), "shared-place")


def test_halves_with_one_id_and_a_commit_of_another_body() -> None:
    history = History()
    for key in ("v1", "v2"):
        asked = {"key": key, "decision": "commit", "content": f"- {key}"}
        history.do(0, "txn", asked, {**asked, "id": id_of(100)})
    history.poll(row("v1", 0, 900), row("v2", 1, 1000, "- v1"))
    assert sorted(kinds(check_places(history.ops))) == ["other-content", "shared-place"]


# Several requests at once, regrouped batches, one message again.


def test_regrouped_batches_are_told_their_places_one_by_one() -> None:
    history = History()
    frames(
        history,
        (["A", "B"], {"offset": 0, "ids": [id_of(100), id_of(200)]}),
        (["A", "C"], {"offset": 0, "ids": [id_of(100), id_of(300)]}),
        (["A"], {"offset": 0, "ids": [id_of(100)]}),
    )
    history.poll(row("A", 0, 100), row("B", 1, 200), row("C", 2, 300))
    result = check_places(history.ops)
    assert result.valid is True
    assert result.counts["compared"] == 3


def test_a_regrouped_batch_that_is_told_the_ids_of_another() -> None:
    """[A,B] and [A,C] in flight, both told the ids of the first: C is gone."""
    history = History()
    ids = [id_of(100), id_of(200)]
    frames(
        history, (["A", "B"], {"offset": 0, "ids": ids}), (["A", "C"], {"offset": 0, "ids": ids})
    )
    history.poll(row("A", 0, 100), row("B", 1, 200))
    result = check_places(history.ops)
    assert_shows_only(result, "shared-place")
    assert "B and C" in result.anomalies[0].text


def test_an_id_in_a_batch_that_is_of_another_byte() -> None:
    history = History()
    frames(history, (["A", "B"], {"offset": 0, "ids": [id_of(100), id_of(201)]}))
    history.poll(row("A", 0, 100), row("B", 1, 200))
    assert_shows_only(check_places(history.ops), "wrong-id")


def test_frames_of_unknown_outcome_name_no_place() -> None:
    history = History()
    frames(history, (["A"], {"offset": 0, "ids": [id_of(100)]}), (["B"], {"end": "info"}))
    history.poll(row("A", 0, 100))
    assert check_places(history.ops).counts["named"] == 1


# What proves nothing.


def test_nothing_that_could_be_compared_proves_nothing() -> None:
    history = History()
    acknowledged(history, "a", 0, 100)
    result = check_places(history.ops)
    assert result.valid is None
    assert "nothing was read" in result.why_unknown


def test_broken_promises_count_though_nothing_was_read() -> None:
    history = History()
    acknowledged(history, "a", 0, 100)
    acknowledged(history, "b", 0, 200)
    assert check_places(history.ops).valid is False
