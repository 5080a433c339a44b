"""The route when machines die or are cut off: nobody closes a connection then, and nobody is refused one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.namesrv.server import DEAD_AFTER_S
from jepsen.group_secret import write_secret
from jepsen.nemeses.namespaces import NamespaceLinks, lacking_namespaces
from jepsen.processes import SMALL_SEGMENTS, Process, poll, program
from jepsen.systems.api import CLIENTS, CUT, WHOLE
from tests.integration.broker.route_watch import RouteWatch, Sighting, ask, leads, raft_of
from tests.integration.broker.test_registration import created

pytestmark = [pytest.mark.integration, pytest.mark.slow]

NAMES = ("n0", "n1", "n2")
WAIT_S = 120.0
NOTICED_S = DEAD_AFTER_S + 60.0
"""Below the 120 s after which silence ends a registration; on a busy machine all takes longer."""

TOPIC = "Watched"


class Machines:
    """Three brokers, each with a network of its own, and a name server where the clients are."""

    def __init__(self, folder: Path, links: NamespaceLinks) -> None:
        self.links = links
        name_server = f"{links.address(CLIENTS)}:9876"
        command = [program("dledger-namesrv"), "--listen", name_server]
        self.name_server = Process(
            "namesrv",
            command,
            log=folder / "namesrv.log",
            port=9876,
            host=links.address(CLIENTS),
        )
        peers = ";".join(f"{name}-{links.address(name)}:20911" for name in NAMES)
        (folder / "broker.conf").write_text(SMALL_SEGMENTS)
        self.nodes = []
        for name in NAMES:
            host = links.address(name)
            node = Process(
                name,
                [
                    program("dledger-broker"),
                    *("-c", str(folder / "broker.conf"), "--group", "broker-a", "--id", name),
                    *("--peers", peers, "--listen", f"{host}:10911", "--namesrv", name_server),
                    *("--store", str(folder / name)),
                    *("--secret-file", str(write_secret(folder))),
                ],
                log=folder / f"{name}.log",
                port=10911,
                host=host,
            )
            node.prefix = links.prefix(name)
            self.nodes.append(node)
        self.processes = [self.name_server, *self.nodes]

    def cut_from_name_server(self, node: Process, *, is_cut: bool) -> None:
        """Cut a node off from the name server and the clients, not from the other nodes; or heal that."""
        shape = CUT if is_cut else WHOLE
        self.links.shape(node.name, CLIENTS, shape)
        self.links.shape(CLIENTS, node.name, shape)


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    lacking = lacking_namespaces()
    if lacking is not None:
        pytest.skip(lacking)
    with NamespaceLinks(NAMES) as links:
        machines = Machines(tmp_path_factory.mktemp("machines"), links)
        try:
            for process in machines.processes:
                process.start()
            assert poll(lambda: all(each.is_listening() for each in machines.processes), WAIT_S)
            yield machines
        finally:
            for process in machines.processes:
                process.kill()


@pytest.fixture
def watch(machines: Machines) -> Iterator[RouteWatch]:
    """A watch of a route that lists all three."""
    with RouteWatch(machines.name_server.address, TOPIC) as watch:
        everybody = {node.address for node in machines.nodes}
        assert wait(watch, lambda seen: set((seen.cluster or {}).values()) == everybody)
        leader = leader_of(machines)
        assert poll(lambda: ask(leader.address, 17, created(TOPIC))[0] == 0, WAIT_S)
        assert poll(lambda: is_routed(machines, watch), WAIT_S)
        watch.forget()
        yield watch
    assert watch.gaps() == []


def leader_of(machines: Machines) -> Process:
    """Wait until a node says that it leads."""
    found: list[Process] = []

    def is_found() -> bool:
        found[:] = [node for node in machines.nodes if leads(node)]
        return bool(found)

    assert poll(is_found, WAIT_S), "nobody leads"
    return found[0]


def is_routed(machines: Machines, watch: RouteWatch) -> bool:
    """Whether clients are sent to whoever leads."""
    return watch.now is not None and watch.now.leader in {
        node.address for node in machines.nodes if leads(node)
    }


def wait(watch: RouteWatch, is_so: Callable[[Sighting], bool], timeout_s: float = WAIT_S) -> bool:
    return poll(lambda: watch.now is not None and is_so(watch.now), timeout_s)


def test_a_machine_that_died_is_listed_no_more(machines: Machines, watch: RouteWatch) -> None:
    victim = next(node for node in machines.nodes if not leads(node))
    machines.links.set_plugged(victim.name, is_plugged=False)
    try:
        assert wait(
            watch, lambda seen: victim.address not in (seen.route or {}).values(), NOTICED_S
        )
    finally:
        machines.links.set_plugged(victim.name, is_plugged=True)
    assert wait(watch, lambda seen: victim.address in (seen.route or {}).values())


def test_a_leader_that_the_name_server_cannot_reach_is_stood_in_for(
    machines: Machines, watch: RouteWatch
) -> None:
    """It leads on, and a follower passes on to it what clients send; once it is reached it is back."""
    leader = leader_of(machines)
    term = raft_of(leader.address)["raftTerm"]
    machines.cut_from_name_server(leader, is_cut=True)
    try:
        assert wait(watch, lambda seen: seen.leader not in (None, leader.address), NOTICED_S)
        assert watch.now is not None
        assert watch.now.leader is not None
        shown = raft_of(watch.now.leader)
        # On a busy machine the lead may move meanwhile, for other reasons and in another term.
        assert shown["raftLeader"] == leader.name or int(shown["raftTerm"]) > int(term)
    finally:
        machines.cut_from_name_server(leader, is_cut=False)
    assert poll(lambda: is_routed(machines, watch), WAIT_S)
