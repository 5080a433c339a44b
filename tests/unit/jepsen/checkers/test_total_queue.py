from jepsen.checkers.total_queue import check_total_queue
from tests.unit.jepsen.checkers.histories import History, Q, assert_shows_only


def test_what_went_in_came_out() -> None:
    history = History()
    history.send("a", 0)
    history.send("b")  # unknown, and stored
    history.send("c")  # unknown, and not stored
    history.do(0, "send", {"key": "d", "queue": Q}, type_="fail")
    history.poll([0, "a"], [1, "b"])
    history.poll([0, "a"])
    history.drained(2)
    result = check_total_queue(history.ops)
    assert result.valid is True
    assert result.counts == {
        "sent": 4,
        "acknowledged": 1,
        "received": 2,
        "lost": 0,
        "unseen": 0,
        "unexpected": 0,
        "duplicated": 0,
        "recovered": 1,
    }


def test_a_lost_message() -> None:
    history = History()
    history.send("a", 0)
    history.drained(1)
    assert_shows_only(check_total_queue(history.ops), "lost")


def test_a_message_in_a_queue_that_nobody_drained_is_unseen_and_proves_nothing() -> None:
    history = History()
    history.send("a", 0)
    history.drained(5, queue="orders/broker-a/1")
    result = check_total_queue(history.ops)
    assert result.valid is None
    assert "1 acknowledged" in result.why_unknown


def test_a_message_acknowledged_after_the_draining_is_unseen() -> None:
    history = History()
    history.drained(0)
    history.send("a", 0)
    assert check_total_queue(history.ops).valid is None


def test_a_queue_drained_below_an_acknowledged_message_has_lost_it() -> None:
    history = History()
    history.send("a", 7)
    history.drained(3)
    assert_shows_only(check_total_queue(history.ops), "lost")


def test_queues_that_are_gone_have_lost_everything() -> None:
    """Whoever leads says of a queue without a topic that it ends at 0."""
    history = History()
    history.send("a", 0)
    history.send("b", 4, queue="orders/broker-a/1")
    for queue in (Q, "orders/broker-a/1"):
        history.poll(queue=queue)
        history.drained(0, queue=queue)
    result = check_total_queue(history.ops)
    assert result.valid is False
    assert result.counts["lost"] == 2
    assert result.counts["unseen"] == 0


def test_reads_that_nobody_answered_prove_nothing() -> None:
    history = History()
    history.send("a", 0)
    history.do(9, "poll", None, type_="fail")
    history.do(9, "drained", None, type_="fail")
    assert check_total_queue(history.ops).valid is None


def test_a_message_that_is_read_before_it_is_sent() -> None:
    history = History()
    history.poll([0, "a"])
    history.send("a", 0)
    history.drained(1)
    assert_shows_only(check_total_queue(history.ops), "unexpected")


def test_a_message_that_nobody_sent() -> None:
    history = History()
    history.send("a", 0)
    history.poll([0, "a"], [1, "ghost"])
    assert_shows_only(check_total_queue(history.ops), "unexpected")


def test_a_refused_message_that_was_read() -> None:
    history = History()
    history.send("a", 0)
    history.do(0, "send", {"key": "b", "queue": Q}, type_="fail")
    history.poll([0, "a"], [1, "b"])
    assert_shows_only(check_total_queue(history.ops), "unexpected")


def test_what_a_push_consumer_was_handed_counts_as_read() -> None:
    history = History()
    history.send("a", 0)
    history.add(3, "ok", "receive", {Q: [[0, "a", "K1"]]})
    history.drained(1)
    assert check_total_queue(history.ops).valid is True


def join(history: History, group: str, process: int = 3) -> None:
    history.do(process, "join", {"group": group})


def group_drained(history: History, group: str, end: int) -> None:
    history.do(4, "group-drained", None, {"group": group, "ends": {Q: end}})


def test_every_group_must_get_what_others_got() -> None:
    history = History()
    join(history, "g")
    history.send("a", 0)
    history.send("b", 1)
    history.poll([0, "a"], [1, "b"])
    history.add(3, "ok", "receive", {Q: [[1, "b"]]})
    history.drained(2)
    group_drained(history, "g", 2)
    assert_shows_only(check_total_queue(history.ops), "lost")


def test_what_a_group_got_is_none_the_less_lost_for_all_others() -> None:
    history = History()
    join(history, "g")
    history.send("a", 0)
    history.add(3, "ok", "receive", {Q: [[0, "a"]]})
    group_drained(history, "g", 1)
    history.drained(1)
    assert_shows_only(check_total_queue(history.ops), "lost")


def test_groups_that_got_everything() -> None:
    history = History()
    join(history, "g")
    history.send("a", 0)
    history.add(3, "ok", "receive", {Q: [[0, "a"]]})
    history.add(3, "ok", "receive", {Q: [[0, "a"]]})
    history.poll([0, "a"])
    history.drained(1)
    result = check_total_queue(history.ops)
    assert result.valid is True
    assert result.counts["received"] == 1


def test_a_group_that_had_no_time_proves_nothing() -> None:
    history = History()
    join(history, "g")
    history.send("a", 0)
    group_drained(history, "g", 0)
    history.send("b", 1)
    history.poll([0, "a"], [1, "b"])
    history.add(3, "ok", "receive", {Q: [[0, "a"]]})
    history.drained(2)
    assert check_total_queue(history.ops).valid is None


def test_a_group_that_all_have_left_is_not_asked() -> None:
    history = History()
    join(history, "g")
    history.send("a", 0)
    history.poll([0, "a"])
    history.drained(1)
    history.do(3, "leave", None)
    assert check_total_queue(history.ops).valid is True


def test_a_run_without_an_acknowledgement_is_unknown() -> None:
    history = History()
    history.send("a")
    assert check_total_queue(history.ops).valid is None


def test_a_message_that_is_sent_again_is_refused_only_if_each_send_was() -> None:
    history = History()
    frame = {"queue": Q, "messages": [["a", "- a"]]}
    history.do(0, "frames", {"frames": [frame]}, {"frames": [{"end": "fail"}]})
    history.do(
        0, "frames", {"frames": [frame]}, {"frames": [{"end": "ok", "queue": Q, "offset": 0}]}
    )
    history.poll([0, "a"])
    history.drained(1)
    assert check_total_queue(history.ops).valid is True
    history = History()
    for _ in range(2):
        history.do(0, "frames", {"frames": [frame]}, {"frames": [{"end": "fail"}]})
    history.send("b", 1)
    history.poll([0, "a"], [1, "b"])
    history.drained(2)
    assert_shows_only(check_total_queue(history.ops), "unexpected")


def test_a_message_of_a_frame_that_is_not_in_the_queue_is_lost() -> None:
    """[A,B] and [A,C] at once, both answered: C is nowhere."""
    history = History()
    asked = [{"queue": Q, "messages": [["A", "- A"], [other, ""]]} for other in ("B", "C")]
    told = [{"end": "ok", "queue": Q, "offset": 0} for _ in asked]
    history.do(0, "frames", {"frames": asked}, {"frames": told})
    history.poll([0, "A"], [1, "B"])
    history.drained(2)
    result = check_total_queue(history.ops)
    assert_shows_only(result, "lost")
    assert result.anomalies[0].text.startswith("C ")
