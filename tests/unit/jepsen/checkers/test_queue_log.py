from hypothesis import given
from hypothesis import strategies as st

from jepsen.checkers.queue_log import check_queue_log
from tests.unit.jepsen.checkers.histories import History, Q, assert_shows_only


def test_a_queue_that_is_a_log() -> None:
    history = History()
    history.send("a", 0)
    history.begin(1, "send", {"key": "b", "queue": Q})
    history.begin(2, "send", {"key": "c", "queue": Q})
    history.end(2, {"key": "c", "queue": Q, "offset": 2})
    history.end(1, {"key": "b", "queue": Q, "offset": 1})  # at the same time: any order
    history.poll([0, "a"])
    history.poll([1, "b"], [2, "c"])
    history.drained(3)
    result = check_queue_log(history.ops)
    assert result.valid is True
    assert result.counts["read"] == 3


def test_two_acknowledgements_of_one_offset() -> None:
    history = History()
    history.begin(1, "send", {"key": "a", "queue": Q})
    history.begin(2, "send", {"key": "b", "queue": Q})
    history.end(1, {"key": "a", "queue": Q, "offset": 4})
    history.end(2, {"key": "b", "queue": Q, "offset": 4})
    assert "inconsistent-offset" in {one.kind for one in check_queue_log(history.ops).anomalies}


def test_an_offset_that_holds_another_message_for_a_later_reader() -> None:
    history = History()
    history.send("a", 0)
    history.poll([0, "a"], [1, "b"], process=8)
    history.poll([0, "a"], [1, "c"], process=9)
    assert_shows_only(check_queue_log(history.ops), "inconsistent-offset")


def test_an_acknowledged_message_that_readers_went_past() -> None:
    history = History()
    history.send("a", 0)
    history.send("b", 1)
    history.poll([1, "b"])
    assert_shows_only(check_queue_log(history.ops), "lost")


def test_an_acknowledged_message_beyond_the_end_of_a_drained_queue() -> None:
    history = History()
    history.send("a", 0)
    history.send("b", 1)
    history.poll([0, "a"])
    history.drained(1)
    assert_shows_only(check_queue_log(history.ops), "lost")


def test_a_message_that_was_read_once_and_is_gone_in_the_end() -> None:
    history = History()
    history.send("a", 0)
    history.do(1, "send", {"key": "b", "queue": Q}, type_="info")
    history.poll([0, "a"], [1, "b"])
    history.drained(1)
    assert_shows_only(check_queue_log(history.ops), "lost")  # b: it stood there
    history.drained(0)
    assert check_queue_log(history.ops).counts["lost"] == 2


def test_what_came_after_a_queue_was_read_to_its_end_may_stand_beyond_it() -> None:
    history = History()
    history.drained(0)
    history.send("a", 0)
    history.poll([0, "a"])
    assert check_queue_log(history.ops).valid is True


def test_reads_that_nobody_answered_lose_nothing() -> None:
    history = History()
    history.send("a", 0)
    history.do(9, "poll", None, type_="fail")
    history.do(9, "drained", None, type_="fail")
    assert check_queue_log(history.ops).counts["lost"] == 0


def test_a_message_beyond_everything_that_was_read_is_only_unseen() -> None:
    history = History()
    history.send("a", 0)
    history.send("b", 1)
    history.poll([0, "a"])
    result = check_queue_log(history.ops)
    assert result.valid is True
    assert result.counts["unseen"] == 1


def test_an_aborted_read() -> None:
    history = History()
    history.send("a", 0)
    history.do(0, "send", {"key": "b", "queue": Q}, type_="fail")
    history.poll([0, "a"], [1, "b"])
    assert_shows_only(check_queue_log(history.ops), "aborted-read")


def test_a_message_at_two_offsets_under_one_key() -> None:
    history = History()
    history.send("a", 0, uniq="K1")
    history.poll([0, "a", "K1"], [1, "a", "K1"])
    assert_shows_only(check_queue_log(history.ops), "duplicate")


def test_a_message_at_two_offsets_without_known_keys() -> None:
    history = History()
    history.send("a", 0)
    history.poll([0, "a"], [1, "a"])
    assert_shows_only(check_queue_log(history.ops), "duplicate")


def test_a_message_sent_again_under_another_key_is_the_clients_doing() -> None:
    history = History()
    history.send("a", 1, uniq="K2")
    history.poll([0, "a", "K1"], [1, "a", "K2"])
    result = check_queue_log(history.ops)
    assert result.valid is True
    assert result.counts["rekeyed"] == 1


def test_a_later_send_before_an_earlier_one() -> None:
    history = History()
    history.send("a", 5, process=1)
    history.send("b", 3, process=2)
    assert_shows_only(check_queue_log(history.ops), "nonmonotonic-send")


def test_a_batch_out_of_order() -> None:
    history = History()
    value = {"queue": Q, "keys": ["a", "b"]}
    history.do(0, "send-batch", value, {**value, "offsets": [1, 0]})
    assert_shows_only(check_queue_log(history.ops), "nonmonotonic-send-internal")


def test_a_batch_in_order() -> None:
    history = History()
    value = {"queue": Q, "keys": ["a", "b"]}
    history.do(0, "send-batch", value, {**value, "offsets": [0, 1], "uniqs": ["K1", "K2"]})
    assert check_queue_log(history.ops).valid is True


def _three() -> History:
    history = History()
    for offset, key in enumerate("abc"):
        history.send(key, offset)
    history.poll([0, "a"], [1, "b"], [2, "c"], process=7)
    return history


