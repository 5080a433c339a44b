"""A broker group as the system under test: real brokers and a name server, watched from outside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

import trio

from broker.admin.ask import ask_all
from broker.admin.verify import Comparison, compare
from dledger import parse_peers
from dledger.raft.ids import Term
from jepsen.guards import Guards, make_guards
from jepsen.history.ops import OpLog
from jepsen.nemeses.namespaces import NamespaceLinks
from jepsen.nemeses.proxy import LOOPBACK, ProxiedMember, ProxyLinks
from jepsen.nemeses.transfer import hand_over
from jepsen.processes import Group, Process
from jepsen.systems.api import LinkControl, System, SystemOptions
from jepsen.systems.observer import Observer, note_leader

BROKER_CONF: Final = """transactionTimeOut=1000
transactionCheckInterval=500
transactionCheckMax=1000
mappedFileSizeCommitLog=1048576
snapshotLogBytes=131072
stopForwardSec=0
"""
"""Checks come soon, and nobody is given up while its leaders die. A node that is to stop is down soon. Segments and
snapshots come soon, too: a full disk is felt when one is made, and only what exists can be damaged."""

MARK_POLL_S: Final = 0.5


class BrokerSystem:
    """A broker group; see `Subject` for what its parts do.

    Attributes:
        namesrv: addresses of the name servers, as clients want them.
        addresses: at which clients reach the nodes, by broker name: there is one.
        group: the processes.
    """

    def __init__(self, group: Group, links: LinkControl | None = None) -> None:
        self.group = group
        self.folder = group.folder
        self.nodes: Sequence[Process] = group.nodes
        self.processes: Sequence[Process] = group.processes()
        self.links = links
        self.namesrv = group.namesrv
        self.addresses: Mapping[str, Sequence[str]] = {
            group.group: [node.address for node in group.nodes]
        }
        self._observer = Observer(group, self._note_leader)
        self._log: OpLog | None = None

    def node(self, name: str) -> Process:
        """Return the broker called `name`."""
        return self.group.node(name)

    def store(self, name: str) -> Path:
        """Return the folder of its store."""
        return self.folder / name

    @property
    def leader(self) -> str | None:
        """The node that leads, as the observer last saw it."""
        return self._observer.leader

    def start(self) -> None:
        """Start name server and brokers."""
        self.group.start()

    async def wait_ready(self, timeout_s: float) -> None:
        """Wait until every process accepts connections. Raises NotReadyError, ProcessDiedError."""
        await trio.to_thread.run_sync(self.group.wait_listening, timeout_s, abandon_on_cancel=True)

    async def watch(self, log: OpLog) -> None:
        """Keep `leader` and note each new one until cancelled."""
        self._log = log
        await self._observer.run()

    def _note_leader(self, node: str, term: Term) -> None:
        assert self._log is not None, "the observer runs in `watch` alone"
        note_leader(self._log, node, term)

    async def wait_whole(self, timeout_s: float) -> bool:
        """Wait until all nodes are together."""
        return await self._observer.wait_whole(timeout_s)

    async def hand_over(self, timeout_s: float) -> str:
        """Ask the leader to hand over, and return who is to lead. Raises DLedgerError."""
        return await hand_over(self.group.peers, self.group.group, timeout_s)

    async def replica_digests(self, timeout_s: float) -> Mapping[str, Mapping[str, object]]:
        """Return the digests of all nodes; see `digests_of`."""
        return await digests_of([node.address for node in self.nodes], timeout_s)


async def digests_of(addresses: Sequence[str], timeout_s: float) -> dict[str, dict[str, object]]:
    """Return the digests of a group's nodes, by name, at the newest mark that all have.

    Marks come every ten seconds while records come; waits for one that is newer than this call.
    """
    deadline = trio.current_time() + timeout_s
    first_index: int | None = None
    while True:
        verdict = compare(await ask_all(addresses))
        first_index = verdict.index if first_index is None else first_index
        is_new = verdict.is_whole and verdict.index > first_index
        if is_new or trio.current_time() >= deadline:
            return _by_node(verdict)
        await trio.sleep(MARK_POLL_S)


def _by_node(verdict: Comparison) -> dict[str, dict[str, object]]:
    if not verdict.index:
        return {}
    found: dict[str, dict[str, object]] = {}
    for place, node in enumerate(verdict.nodes):
        digests = {name: values[place] for name, values in verdict.digests.items()}
        found[node] = {"index": verdict.index, "digests": digests}
        if node in verdict.alarms:
            found[node]["alarm"] = verdict.alarms[node]
    return found


@runtime_checkable
class Brokers(System, Protocol):
    """One or several broker groups, as a workload of messages needs them.

    Attributes:
        namesrv: addresses of the name servers, as clients want them.
        addresses: at which clients reach the members of each group, by its broker name; each group in the order of
            `nodes`.
    """

    namesrv: str
    addresses: Mapping[str, Sequence[str]]


def brokers(system: System) -> Brokers:
    """Return the system as broker groups, which a workload of messages needs."""
    assert isinstance(system, Brokers), f"{system} has no broker groups"
    return system


def broker_group(system: System) -> BrokerSystem:
    """Return the system as one broker group whose nodes are brokers, and not machines."""
    assert isinstance(system, BrokerSystem), f"{system} is no broker group"
    return system


@contextmanager
def broker_system(folder: Path, options: SystemOptions) -> Iterator[BrokerSystem]:
    """Make a broker group whose processes end with the context. A `SubjectMaker`."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        group = stack.enter_context(Group(folder, nodes=options.nodes, settings=BROKER_CONF))
        links: ProxyLinks | NamespaceLinks | None = None
        if options.network == "proxies":
            links = ProxyLinks([_member(group, node) for node in group.nodes])
        elif options.network == "namespaces":
            links = NamespaceLinks([node.name for node in group.nodes])
        if links is not None:
            stack.enter_context(links)
        if isinstance(links, NamespaceLinks):
            move_to_namespaces(group, links)
        if isinstance(links, ProxyLinks):
            for node in group.nodes:
                _place(node, folder, links)
        hosts = [LOOPBACK]
        if isinstance(links, NamespaceLinks):
            hosts = [links.harness, *(node.host for node in group.nodes)]
        guards = make_guards(folder, options.guards, hosts)
        guard_group(group, guards)
        stack.enter_context(guards.lets_in())
        # Namespaces can be removed only when nobody is in them.
        stack.callback(group.close)
        yield BrokerSystem(group, links)


