from jepsen.checkers.ordered import check_ordered
from tests.unit.jepsen.checkers.histories import History, Q, assert_shows_only


def process(history: History, member: int, key: str, offset: int) -> None:
    history.do(member, "process", {"queue": Q, "offset": offset, "key": key})


def test_keys_in_order() -> None:
    history = History()
    for number in range(3):
        history.send(f"k1-{number}", number)
    history.send("k1-3")  # unknown: it may come late
    history.send("k1-4", 3)
    for number in (0, 1, 2, 1, 2):  # delivered again
        process(history, 8, f"k1-{number}", number)
    process(history, 9, "k1-4", 3)
    process(history, 9, "k1-3", 4)
    result = check_ordered(history.ops)
    assert result.valid is True
    assert result.counts["redelivered"] == 2
    assert result.counts["members"] == 2


def test_a_message_after_a_later_one() -> None:
    history = History()
    history.send("k1-0", 0)
    history.send("k1-1", 1)
    process(history, 8, "k1-1", 1)
    process(history, 8, "k1-0", 0)
    assert_shows_only(check_ordered(history.ops), "order")


def test_a_message_of_another_key_that_is_handed_out_after_a_later_one_of_its_queue() -> None:
    history = History()
    history.send("k1-0", 0)
    history.send("k2-0", 1)
    process(history, 8, "k2-0", 1)
    process(history, 9, "k1-0", 0)
    assert_shows_only(check_ordered(history.ops), "overtaken")


def test_a_message_that_was_left_out() -> None:
    history = History()
    history.send("k1-0", 0)
    history.send("k1-1", 1)
    process(history, 8, "k1-1", 1)
    assert_shows_only(check_ordered(history.ops), "gap")


def test_keys_are_apart() -> None:
    history = History()
    history.send("k1-5", 0)
    history.send("k2-0", 1)
    process(history, 8, "k1-5", 0)
    process(history, 8, "k2-0", 1)
    assert check_ordered(history.ops).valid is True


def test_the_tail_is_unseen() -> None:
    history = History()
    history.send("k1-0", 0)
    history.send("k1-1", 1)
    process(history, 8, "k1-0", 0)
    result = check_ordered(history.ops)
    assert result.valid is True
    assert result.counts["unseen"] == 1


def test_two_members_at_one_queue() -> None:
    history = History()
    history.begin(8, "process", {"queue": Q, "offset": 0, "key": "k1-0"})
    history.begin(9, "process", {"queue": Q, "offset": 1, "key": "k1-1"})
    history.end(9)
    history.end(8)
    assert_shows_only(check_ordered(history.ops), "overlap")


def test_two_members_at_two_queues() -> None:
    history = History()
    history.begin(8, "process", {"queue": Q, "offset": 0, "key": "k1-0"})
    history.begin(9, "process", {"queue": "orders/broker-a/1", "offset": 1, "key": "k2-1"})
    history.end(9)
    history.end(8)
    assert check_ordered(history.ops).valid is True


def test_one_member_with_a_process_for_each_queue() -> None:
    history = History()
    history.begin(8, "process", {"queue": Q, "offset": 0, "key": "k1-0", "member": "m1"})
    history.begin(9, "process", {"queue": Q, "offset": 1, "key": "k1-1", "member": "m1"})
    assert check_ordered(history.ops).valid is True


def test_a_member_that_was_killed_at_work_holds_nothing_for_ever() -> None:
    history = History()
    history.begin(8, "process", {"queue": Q, "offset": 0, "key": "k1-0"})
    history.end(8, type_="info")
    process(history, 9, "k1-0", 0)
    assert check_ordered(history.ops).valid is True


def test_a_run_in_which_nothing_was_processed_is_unknown() -> None:
    assert check_ordered(History().ops).valid is None
