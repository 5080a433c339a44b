"""Real processes: a killed leader, an orderly stop, routes that follow, and what users read when it fails."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker.processes.identity import process_of
from dledger import NodeId
from dledger.storage.restored import mark_restored
from dledger_mq.message.batch import BatchItem, encode_batch
from dledger_mq.message.record import decode_records
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.header import RemotingCommand, decode_command, encode_command, make_request
from dledger_mq.remoting.route import decode_route
from jepsen.ports import LOWEST, free_ports, is_free
from jepsen.processes import Group, Process, poll, program
from tests.integration.broker.conftest import pull_ext, send_ext
from tests.integration.broker.scraping import Figures
from tests.stages import needs_compiled

pytestmark = [pytest.mark.slow, pytest.mark.integration]

PATIENCE_S = 120.0
"""Nothing takes that long; a test that waits for more has failed."""


@contextmanager
def running(folder: Path) -> Iterator[Group]:
    with Group(folder) as started:
        started.start()
        started.wait_listening()
        yield started


@pytest.fixture(scope="module")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with running(tmp_path_factory.mktemp("processes")) as shared:
        yield shared


@pytest.fixture
def group(_shared: Group) -> Group:
    """A group that is whole, whatever the test before has ended or stopped."""
    for process in _shared.processes():
        process.resume()
        if process.pid is None:
            process.start()
    _shared.wait_listening()
    leader_of(_shared)
    assert poll(lambda: len(brokers_of(_shared)) == 3, PATIENCE_S), "followers are in the route too"
    return _shared


def ask(port: int, code: int, ext: dict[str, str], body: bytes = b"") -> RemotingCommand:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as sock:
        sock.sendall(encode_command(make_request(code, 1, ext, body)))
        data = b""
        while len(data) < 4 or len(data) < 4 + struct.unpack(">i", data[:4])[0]:
            piece = sock.recv(65536)
            assert piece, "the connection ended without an answer"
            data += piece
    decoder = FrameDecoder()
    decoder.feed(data)
    frame = decoder.next_frame()
    assert frame is not None
    return decode_command(frame)


def brokers_of(group: Group, topic: str = "TBW102") -> dict[int, str]:
    """The broker ids and addresses that a client gets from the name server."""
    answer = ask(group.name_servers[0].port, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    if answer.code != 0:
        return {}
    return {
        key: address
        for broker in decode_route(answer.body).brokers
        for key, address in broker.broker_addrs.items()
    }


def leader_of(group: Group) -> Process:
    found: list[str] = []

    def is_known() -> bool:
        brokers = brokers_of(group)
        found[:] = [brokers[0]] if 0 in brokers else []
        return bool(found)

    assert poll(is_known, PATIENCE_S), "no leader in the route"
    return group.by_address[found[0]]


def led_at(port: int, code: int, ext: dict[str, str], body: bytes = b"") -> RemotingCommand:
    """As `led`, at a port."""
    answers: list[RemotingCommand] = []

    def is_led() -> bool:
        answers.append(ask(port, code, ext, body))
        return answers[-1].code != ResponseCode.SERVICE_NOT_AVAILABLE

    assert poll(is_led, PATIENCE_S), answers[-1].remark
    return answers[-1]


def led(node: Process, code: int, ext: dict[str, str], body: bytes = b"") -> RemotingCommand:
    """Ask as clients do: again while no leader answers, as a broker says after some seconds without one."""
    return led_at(node.port, code, ext, body)


def send_until_stored(node: Process, body: bytes, topic: str = "T") -> None:
    """As clients do: a broker that hears of no leader for some seconds refuses."""
    assert poll(lambda: ask(node.port, 310, send_ext(topic), body).code == 0, PATIENCE_S)


def test_a_killed_leader_is_replaced_and_the_route_follows(group: Group) -> None:
    leader, topic = leader_of(group), "Killed"
    send_until_stored(leader, b"before", topic)
    others = [node for node in group.nodes if node is not leader]
    leader.kill()
    for node in others:
        send_until_stored(node, b"after", topic)
    assert poll(lambda: brokers_of(group).get(0, leader.address) != leader.address, PATIENCE_S)
    leader.start()
    assert poll(lambda: leader.address in brokers_of(group).values(), PATIENCE_S)
    queue = {"topic": topic, "queueId": "0"}
    assert poll(lambda: int(ask(leader.port, 30, queue).ext.get("offset", 0)) >= 3, PATIENCE_S)


def test_an_orderly_stop_leaves_the_route_at_once(group: Group) -> None:
    leader = leader_of(group)
    assert leader.stop(PATIENCE_S) == 0
    assert poll(lambda: leader.address not in brokers_of(group).values(), PATIENCE_S)
    assert "Traceback" not in leader.log_tail(100)
    assert leader_of(group) is not leader


def test_two_processes_cannot_share_a_store(group: Group) -> None:
    node = group.nodes[0]
    others = free_ports(2)
    command = [
        program("dledger-broker"),
        *("--group", "broker-a", "--id", "n0", "--peers", f"n0-127.0.0.1:{others[0]}"),
        *("--listen", str(others[1]), "--store", str(group.folder / "n0")),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ended.returncode == 1
    assert f"in use by process {node.pid}" in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1


def test_other_members_in_the_configuration_are_refused(group: Group) -> None:
    leader = leader_of(group)
    send_until_stored(leader, b"before")
    victim = group.nodes[0]
    victim.kill()
    own = group.peers.split(";")[0]
    conf = group.folder / "edited.conf"
    conf.write_text(f"dLegerPeers={own}\n")
    command = [
        program("dledger-broker"),
        *("-c", str(conf), "--group", "broker-a", "--id", "n0", "--listen", str(victim.port)),
        *("--store", str(group.folder / "n0")),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ended.returncode == 2
    (line,) = (line for line in ended.stderr.splitlines() if "dledger-broker:" in line)
    assert "belongs to a group of n0, n1, n2; --peers (dLegerPeers) names n0" in line
    assert "start with the members of the store, n0, n1, n2" in line
    victim.start()
    send_until_stored(group.nodes[1], b"after")
    assert poll(lambda: len(brokers_of(group)) == 3, PATIENCE_S), "the group is whole"


def test_a_group_that_has_lost_two_stores_of_three_says_so_and_goes_on_with_the_third(
    tmp_path: Path,
) -> None:
    with running(tmp_path) as group:
        lose_two_stores(group)


def lose_two_stores(group: Group) -> None:
    send_until_stored(leader_of(group), b"kept")
    kept, *lost = group.nodes
    queue = {"topic": "T", "queueId": "0"}
    assert poll(lambda: int(ask(kept.port, 30, queue).ext.get("offset", 0)) >= 1, PATIENCE_S)
    for node in group.nodes:
        node.kill()
    for node in lost:
        shutil.rmtree(group.folder / node.name)
    for node in group.nodes:
        node.start()
    group.wait_listening()
    text = "the majority of the group is lost: the stores of n1 and n2"
    for node in group.nodes:
        assert poll(
            lambda node=node: f"majority-lost node={node.name}" in node.log.read_text(),  # type: ignore[misc]
            PATIENCE_S,
        )
        for code, ext in ((310, send_ext("T")), (11, pull_ext("T")), (202, {"topic": "T"})):
            if node is kept and code != 310:
                continue  # it has the topic
            answer = ask(node.port, code, ext)
            assert (answer.code, text in str(answer.remark)) == (14, True), answer
            assert "docs/restoring.md" in str(answer.remark)
    status = subprocess.run(
        [
            *(program("dledger"), "status", "-g", "broker-a", "-p", group.peers),
            *("--json", "--timeout", str(PATIENCE_S / 2)),
        ],
        capture_output=True,
        timeout=PATIENCE_S,
        check=True,
    )
    for seen in json.loads(status.stdout)["members"]:
        assert text in seen["attributes"]["majority"]
    # As docs/restoring.md says.
    for node in group.nodes:
        node.kill()
    for node in lost:
        shutil.rmtree(group.folder / node.name)
        shutil.copytree(group.folder / kept.name, group.folder / node.name)
    for node in group.nodes:
        store = str(group.folder / node.name)
        mark_restored(store, group="broker-a", node_id=NodeId(node.name), name="after the loss")
        node.start()
    group.wait_listening()
    send_until_stored(leader_of(group), b"after")
    for node in group.nodes:
        assert "does not know the group's secret" not in node.log.read_text()


@pytest.mark.parametrize("cause", ["the port", "the store"])
def test_what_keeps_a_node_from_starting_is_named(tmp_path: Path, cause: str) -> None:
    member, port = free_ports(2)
    store = tmp_path / "store"
    store.mkdir()
    with socket.create_server(("127.0.0.1", port)) as taken:
        if cause == "the store":
            taken.close()
            (store / "derived").write_text("a file where a folder should be")
        ended = subprocess.run(
            [
                program("dledger-broker"),
                *("--group", "broker-a", "--id", "n0", "--peers", f"n0-127.0.0.1:{member}"),
                *("--listen", f"127.0.0.1:{port}", "--store", str(store)),
            ],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    assert ended.returncode == 1
    (line,) = ended.stderr.strip().splitlines()
    expected = {
        "the port": f"127.0.0.1:{port} cannot be listened on: Address already in use",
        "the store": f"the store {store} cannot be opened: ",
    }
    assert expected[cause] in line


def test_what_users_read_when_it_cannot_start(tmp_path: Path) -> None:
    """Other mistakes: tests/unit/admin/test_wrong_usage.py."""
    peers = ("--peers", "n0-nowhere.invalid:1", "--store", str(tmp_path / "store"))
    ended = subprocess.run(
        [program("dledger-broker"), "--group", "g", "--id", "n0", *peers],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 2
    assert "nowhere.invalid" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_python_o_is_refused() -> None:
    ended = subprocess.run(
        [sys.executable, "-O", "-m", "broker.server.cli", "--dev"],
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE_S,  # nothing is compiled for -O yet
        check=False,
    )
    assert ended.returncode == 1
    assert "must not run with -O" in ended.stderr


def dev_command(store: Path) -> tuple[list[str], int]:
    """Return a command of --dev with ports that are free, and its first port."""
    # --dev derives its ports: clients 10 apart, members 10 000 above them. Here they lie below those of other groups.
    derived = [step * 10 + distance for step in range(3) for distance in (0, 10_000)]
    choices = random.sample(range(8_000, LOWEST - 10_100), 1_000)
    first = next(port for port in choices if all(is_free(port + more) for more in derived))
    ports = ("--port", str(first), "--namesrv-port", str(free_ports(1)[0]))
    return [program("dledger-broker"), "--dev", "--store", str(store), *ports], first


def figures_at(port: int) -> Figures:
    """What a process gives by itself."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
        return Figures(answer.read())