def test_a_reader_that_goes_back() -> None:
    history = _three()
    history.poll([0, "a"], [1, "b"])
    history.poll([1, "b"], [2, "c"])
    assert_shows_only(check_queue_log(history.ops), "nonmonotonic-poll")


def test_a_reader_that_says_that_it_goes_elsewhere() -> None:
    history = _three()
    history.poll([0, "a"], [1, "b"], [2, "c"])
    history.do(9, "assign", None)
    history.poll([1, "b"], [2, "c"])
    assert check_queue_log(history.ops).valid is True


def test_a_push_consumer_may_be_handed_something_again_but_must_not_be_led_past_anything() -> None:
    history = _three()
    for offset, key in ((0, "a"), (1, "b"), (1, "b"), (2, "c")):
        history.add(9, "ok", "receive", {Q: [[offset, key]]})
    result = check_queue_log(history.ops)
    assert result.valid is True
    assert result.counts["redelivered"] == 1


def test_a_push_consumer_that_is_handed_first_what_stands_later() -> None:
    history = _three()
    history.add(9, "ok", "receive", {Q: [[1, "b"]]})
    history.add(9, "ok", "receive", {Q: [[0, "a"]]})
    assert_shows_only(check_queue_log(history.ops), "nonmonotonic-poll")


def test_a_push_consumer_that_is_led_past_a_message() -> None:
    history = _three()
    history.add(9, "ok", "receive", {Q: [[0, "a"]]})
    history.add(9, "ok", "receive", {Q: [[2, "c"]]})
    assert_shows_only(check_queue_log(history.ops), "poll-skip")


def test_an_answer_that_goes_back() -> None:
    history = _three()
    history.poll([1, "b"], [0, "a"], [1, "b"], [2, "c"])
    assert_shows_only(check_queue_log(history.ops), "nonmonotonic-poll-internal")


def test_a_reader_that_skips() -> None:
    history = _three()
    history.poll([0, "a"])
    history.poll([2, "c"])
    assert_shows_only(check_queue_log(history.ops), "poll-skip")


def test_an_answer_that_skips() -> None:
    history = _three()
    history.poll([0, "a"], [2, "c"])
    assert_shows_only(check_queue_log(history.ops), "poll-skip-internal")


def test_offsets_that_nobody_knows_may_be_passed() -> None:
    history = History()
    history.send("a", 0)
    history.send("c", 2)
    history.poll([0, "a"], [2, "c"])
    assert check_queue_log(history.ops).valid is True


def test_the_worst_lag_counts_from_the_acknowledgement_to_the_question() -> None:
    history = History()
    history.send("a", 0)
    history.send("b", 1)
    history.wait(2)
    history.poll([0, "a"])
    lag = check_queue_log(history.ops).counts["worst_lag_s"]
    assert lag == 2.01


def test_what_is_read_anew_at_the_end_is_not_late() -> None:
    history = History()
    history.add("observer", "info", "phase", "breaking")
    history.send("a", 0)
    history.send("b", 1)
    history.add("observer", "info", "phase", "reading")
    history.wait(2)
    history.poll([0, "a"])
    assert check_queue_log(history.ops).counts["worst_lag_s"] == 0


def test_a_run_without_an_acknowledgement_is_unknown() -> None:
    assert check_queue_log(History().ops).valid is None


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=8),
    st.lists(st.integers(1, 6), min_size=1, max_size=8),
)
def test_any_way_to_walk_along_a_log_is_valid_and_any_hole_is_found(
    batches: list[int], steps: list[int]
) -> None:
    total = sum(batches)
    history = History()
    for offset in range(total):
        history.send(f"p-{offset}", offset)
    at = 0
    for step in [*steps, total]:
        row = [[offset, f"p-{offset}"] for offset in range(at, min(at + step, total))]
        history.poll(*row)
        at += len(row)
    history.drained(total)
    assert check_queue_log(history.ops).valid is True
    holed = History()
    holed.ops = [op for op in history.ops if op.f != "poll"]
    holed.now_ns = history.now_ns
    holed.ops = [op for op in holed.ops if op.f == "send"]
    missing = batches[0] - 1
    holed.poll(*[[o, f"p-{o}"] for o in range(total) if o != missing])
    holed.drained(total)
    found = {one.kind for one in check_queue_log(holed.ops).anomalies}
    assert "lost" in found
    assert found <= {"lost", "poll-skip-internal"}


def test_a_message_that_is_sent_again_is_answered_with_its_first_place() -> None:
    history = History()
    frame = {"queue": Q, "messages": [["a", "- a"]]}
    told = {"end": "ok", "queue": Q, "offset": 0}
    history.do(0, "frames", {"frames": [frame]}, {"frames": [{"end": "info"}]})
    history.send("b", 1)
    history.do(0, "frames", {"frames": [frame]}, {"frames": [told]})
    history.poll([0, "a"], [1, "b"])
    assert check_queue_log(history.ops).valid is True


def test_a_message_that_is_sent_again_and_stands_twice() -> None:
    history = History()
    frame = {"queue": Q, "messages": [["a", "- a"]]}
    told = {"end": "ok", "queue": Q, "offset": 1}
    history.do(0, "frames", {"frames": [frame]}, {"frames": [{"end": "info"}]})
    history.do(0, "frames", {"frames": [frame]}, {"frames": [told]})
    history.poll([0, "a"], [1, "a"])
    assert_shows_only(check_queue_log(history.ops), "duplicate")
