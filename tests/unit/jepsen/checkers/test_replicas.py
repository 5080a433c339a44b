from jepsen.checkers.replicas import check_replicas
from tests.unit.jepsen.checkers.histories import History, assert_shows_only


def digest(history: History, node: str, index: int, **digests: str) -> None:
    history.add("observer", "info", "digest", {"index": index, "digests": digests}, node)


def test_equal_replicas() -> None:
    history = History()
    for node in ("n0", "n1", "n2"):
        digest(history, node, 7, queues="aa", offsets="bb")
    digest(history, "n0", 8, queues="cc")
    result = check_replicas(history.ops, replicas=3)
    assert result.valid is True
    assert result.counts == {"compared": 1, "replicas": 3, "last_index": 7}


def test_replicas_that_differ() -> None:
    history = History()
    digest(history, "n0", 7, queues="aa", offsets="bb")
    digest(history, "n1", 7, queues="aa", offsets="b0")
    result = check_replicas(history.ops)
    assert_shows_only(result, "diverged")
    assert "offsets" in result.anomalies[0].text


def test_a_component_that_one_replica_lacks() -> None:
    history = History()
    digest(history, "n0", 7, queues="aa", offsets="bb")
    digest(history, "n1", 7, queues="aa")
    assert_shows_only(check_replicas(history.ops), "diverged")


def test_replicas_at_different_places_prove_nothing() -> None:
    history = History()
    digest(history, "n0", 7, queues="aa")
    digest(history, "n1", 8, queues="bb")
    assert check_replicas(history.ops).valid is None


def test_a_replica_that_was_never_compared_leaves_it_unknown() -> None:
    history = History()
    digest(history, "n0", 7, queues="aa")
    digest(history, "n1", 7, queues="aa")
    assert check_replicas(history.ops, replicas=3).valid is None


def test_a_node_that_has_found_itself_that_it_differed() -> None:
    """What it was sent since makes it equal again; that it was not stays a broken promise."""
    history = History()
    digest(history, "n0", 7, queues="aa")
    value = {"index": 7, "digests": {"queues": "aa"}, "alarm": "queues differ at 3"}
    history.add("observer", "info", "digest", value, "n1")
    result = check_replicas(history.ops)
    assert_shows_only(result, "alarm")
    assert "queues differ at 3" in result.anomalies[0].text


def test_a_node_that_tells_two_digests_of_one_place() -> None:
    history = History()
    for node in ("n0", "n1"):
        digest(history, node, 7, queues="aa")
    digest(history, "n1", 7, queues="bb")
    assert_shows_only(check_replicas(history.ops), "diverged")