def move_to_namespaces(group: Group, links: NamespaceLinks) -> None:
    """Give each node its namespace and addresses; name servers listen where nodes find the harness."""
    group.peers = ";".join(
        f"{peer.node_id}-{links.address(peer.node_id)}:{peer.port}"
        for peer in parse_peers(group.peers)
    )
    for server in group.name_servers:
        server.host = links.harness
        _set_option(server.command, "--listen", server.address)
    group.namesrv = ";".join(server.address for server in group.name_servers)
    for node in group.nodes:
        node.host = links.address(node.name)
        node.prefix = links.prefix(node.name)
        _set_option(node.command, "--listen", node.address)
        _set_option(node.command, "--peers", group.peers)
        _set_option(node.command, "--namesrv", group.namesrv)
    group.by_address = {node.address: node for node in group.nodes}


def guard_group(group: Group, guards: Guards) -> None:
    """Give name servers and brokers what keeps strangers out."""
    for server in group.name_servers:
        server.command += guards.name_server_options()
    for node in group.nodes:
        node.command += guards.broker_options()
        with (group.folder / f"{node.name}.conf").open("a") as conf:
            conf.writelines(f"{key}={text}\n" for key, text in guards.settings().items())


def _member(group: Group, node: Process) -> ProxiedMember:
    peer = next(peer for peer in parse_peers(group.peers) if peer.node_id == node.name)
    return ProxiedMember(node.name, peer.port, node.port)


def _place(node: Process, folder: Path, links: ProxyLinks) -> None:
    """Give a broker the addresses that lead through the links."""
    with (folder / f"{node.name}.conf").open("a") as conf:
        conf.write(f"brokerIP1={links.advertised_host(node.name)}\n")
    _set_option(node.command, "--listen", node.address)
    _set_option(node.command, "--peers", links.peers_of(node.name))


def _set_option(command: list[str], name: str, value: str) -> None:
    command[command.index(name) + 1] = value
