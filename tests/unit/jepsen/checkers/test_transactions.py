import pytest

from jepsen.checkers.transactions import check_transactions
from tests.unit.jepsen.checkers.histories import History, Q, assert_shows_only


def txn(history: History, key: str, decision: str, type_: str = "ok", **told: object) -> None:
    value = {"key": key, "decision": decision}
    history.do(0, "txn", value, {**value, **told}, type_)  # type: ignore[arg-type]


def test_transactions_as_they_should_be() -> None:
    history = History()
    txn(history, "a", "commit", confirmed="commit")
    txn(history, "b", "rollback")
    txn(history, "c", "none")
    txn(history, "d", "commit", "info")  # unknown, and stored
    txn(history, "e", "commit", "info")  # unknown, and not stored
    txn(history, "f", "commit", "fail")
    history.send("plain", 2)
    history.poll([0, "a"], [1, "d"], [2, "plain"])
    history.add("observer", "info", "checked", {"key": "c"})
    history.drained(3)
    result = check_transactions(history.ops)
    assert result.valid is True
    assert result.counts == {
        "committed": 1,
        "rolled_back": 1,
        "undecided": 1,
        "refused": 1,
        "unknown": 2,
        "checks": 1,
        "received": 2,
        "lost": 0,
        "unseen": 0,
    }


def test_a_committed_message_that_never_came() -> None:
    history = History()
    txn(history, "a", "commit")
    history.drained(0)
    assert_shows_only(check_transactions(history.ops), "lost")


def test_a_committed_message_that_nobody_looked_for_proves_nothing() -> None:
    history = History()
    txn(history, "a", "commit")
    assert check_transactions(history.ops).valid is None


def test_queues_that_are_gone_have_lost_what_was_committed() -> None:
    history = History()
    txn(history, "a", "commit")
    txn(history, "b", "rollback")
    for queue in (Q, "orders/broker-a/1"):
        history.poll(queue=queue)
        history.drained(0, queue=queue)
    assert_shows_only(check_transactions(history.ops), "lost")


def test_reads_that_nobody_answered_prove_nothing() -> None:
    history = History()
    txn(history, "a", "commit")
    history.do(9, "poll", None, type_="fail")
    history.do(9, "drained", None, type_="fail")
    assert check_transactions(history.ops).valid is None


def test_one_queue_of_two_that_was_read_to_its_end_proves_nothing() -> None:
    history = History()
    txn(history, "a", "commit")
    history.poll(queue="orders/broker-a/1")
    history.drained(0)
    result = check_transactions(history.ops)
    assert result.valid is None
    assert result.counts["unseen"] == 1


def test_a_committed_message_at_two_places() -> None:
    history = History()
    txn(history, "a", "commit")
    history.poll([0, "a"], [1, "a"])
    assert_shows_only(check_transactions(history.ops), "duplicate")


def test_a_message_handed_out_again_is_not_twice() -> None:
    history = History()
    txn(history, "a", "commit")
    history.poll([0, "a"])
    history.poll([0, "a"])
    assert check_transactions(history.ops).valid is True


@pytest.mark.parametrize(
    ("decision", "type_", "kind"),
    [
        ("rollback", "ok", "rolled-back-visible"),
        ("rollback", "info", "rolled-back-visible"),
        ("none", "ok", "undecided-visible"),
        ("commit", "fail", "aborted-read"),
    ],
)
def test_a_message_that_nobody_may_see(decision: str, type_: str, kind: str) -> None:
    history = History()
    txn(history, "good", "commit")
    txn(history, "a", decision, type_)
    history.poll([0, "good"], [1, "a"])
    assert_shows_only(check_transactions(history.ops), kind)


def test_a_message_that_nobody_sent() -> None:
    history = History()
    txn(history, "a", "commit")
    history.poll([0, "a"], [1, "ghost"])
    assert_shows_only(check_transactions(history.ops), "unexpected")


def test_a_half_message_that_was_read_before_its_decision() -> None:
    history = History()
    history.begin(0, "txn", {"key": "a", "decision": "commit"})
    history.poll([0, "a"])
    history.end(0, {"key": "a", "decision": "commit", "decided_ns": history.now_ns})
    assert_shows_only(check_transactions(history.ops), "half-visible")


def test_a_message_that_was_read_once_it_was_decided() -> None:
    history = History()
    history.begin(0, "txn", {"key": "a", "decision": "commit"})
    decided_ns = history.now_ns
    history.poll([0, "a"])
    history.end(0, {"key": "a", "decision": "commit", "decided_ns": decided_ns})
    assert check_transactions(history.ops).valid is True


def test_a_broker_that_confirms_something_else() -> None:
    history = History()
    txn(history, "a", "commit", confirmed="rollback")
    history.poll([0, "a"])
    assert_shows_only(check_transactions(history.ops), "contradiction")


def test_a_run_without_a_commit_is_unknown() -> None:
    history = History()
    txn(history, "b", "rollback")
    history.poll(queue=Q)
    assert check_transactions(history.ops).valid is None