BATCH = encode_batch(BatchItem(0, body, b"UNIQ_KEY\x01%b\x02" % body) for body in (b"one", b"two"))


@pytest.mark.parametrize(
    ("switch", "told"),
    [
        pytest.param("", "compiled code", marks=needs_compiled),
        pytest.param("1", "Python (the compiled code is switched off)", marks=needs_compiled),
    ],
)
def test_a_broker_does_without_compiled_code_if_it_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, switch: str, told: str
) -> None:
    monkeypatch.setenv("DLEDGER_PURE", switch)
    with Group(tmp_path, nodes=1) as alone:
        alone.start()
        alone.wait_listening()
        port = alone.nodes[0].port
        answer = led_at(port, 320, {**send_ext("T"), "m": "true"}, BATCH)
        assert (answer.code, len(answer.ext["msgId"].split(","))) == (0, 2)
        assert ask(port, 310, send_ext("T"), b"three").code == 0
        pulled = decode_records(ask(port, 11, pull_ext("T")).body)
    assert [record.body for record in pulled] == [b"one", b"two", b"three"]
    assert f"messages are put into the log by {told}\n" in (tmp_path / "n0.log").read_text()


def test_a_whole_group_to_try(tmp_path: Path) -> None:
    """--dev: ready, its figures, a dead child comes back; the next one takes over what a killed one has left.

    One signal stops all in the end, and two never share a store.
    """
    command, first = dev_command(tmp_path / "dev")
    # Above the client ports of --dev, below those of its members.
    choices = random.sample(range(10_100, 17_900), 1_000)
    figures = next(port for port in choices if all(is_free(port + more) for more in range(4)))
    command += ["--metrics-port", str(figures)]
    log = tmp_path / "dev.log"
    with log.open("wb") as out:
        with subprocess.Popen(command, stdout=out, stderr=out) as killed:
            try:
                is_ready = poll(lambda: "ready: name server" in log.read_text(), PATIENCE_S)
                assert is_ready, log.read_text()
                check_figures(first, figures)
                assert (
                    f"figures for Prometheus (/metrics, /readyz): 127.0.0.1:{figures}"
                    in log.read_text()
                )
                assert poll(lambda: len(_nodes(killed.pid)) == 3, PATIENCE_S), log.read_text()
                os.kill(_nodes(killed.pid)["n0"], signal.SIGKILL)
                is_missed = poll(lambda: "starting it again" in log.read_text(), PATIENCE_S)
                assert is_missed, log.read_text()
                assert poll(lambda: stores(first), PATIENCE_S), log.read_text()
                children = _children(killed.pid)
            finally:
                killed.kill()
        with subprocess.Popen(command, stdout=out, stderr=out) as running:
            try:
                is_taken_over = poll(lambda: log.read_text().count("runs already") == 4, PATIENCE_S)
                second = subprocess.run(
                    command, capture_output=True, text=True, timeout=PATIENCE_S, check=False
                )
            finally:
                running.terminate()
                running.terminate()
                running.wait(timeout=PATIENCE_S)
    assert (is_taken_over, len(children)) == (True, 4), log.read_text()
    assert second.returncode == 1
    assert f"the store is in use by process {running.pid}" in second.stderr
    assert running.returncode == 0
    # They are nobody's children, and may not have been waited for yet.
    assert [pid for pid in children if process_of(pid)] == []
    assert "Traceback" not in log.read_text()


