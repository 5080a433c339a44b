"""The route while leaders come and go, looked at every few milliseconds: clients always find somebody to send to."""

from __future__ import annotations

import json
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest

from broker.server.requests.request import HOLD_MS
from broker.server.route_waits import ROUTE_WAIT_S
from jepsen.processes import Group, Process, poll
from tests.integration.broker.conftest import pull_ext, send_ext
from tests.integration.broker.route_watch import RouteWatch, Sighting, ask, leads, raft_of
from tests.integration.broker.test_registration import created

pytestmark = [pytest.mark.integration, pytest.mark.slow]

WAIT_S = 120.0
NEW_LEADER_S = 0.9
"""From the first answer of a node that it leads, to the route that names it. What waits for a timer takes a second."""

ANSWERS_MAX = 100
"""Or so many answers of a node to a plain question, where those take longer: so slow is this machine."""

COMMITS_MAX = 5
"""Or as long as so many entries take to be committed: a leader has to commit one before it serves."""

HELD_S = HOLD_MS / 1000
SETTINGS = "mappedFileSizeCommitLog=16777216\nstopForwardSec=1\n"
TOPIC = "Watched"
OFFSET = {"consumerGroup": "G", "topic": TOPIC, "queueId": "0"}
BEAT = {
    "clientID": "a client",
    "consumerDataSet": [],
    "producerDataSet": [{"groupName": "P"}],
}


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with Group(tmp_path_factory.mktemp("group"), name_servers=2, settings=SETTINGS) as group:
        group.start()
        group.wait_listening()
        leader = wait_leader(group)
        assert held(leader.address, 17, created(TOPIC)) == 0
        yield group


def held(address: str, code: int, ext: dict[str, str], body: bytes = b"") -> int:
    """Ask, and again if no leader came in all the time that a broker holds a request: so slow may a machine be."""
    until_s = time.monotonic() + WAIT_S
    while True:
        asked_s = time.monotonic()
        answered = ask(address, code, ext, body)[0]
        now_s = time.monotonic()
        if answered == 0 or now_s - asked_s < HELD_S or now_s > until_s:
            return answered


def wait_leader(group: Group, *, other_than: Process | None = None) -> Process:
    """Wait until a node says that it leads."""
    found: list[Process] = []

    def is_found() -> bool:
        found[:] = [node for node in group.nodes if node is not other_than and leads(node)]
        return bool(found)

    assert poll(is_found, WAIT_S, interval_s=0.002), "nobody leads"
    return found[0]


def wait_followed(
    group: Group, victim: Process, watches: Sequence[RouteWatch]
) -> tuple[Process, float]:
    """Wait until every name server shows a new leader; the leader, and when it was first seen to lead.

    On a busy machine the first one that leads may lose the lead before all have heard of it.
    """
    led_s: dict[str, float] = {}
    shown: set[str] = set()

    def is_followed() -> bool:
        for node in group.nodes:
            if node is not victim and leads(node):
                led_s.setdefault(node.address, time.monotonic())
        seen = [one.now for one in watches]
        shown.clear()
        shown.update((one.leader or "") if one is not None else "" for one in seen)
        return len(shown) == 1 and shown <= led_s.keys()

    assert poll(is_followed, WAIT_S, interval_s=0.002), [watch.now for watch in watches]
    (address,) = shown
    return group.by_address[address], led_s[address]


def seconds_of(asking: Callable[[], object]) -> float:
    """How long it takes."""
    begun_s = time.monotonic()
    asking()
    return time.monotonic() - begun_s


def has_left(node: Process, seen: Sighting) -> bool:
    """Whether clients hear nothing of a node."""
    return node.address not in (seen.route or {}).values()


def has_ended(node: Process) -> bool:
    """Whether the process of a node has ended."""
    return node.pid is None


def all_show(watches: Sequence[RouteWatch], is_so: Callable[[Sighting], bool]) -> bool:
    """Wait until what every name server answers is so."""
    return poll(lambda: all(one.now is not None and is_so(one.now) for one in watches), WAIT_S)


@contextmanager
def watched(group: Group) -> Iterator[list[RouteWatch]]:
    """Look at the routes of a group that is whole; at the end there must have been no gap."""
    with ExitStack() as stack:
        watches = [RouteWatch(server.address, TOPIC) for server in group.name_servers]
        for watch in watches:
            stack.enter_context(watch)
        wait_whole(group, watches)
        for watch in watches:
            watch.forget()
        yield watches
        gaps = {watch.name_server: watch.gaps() for watch in watches}
    assert gaps == {watch.name_server: [] for watch in watches}


