"""Several groups in one history: a loss in one of three is found and named, and nothing is in two of them."""

from __future__ import annotations

from functools import partial

import pytest

from jepsen.catalogue import workload_entry
from jepsen.checkers.groups import check_groups
from jepsen.checkers.leaders import check_leaders
from jepsen.checkers.messages import read_queue_history
from jepsen.checkers.queue_log import check_queue_log
from jepsen.checkers.replicas import check_replicas
from jepsen.checkers.results import Checker
from jepsen.checkers.total_queue import check_total_queue
from jepsen.history.ops import FIRST_LISTENER, OBSERVER
from tests.unit.jepsen.checkers.histories import History, assert_shows_only, kinds

GROUPS = ("broker-a", "broker-b", "broker-c")
THREE = partial(check_groups, groups=3)


def queue(group: str) -> str:
    return f"orders/{group}/0"


def three_groups(*, lost: str = "") -> History:
    """Two messages for each group; the second of one of them is acknowledged and gone."""
    history = History()
    for group in GROUPS:
        for offset in (0, 1):
            history.send(f"{group}-{offset}", offset, queue=queue(group), uniq=f"{group}{offset}")
    for group in GROUPS:
        rows = [[offset, f"{group}-{offset}", f"{group}{offset}"] for offset in (0, 1)]
        history.poll(*rows[: 1 if group == lost else 2], queue=queue(group))
        history.drained(1 if group == lost else 2, queue=queue(group))
    return history


def test_each_group_is_counted_and_so_are_all() -> None:
    result = THREE(three_groups().ops)
    assert result.valid is True
    tally = {"acknowledged": 2, "read": 2, "lost": 0}
    assert result.counts == {
        "groups": 3,
        "acknowledged": 6,
        "read": 6,
        "lost": 0,
        "sent_again": 0,
        "by_group": dict.fromkeys(GROUPS, tally),
    }


@pytest.mark.parametrize("lost", GROUPS)
@pytest.mark.parametrize("check", [check_total_queue, check_queue_log])
def test_a_loss_in_one_of_three_groups_is_found_and_named_with_its_group(
    check: Checker, lost: str
) -> None:
    ops = three_groups(lost=lost).ops
    result = check(ops)
    assert_shows_only(result, "lost")
    assert lost in result.anomalies[0].text
    by_group = THREE(ops).counts["by_group"]
    assert isinstance(by_group, dict)
    assert {group: tally["lost"] for group, tally in by_group.items()} == {
        group: int(group == lost) for group in GROUPS
    }


def test_a_message_in_two_groups_is_found() -> None:
    history = three_groups()
    history.poll([2, "broker-a-0", "broker-a0"], queue=queue("broker-b"))
    result = THREE(history.ops)
    assert_shows_only(result, "two-groups")
    assert "orders/broker-a/0 and orders/broker-b/0" in result.anomalies[0].text


def test_what_a_client_sent_to_another_group_under_another_key_is_another_message() -> None:
    history = three_groups()
    history.poll([2, "broker-a-0", "another"], queue=queue("broker-b"))
    result = THREE(history.ops)
    assert (result.valid, result.counts["sent_again"]) == (True, 1)


def test_a_group_that_acknowledged_nothing_was_not_tested() -> None:
    history = History()
    history.send("m0", 0, queue=queue("broker-a"))
    result = THREE(history.ops)
    assert (result.valid, result.why_unknown) == (None, "1 of 3 groups acknowledged a message")


def test_a_queue_without_a_group_is_named_by_what_others_say_of_the_message() -> None:
    history = three_groups()
    asked = {"key": "cpp0", "queue": None, "client": "cpp"}
    history.do(1, "send", asked, {**asked, "offset": 2})
    rows = {"orders//0": [[1, "broker-b-1", "broker-b1"], [2, "cpp0", "U"]]}
    history.add(FIRST_LISTENER, "ok", "receive", rows)
    history.poll([2, "cpp0", "U"], queue=queue("broker-c"))
    history.drained(3, queue=queue("broker-c"))
    found = read_queue_history(history.ops)
    assert [(send.queue, send.offset) for send in found.sends if send.key == "cpp0"] == [
        (queue("broker-c"), 2)
    ]
    pushed = next(poll for poll in found.polls if poll.process == FIRST_LISTENER)
    assert {message.key: message.queue for message in pushed.messages} == {
        "broker-b-1": queue("broker-b"),
        "cpp0": queue("broker-c"),
    }
    for check in (check_total_queue, check_queue_log, THREE):
        assert check(history.ops).valid is True


def test_a_message_of_an_unknown_queue_is_lost_once_every_queue_was_drained() -> None:
    history = three_groups()
    asked = {"key": "cpp0", "queue": None, "client": "cpp"}
    history.do(1, "send", asked, {**asked, "offset": 2})
    for group in GROUPS[:2]:
        history.drained(2, queue=queue(group))
    unsure = check_total_queue(history.ops)
    assert (unsure.valid, unsure.counts["unseen"]) == (None, 1)
    history.drained(2, queue=queue(GROUPS[2]))
    assert kinds(check_total_queue(history.ops)) == ["lost"]