def stores(port: int) -> bool:
    """Whether the node at a port runs again, and stores."""
    try:
        return ask(port, 310, send_ext("T"), b"x").code == 0
    except OSError:
        return False


def check_figures(first: int, figures: int) -> None:
    """What a new group to try has sent and read is what its figures say."""
    # Two of the nodes pass on what they are sent.
    sent = [
        led_at(first + 10 * (number % 3), 310, send_ext("T"), b"x" * number).code
        for number in range(1, 31)
    ]
    read = decode_records(led_at(first, 11, pull_ext("T")).body)
    shown = [figures_at(figures + number) for number in range(3)]
    of_name_server = figures_at(figures + 3)
    assert (set(sent), len(read)) == ({0}, 30)

    def together(name: str, **labels: str) -> list[float]:
        return [figure for each in shown for figure in each.of(name, **labels)]

    of_sends = {"request_code": "send_message_v2", "response_code": "success"}
    assert together("rocketmq_messages_in_total", topic="T") == [30]
    size_bytes = sum(record.size_bytes for record in read)
    assert together("rocketmq_throughput_in_total", topic="T") == [size_bytes]
    assert together("rocketmq_messages_out_total", topic="T", consumer_group="G") == [30]
    assert sum(together("rocketmq_rpc_latency_count", **of_sends)) == 30
    assert sum(together("dledger_raft_role", role="leader")) == 1
    assert of_name_server.one("dledger_namesrv_brokers", broker="broker-a") == 3