def wait_whole(group: Group, watches: Sequence[RouteWatch]) -> None:
    """Wait until every name server lists all nodes, and the one that leads under id 0."""
    everybody = set(group.by_address)

    def is_whole() -> bool:
        leaders = {node.address for node in group.nodes if leads(node)}
        now = [watch.now for watch in watches]
        return all(
            seen is not None
            and {seen.leader} == leaders
            and set((seen.cluster or {}).values()) == everybody
            for seen in now
        )

    assert poll(is_whole, WAIT_S), [watch.now for watch in watches]


def test_a_killed_leader_leaves_no_gap_and_the_next_one_is_there_at_once(group: Group) -> None:
    late_s, answers_s, commits_s = list[float](), list[float](), list[float]()
    for _ in range(3):
        with watched(group) as watches:
            victim = wait_leader(group)
            victim.kill()
            leader, led_s = wait_followed(group, victim, watches)
            late_s += [watch.since(leader.address) - led_s for watch in watches]
            # Nobody is listed who is dead; each of the others under one id.
            alive = sorted(node.address for node in group.nodes if node is not victim)
            answers_s.append(seconds_of(lambda: leads(leader)))  # noqa: B023
            commit = {**OFFSET, "commitOffset": "0"}
            commits_s.append(seconds_of(lambda: ask(leader.address, 15, commit)))  # noqa: B023
            for watch in watches:
                assert watch.now is not None
                assert sorted((watch.now.route or {}).values()) == alive
            victim.start()
            wait_whole(group, watches)
    allowed_s = max(
        NEW_LEADER_S,
        ANSWERS_MAX * statistics.median(answers_s),
        COMMITS_MAX * statistics.median(commits_s),
    )
    assert statistics.median(late_s) <= allowed_s, late_s


def test_planned_stops_leave_no_gap(group: Group) -> None:
    for is_leader in (True, False):
        with watched(group) as watches:
            leader = wait_leader(group)
            node = next(each for each in group.nodes if (each is leader) == is_leader)
            node.send_signal(signal.SIGTERM)
            assert poll(partial(has_ended, node), WAIT_S)
            assert all_show(watches, partial(has_left, node))
            node.start()
            wait_whole(group, watches)


def test_a_leader_that_stands_still_leaves_no_gap_and_does_not_take_the_route_back(
    group: Group,
) -> None:
    with watched(group) as watches:
        victim = wait_leader(group)
        victim.pause()
        try:
            leader, _ = wait_followed(group, victim, watches)
            term = int(raft_of(leader.address)["raftTerm"])
            for watch in watches:
                watch.forget()
        finally:
            victim.resume()
        wait_whole(group, watches)
        # On a busy machine it may have been elected again since: in a later term.
        is_back = victim.address in {seen.leader for watch in watches for seen in watch.seen}
        assert not is_back or int(raft_of(victim.address)["raftTerm"]) > term


def test_who_stands_in_holds_requests_until_there_is_a_leader(group: Group) -> None:
    """Sends, pulls, heartbeats and offsets: none fails while nobody leads."""
    requests: dict[str, tuple[int, dict[str, str], bytes]] = {
        "send": (310, send_ext(TOPIC), b"between leaders"),
        "pull": (11, pull_ext(TOPIC), b""),
        "heartbeat": (34, {}, json.dumps(BEAT).encode()),
        "commit of an offset": (15, {**OFFSET, "commitOffset": "1"}, b""),
        "committed offset": (14, OFFSET, b""),
        "end of a queue": (30, {"topic": TOPIC, "queueId": "0"}, b""),
    }
    with watched(group) as watches, ThreadPoolExecutor(2 * len(requests)) as askers:
        victim = wait_leader(group)
        for what in ("send", "commit of an offset"):
            assert held(victim.address, *requests[what]) == 0
        victim.kill()
        assert all_show(watches, lambda seen: seen.leader not in (None, victim.address))
        others = [node for node in group.nodes if node is not victim]
        asked = {
            (what, node.name): askers.submit(held, node.address, *request)
            for what, request in requests.items()
            for node in others
        }
        codes = {which: future.result(2 * WAIT_S) for which, future in asked.items()}
        victim.start()
        wait_whole(group, watches)
    assert codes == dict.fromkeys(asked, 0)


def test_the_first_look_up_after_a_first_send_finds_the_route(group: Group) -> None:
    """Whichever node takes the send, at every name server."""
    judged = 0
    with watched(group):
        for number in range(60):
            name = f"First{number}"
            node = group.nodes[number % len(group.nodes)]
            asked_s = time.monotonic()
            assert held(node.address, 310, send_ext(name), b"first") == 0
            has_waited = (
                time.monotonic() - asked_s >= ROUTE_WAIT_S
            )  # so long at most, for name servers
            found = [ask(server.address, 105, {"topic": name})[0] for server in group.name_servers]
            assert has_waited or found == [0, 0], f"{name}: {found}"
            judged += not has_waited
        assert judged, "this machine is too slow to see it"
