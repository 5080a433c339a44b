"""The members of a group of real processes, changed by `dledger members`, as its operator sees it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from dledger.cli import main as dledger_command
from dledger.runtime.commands import EXIT_UNKNOWN
from jepsen.ports import free_ports
from jepsen.processes import poll
from tests.integration.commands import Ended, run_here
from tests.integration.dledger.conftest import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.integration]


def order(cluster: Any, verb: str, *words: str, peers: str = "") -> Ended:
    """Run `dledger members VERB ...`."""
    where = ("--peers", peers or cluster.peers, "--secret-file", str(cluster.secret_file))
    return run_here(dledger_command, "members", verb, *where, "--timeout", str(PATIENCE_S), *words)


def done(cluster: Any, verb: str, *words: str) -> dict[str, Any]:
    """What an order printed that has succeeded; it is given again when a change of leaders has cut it off."""
    ended: list[Ended] = []

    def is_known() -> bool:
        ended[:] = [order(cluster, verb, *words, "--json")]
        return ended[0].returncode != EXIT_UNKNOWN

    assert poll(is_known, PATIENCE_S), ended[0].stderr
    assert ended[0].returncode == 0, ended[0].stderr
    found: dict[str, Any] = json.loads(ended[0].stdout)
    return found


def kinds(seen: dict[str, Any]) -> dict[str, str]:
    return {each["id"]: each["kind"] for each in seen["members"]}


def start_joining(cluster: Any, node_id: str, known: str) -> str:
    """Start a node that joins the group of these; where it is."""
    peer = f"{node_id}-127.0.0.1:{free_ports(1)[0]}"
    restart_joined(cluster, node_id, f"{known};{peer}")
    return peer


def restart_joined(cluster: Any, node_id: str, peers: str) -> None:
    before, cluster.peers = cluster.peers, peers
    cluster.start(node_id, "--join")
    cluster.peers = before


def test_one_node_grows_to_three_without_a_stop_and_back(cluster: Any) -> None:
    cluster.peers = cluster.peers.split(";")[0]
    cluster.start("n0")
    with cluster.client() as client:
        client.append(b"alone", retry_unknown=True)
    assert kinds(done(cluster, "list")) == {"n0": "voter"}
    one, peers = cluster.peers, {}
    for name in ("n1", "n2"):
        peer = peers[name] = start_joining(cluster, name, one)
        assert kinds(done(cluster, "add", peer))[name] == "voter"
        # Ordered twice, done once.
        again = done(cluster, "add", peer)
        assert again["index"] == done(cluster, "list")["index"]
    table = order(cluster, "list").stdout
    assert all(name in table for name in ("n0", "n1", "n2", "voter", "since entry"))
    # The first one alone is no majority any more, also if it is started as it was at first.
    for name in ("n0", "n1", "n2"):
        cluster.kill(name)
    cluster.start("n0")
    refused = cluster.run("append", "--data", "by a minority", "--timeout", "3")
    assert refused.returncode in {1, 3}
    restart_joined(cluster, "n2", f"{one};{peers['n2']}")
    assert cluster.run("append", "--data", "by two of three").returncode == 0
    for name in ("n1", "n2"):
        assert name not in kinds(done(cluster, "remove", name))
    cluster.kill("n2")
    assert cluster.run("append", "--data", "alone again").returncode == 0
    assert "alone" in cluster.run("get", "--index", "2").stdout


def test_a_dead_member_is_replaced_and_the_new_one_counts(cluster: Any) -> None:
    cluster.start_all()
    leader_id = cluster.leader_id()
    dead = next(name for name in ("n0", "n1", "n2") if name != leader_id)
    cluster.kill(dead)
    n3 = start_joining(cluster, "n3", cluster.peers)
    seen = done(cluster, "replace", dead, n3)
    alive = {"n0", "n1", "n2", "n3"} - {dead}
    assert kinds(seen) == dict.fromkeys(sorted(alive), "voter")
    cluster.kill(next(name for name in alive if name not in {leader_id, "n3"}))
    assert cluster.run("append", "--data", "with the new one").returncode == 0
    # What was dead comes back: it learns that it is no member, and disturbs nobody.
    cluster.start(dead)
    assert poll(lambda: "is no member any more: the members are" in cluster.log(dead), PATIENCE_S)
    assert poll(lambda: "removed" in cluster.log(dead), PATIENCE_S)
    assert cluster.run("append", "--data", "undisturbed").returncode == 0


def test_the_leader_is_removed_and_hands_over(cluster: Any) -> None:
    cluster.start_all()
    leader_id = cluster.leader_id()
    seen = done(cluster, "remove", leader_id)
    assert leader_id not in kinds(seen)
    assert cluster.run("append", "--data", "after").returncode == 0
    assert cluster.leader_id() != leader_id
    assert done(cluster, "remove", leader_id)["index"] >= seen["index"]


def test_a_learner_never_counts_until_it_is_promoted(cluster: Any) -> None:
    cluster.start_all()
    cluster.leader_id()
    n3 = start_joining(cluster, "n3", cluster.peers)
    assert kinds(done(cluster, "add", n3, "--learner"))["n3"] == "learner"
    # Asked at those of the beginning, it shows the new one, too: what that says of itself, and what the leader does.
    row = re.compile(rf"{n3.removeprefix('n3-')} *│ learner *│ yes")

    def is_told() -> bool:
        table = cluster.run("status").stdout
        return "(learner)" in table and row.search(table) is not None

    assert poll(is_told, PATIENCE_S), cluster.run("status").stdout
    for name in ("n0", "n1"):
        cluster.kill(name)
    assert cluster.run("append", "--data", "by a minority", "--timeout", "3").returncode in {1, 3}

    # Nobody leads: those that are there know the members still, and whom they hear.
    def is_shown() -> bool:
        seen = json.loads(cluster.run("status", "--json").stdout)
        heard = {each["id"]: each["is_heard"] for each in seen["log"]["members"]}
        hears = {each["id"]: each.get("hears") for each in seen["members"]}
        return (heard, hears) == (
            {"n0": False, "n1": False, "n2": True, "n3": True},
            {"n0": None, "n1": None, "n2": ["n2", "n3"], "n3": ["n2", "n3"]},
        )

    assert poll(is_shown, PATIENCE_S), cluster.run("status", "--json").stdout
    cluster.start("n0")
    assert cluster.run("append", "--data", "by two of three").returncode == 0
    assert kinds(done(cluster, "promote", "n3"))["n3"] == "voter"


def refusal(cluster: Any, words: tuple[str, ...], code: int, reason: str) -> tuple[int, str]:
    """Exit code and reason of a refusal; asked again, for within its time a slow machine may give no answer at all."""
    found = (-1, "")

    def is_refused() -> bool:
        nonlocal found
        ended = order(cluster, *words)
        found = (ended.returncode, reason if reason in ended.stderr else ended.stderr)
        return found == (code, reason)

    poll(is_refused, PATIENCE_S)
    return found


def test_what_makes_no_sense_is_refused_with_the_reason(cluster: Any) -> None:
    cluster.peers = cluster.peers.split(";")[0]
    cluster.start("n0")
    assert cluster.run("append").returncode == 0
    for words, code, reason in (
        (("remove", "n0"), 2, "n0 is the group's last voter"),
        (("promote", "n7"), 2, "n7 is no learner of the group (n0): add it first"),
        (("add", "n7"), 2, "is not of the form id-host:port"),
        (("add", cluster.peers.replace("n0", "n7")), 2, "is the address of n0, not of n7"),
        (("replace", "n5", "n7-127.0.0.1:1"), 2, "n5 is no member: n0"),
        (("add", "n7-127.0.0.1:1", "--wait", "0"), 3, "becomes a voter by itself once it has"),
        (("promote", "n7", "--timeout", "1"), 1, "n7 does not answer"),
    ):
        assert refusal(cluster, words, code, reason) == (code, reason)
    assert cluster.run("append", "--data", "one suffices still").returncode == 0
    assert kinds(done(cluster, "remove", "n7")) == {"n0": "voter"}


def test_a_node_with_mistyped_settings_says_so_and_joins_with_its_store_once_they_are_right(
    cluster: Any,
) -> None:
    cluster.start_all()
    cluster.leader_id()
    nobody, own, elsewhere = free_ports(3)
    n3 = f"n3-127.0.0.1:{own}"
    restart_joined(cluster, "n3", f"n0-127.0.0.1:{nobody};{n3}")
    assert poll(lambda: "ERROR group-not-found" in cluster.log("n3"), PATIENCE_S)
    assert "Connection refused" in cluster.log("n3")
    cluster.kill("n3")
    restart_joined(cluster, "n3", f"{cluster.peers};{n3}")
    assert poll(lambda: "not-added-yet" in cluster.log("n3"), PATIENCE_S)
    # Now the group is told another address than that at which it listens.
    waiting = ("add", f"n3-127.0.0.1:{elsewhere}", "--wait", "0")
    assert refusal(cluster, waiting, 3, "does not answer") == (3, "does not answer")
    assert poll(lambda: "ERROR not-reached-by-members" in cluster.log("n3"), PATIENCE_S)
    assert n3 in cluster.log("n3").rpartition("not-reached-by-members")[2]
    done(cluster, "remove", "n3")
    assert kinds(done(cluster, "add", n3))["n3"] == "voter"