def _nodes(parent: int) -> dict[str, int]:
    """Process ids of the brokers by their names; a child that has just been forked has no name yet."""
    named = {pid: re.search(r"--id (\w+)", line) for pid, line in _children(parent).items()}
    return {found[1]: pid for pid, found in named.items() if found}


def _children(parent: int) -> dict[int, str]:
    """Command lines of the child processes."""
    listed = subprocess.run(
        ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(parent)],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line.strip().split(" ", 1) for line in listed.stdout.splitlines()]
    return {int(pid): command for pid, command in lines}


def test_raw_bodies_are_no_messages_and_surely_not_stored(group: Group) -> None:
    leader_of(group)
    ended = subprocess.run(
        [
            *(program("dledger"), "append", "-g", group.group, "-p", group.peers),
            *("--data", "raw", "--timeout", str(PATIENCE_S / 2)),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    assert "takes messages from its broker only" in ended.stderr


def keyed(topic: str, number: int, born_ms: int) -> dict[str, str]:
    """A send under a key; a client that tries again makes it with another born time."""
    return send_ext(topic, 1, f"UNIQ_KEY\x01{number:032X}\x02") | {"g": str(born_ms)}


def send_and_go(node: Process, ext: dict[str, str], body: bytes) -> None:
    """Send, and close the connection without waiting."""
    with socket.create_connection(("127.0.0.1", node.port), timeout=PATIENCE_S) as sock:
        sock.sendall(encode_command(make_request(310, 1, ext, body)))


@pytest.mark.parametrize("frozen", ["the follower that was asked", "the leader"])
def test_what_waited_for_a_client_that_is_gone_is_not_stored_after_its_next_try(
    group: Group, frozen: str
) -> None:
    topic = frozen.title().replace(" ", "")
    send_until_stored(leader_of(group), b"first", topic)
    queue = {"topic": topic, "queueId": "1"}
    for number in range(3):
        leader = leader_of(group)
        asked, other = (node for node in group.nodes if node is not leader)
        stopped = leader if frozen == "the leader" else asked
        for node in (asked, other):
            send_until_stored(node, b"-", topic)
        stopped.pause()
        body = b"round %d" % number
        send_and_go(asked, keyed(topic, number, 1000), body)
        assert poll(lambda: ask(other.port, 310, send_ext(topic), b"-").code == 0, PATIENCE_S)  # noqa: B023
        assert led(other, 310, keyed(topic, number, 2000), body).code == 0
        stopped.resume()
        # Each answer to a later request shows that what waited at that node was taken up.
        for node in (stopped, asked, other, asked):
            send_until_stored(node, b"-", topic)
        assert led(leader_of(group), 30, queue).ext["offset"] == str(number + 1)