def digests(*differing: str) -> History:
    """Digests of three members of each group, all at index 7; other groups hold other things."""
    history = History()
    for group in GROUPS:
        for node in ("n0", "n1", "n2"):
            own = "odd" if group in differing and node == "n1" else group
            value = {"index": 7, "digests": {"queues": own}, "group": group}
            history.add(OBSERVER, "info", "digest", value, f"{node}/{group}")
    return history


def test_replicas_are_compared_within_their_group() -> None:
    result = check_replicas(digests().ops, replicas=3, groups=3)
    assert (result.valid, result.counts) == (True, {"compared": 3, "replicas": 9, "last_index": 7})
    differing = check_replicas(digests("broker-b").ops, replicas=3, groups=3)
    assert set(kinds(differing)) == {"diverged"}
    assert all("/broker-b" in one.text for one in differing.anomalies)


def test_a_group_whose_replicas_were_not_compared_leaves_it_unknown() -> None:
    ops = [op for op in digests().ops if not op.node.endswith("/broker-c")]
    result = check_replicas(ops, replicas=3, groups=3)
    assert (result.valid, result.why_unknown) == (
        None,
        "replicas of 2 of 3 groups could be compared",
    )
    one_gone = [op for op in digests().ops if op.node != "n2/broker-b"]
    result = check_replicas(one_gone, replicas=3, groups=3)
    assert (result.valid, result.why_unknown) == (
        None,
        "2 of 3 replicas of broker-b could be compared",
    )


def test_a_term_has_one_leader_in_each_group() -> None:
    history = History()
    for group, node in (("broker-a", "n0"), ("broker-b", "n1"), ("broker-a", "n0")):
        history.add(OBSERVER, "info", "leader", {"term": 2, "group": group}, node)
    assert check_leaders(history.ops).valid is True
    history.add(OBSERVER, "info", "leader", {"term": 2, "group": "broker-b"}, "n2")
    result = check_leaders(history.ops)
    assert_shows_only(result, "two-leaders")
    assert result.anomalies[0].text == "term 2 of broker-b was led by n1 and by n2"


def test_a_group_in_which_no_leader_was_seen_is_not_judged() -> None:
    history = History()
    for group in ("broker-a", "broker-c"):
        history.add(OBSERVER, "info", "leader", {"term": 2, "group": group}, "n0")
    result = check_leaders(history.ops, groups=3)
    assert (result.valid, result.why_unknown) == (None, "a leader was seen in 2 of 3 groups")
    assert check_leaders(history.ops, groups=2).valid is True


def test_changes_of_leader_are_those_of_all_groups() -> None:
    history = History()
    history.add(OBSERVER, "info", "leader", {"term": 1, "group": "broker-a"}, "n0")
    history.add(OBSERVER, "info", "leader", {"term": 5, "group": "broker-b"}, "n1")
    history.add(OBSERVER, "info", "phase", "breaking")
    history.add(OBSERVER, "info", "leader", {"term": 2, "group": "broker-a"}, "n1")
    history.add(OBSERVER, "info", "leader", {"term": 7, "group": "broker-b"}, "n0")
    history.add(OBSERVER, "info", "phase", "healing")
    assert check_leaders(history.ops).counts == {"changes": 2, "terms": 3}


def test_transactions_put_to_use_the_groups_in_which_they_are_read() -> None:
    history = History()
    for group in GROUPS:
        history.do(1, "txn", {"key": group, "decision": "commit"}, {})
        history.poll([0, group], queue=queue(group))
    assert THREE(history.ops).valid is True
    history = History()
    history.do(1, "txn", {"key": "lonely", "decision": "commit"}, {})
    history.poll([0, "lonely"], queue=queue("broker-a"))
    assert THREE(history.ops).why_unknown == "1 of 3 groups acknowledged a message"


@pytest.mark.parametrize("silent", ["", "broker-c"])
def test_commits_of_offsets_put_to_use_the_groups_that_take_them(silent: str) -> None:
    history = History()
    for number, group in enumerate(GROUPS):
        name = f"{group}-g{number}"
        history.do(1, "read", [name, 0], [name, -1])
        if group == silent:
            history.do(1, "commit", [name, [3, 0]], type_="fail")
        else:
            history.do(1, "commit", [name, [3, 0]], [name, None])
    result = workload_entry("offsets").check_groups(history.ops, groups=3)
    why = "2 of 3 groups acknowledged a commit" if silent else ""
    assert (result.name, result.valid, result.why_unknown) == ("groups", None if why else True, why)
    assert result.counts["acknowledged"] == (2 if silent else 3)
