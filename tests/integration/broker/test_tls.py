"""TLS on the ports of a real group and its name server: our client, hostile ones, and certificates that change."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from broker.admin.cli import main as dledger_admin
from dledger.cli import main as dledger
from dledger_mq import ClientError, Message, make_tls_context
from dledger_mq.blocking import Admin, Producer
from dledger_mq.net.tls import TlsEnd
from jepsen.ports import free_port_rows
from jepsen.processes import Process, poll
from tests.certificates import HOST, client_side, write_files
from tests.integration.broker.test_processes import dev_command
from tests.integration.commands import run_here
from tests.tls_group import PATIENCE_S, TlsGroup, peer_settings, running, settings

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture(scope="module")
def permissive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsGroup]:
    yield from running(tmp_path_factory.mktemp("permissive"), "permissive")


@pytest.fixture(scope="module")
def enforcing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsGroup]:
    yield from running(tmp_path_factory.mktemp("enforcing"), "enforcing")


def test_a_permissive_group_takes_both(permissive: TlsGroup) -> None:
    assert poll(lambda: permissive.sends(permissive.tls), PATIENCE_S)
    assert poll(lambda: permissive.sends(None), PATIENCE_S)
    assert "Traceback" not in permissive.logs()


def test_an_enforcing_group_takes_tls_only_through_every_node(enforcing: TlsGroup) -> None:
    """Forwarded sends and the registration go over TLS, too."""

    def is_told() -> bool:
        assert not enforcing.sends(None, timeout_s=1.0)
        return (
            "plain text on a port that takes TLS only (tls.server.mode=enforcing)"
            in enforcing.logs()
        )

    assert poll(is_told, PATIENCE_S)
    with Admin(enforcing.processes.namesrv, tls=enforcing.tls, timeout_s=PATIENCE_S) as admin:
        assert "T" in admin.list_topics()
    assert poll(lambda: enforcing.sends(enforcing.tls), PATIENCE_S)


def test_a_client_that_believes_others_is_told_why(enforcing: TlsGroup, tmp_path: Path) -> None:
    strangers = make_tls_context(trust=write_files(tmp_path, "strangers").trust)

    def is_told() -> bool:
        with (
            pytest.raises(ClientError) as refused,
            Admin(enforcing.processes.namesrv, tls=strangers, timeout_s=1.0) as admin,
        ):
            admin.list_topics()
        return "the certificate of the other end is not believed" in str(refused.value)

    assert poll(is_told, PATIENCE_S)
    assert poll(lambda: "does not know who signed the certificate" in enforcing.logs(), PATIENCE_S)
    assert "Traceback" not in enforcing.logs()


def test_an_operator_asks_over_tls(enforcing: TlsGroup) -> None:
    where = ("status", "--namesrv", enforcing.processes.namesrv)
    for words in (("--tls-trust", enforcing.files.trust), ("--tls-insecure",)):
        assert poll(lambda: run_here(dledger_admin, *words, *where).returncode == 0, PATIENCE_S)  # noqa: B023
    assert run_here(dledger_admin, *where).returncode == 3
    wrong = run_here(dledger_admin, "--tls-trust", "/no/ca.pem", *where)
    assert wrong.returncode == 2
    assert "/no/ca.pem cannot be read: No such file or directory" in wrong.stderr


def test_the_members_are_asked_over_tls(enforcing: TlsGroup) -> None:
    files, processes = enforcing.files, enforcing.processes
    shown = ("--tls-cert", files.certificate, "--tls-key", files.key, "--tls-trust", files.trust)
    soon, late = ("--timeout", "2"), ("--timeout", str(PATIENCE_S))
    listed = ("members", "list", "--namesrv", processes.namesrv)
    assert run_here(dledger_admin, *shown, *listed, *late, "--peer-tls").returncode == 0
    assert run_here(dledger_admin, *shown, *listed, *soon).returncode == 1
    where = ("status", "--group", processes.group, "--peers", processes.peers)
    assert run_here(dledger, *where, *late, *shown).returncode == 0
    assert run_here(dledger, *where, *soon).returncode != 0


def test_half_open_handshakes_disturb_nobody(enforcing: TlsGroup, tmp_path: Path) -> None:
    """More than may be unfinished at once, of which each has made the broker answer."""
    node = enforcing.processes.nodes[0]
    assert node.pid is not None
    hello = TlsEnd(client_side(tmp_path), is_server=False, host=HOST).begin()
    before = rss_bytes(node.pid)
    with ExitStack() as stack:
        for number in range(1_500):
            near = stack.enter_context(socket.create_connection((HOST, node.port)))
            near.sendall(hello if number % 3 else hello[:50])
        assert poll(lambda: enforcing.sends(enforcing.tls, timeout_s=20.0), PATIENCE_S)
        grown = rss_bytes(node.pid) - before
    assert grown < 160 << 20
    assert poll(lambda: enforcing.sends(enforcing.tls), PATIENCE_S)
    assert "Traceback" not in enforcing.logs()


def rss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def rewrite(group: TlsGroup, node: Process, mode: str) -> None:
    """Start a node anew with another mode between members."""
    conf = group.processes.folder / f"{node.name}.conf"
    kept = [line for line in conf.read_text().splitlines() if not line.startswith("tls.peer.")]
    conf.write_text("\n".join(kept) + "\n" + peer_settings(group.files, mode))
    node.stop()
    node.start()
    assert poll(node.is_listening, PATIENCE_S), node.log_tail()


def test_members_change_over_to_tls_one_after_the_other(permissive: TlsGroup) -> None:
    """From plain text, over a while in which they speak both, to nothing but TLS; the group serves after each step."""
    for mode in ("permissive", "enforcing"):
        for node in permissive.processes.nodes:
            rewrite(permissive, node, mode)
            assert poll(lambda: permissive.sends(None), PATIENCE_S), permissive.logs()[-3000:]

    def is_in_order() -> bool:
        """The member that was started last may take a moment to be with the others."""
        arguments = ("status", "--strict", "--namesrv", permissive.processes.namesrv)
        return run_here(dledger_admin, *arguments).returncode == 0

    assert poll(is_in_order, PATIENCE_S), permissive.logs()[-3000:]
    peer = permissive.processes.peers.split(";")[0].partition("-")[2]
    host, port = peer.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as near:
        near.sendall(b"\0\0\0\x10plain text, a frame or none")
        with suppress(ConnectionResetError):
            assert near.recv(1) == b""
    assert poll(lambda: "that takes TLS only (tls.peer.mode" in permissive.logs(), PATIENCE_S)


def test_certificates_change_without_a_restart(permissive: TlsGroup, tmp_path: Path) -> None:
    files = permissive.files
    new = write_files(tmp_path, "strangers")
    theirs = make_tls_context(trust=new.trust)
    pids = [node.pid for node in permissive.processes.nodes]
    shutil.copy(new.trust, files.trust)
    for old, source in ((files.certificate, new.certificate), (files.key, new.key)):
        shutil.copy(source, old)
    assert poll(lambda: permissive.sends(theirs), PATIENCE_S)
    assert not permissive.sends(permissive.tls, timeout_s=1.0)
    Path(files.certificate).write_text("broken")
    assert poll(lambda: "TLS stays as it was: " in permissive.logs(), PATIENCE_S)
    assert poll(lambda: permissive.sends(theirs), PATIENCE_S)
    assert [node.pid for node in permissive.processes.nodes] == pids
    assert "Traceback" not in permissive.logs()


def test_a_whole_group_to_try_speaks_tls_and_logs_into_files(tmp_path: Path) -> None:
    """--dev hands its options for TLS and for logs on to all of its processes."""
    files = write_files(tmp_path / "tls")
    keys = tmp_path / "tls.properties"
    keys.write_text(
        settings(files, "enforcing")
        + peer_settings(files, "enforcing")
        + "tls.metrics.enable=true\n"
    )
    command, _ = dev_command(tmp_path / "dev")
    ports = free_port_rows(1, length=4, step=1)
    log = tmp_path / "dev.log"
    options = [
        *("--tls-config", str(keys), "--metrics-port", str(ports[0])),
        *("--log-file", str(tmp_path / "own.log"), "--log-format", "json"),
    ]
    tls = make_tls_context(trust=files.trust)
    with (
        log.open("wb") as out,
        subprocess.Popen([*command, *options], stdout=out, stderr=out) as dev,
    ):
        try:
            assert poll(lambda: "ready: name server" in log.read_text(), PATIENCE_S), (
                log.read_text()
            )
            namesrv = f"127.0.0.1:{command[command.index('--namesrv-port') + 1]}"
            with Producer(namesrv, "p", tls=tls) as producer:
                assert poll(lambda: is_sent(producer), PATIENCE_S), log.read_text()
            for number in range(4):
                url = f"https://{HOST}:{ports[0] + number}/healthz"
                with urllib.request.urlopen(url, timeout=PATIENCE_S, context=tls) as answer:
                    assert answer.status == 200
        finally:
            dev.terminate()
            dev.terminate()
            dev.wait(timeout=PATIENCE_S)
    for name in ("n0", "n1", "n2"):
        lines = (tmp_path / f"own-{name}.log").read_text().splitlines()
        assert {json.loads(line)["level"] for line in lines} <= {"info", "warning", "error"}
        assert lines
    assert (tmp_path / "own-namesrv.log").exists()


def is_sent(producer: Producer) -> bool:
    """Whether a message is stored now."""
    with suppress(ClientError):
        producer.send(Message("T", b"x"))
        return True
    return False
