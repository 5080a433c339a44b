"""A real group with secrets of every kind: they stand nowhere that others read, and its own changes while it serves."""

from __future__ import annotations

import html
import re
import socket
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import RemoteDisconnected
from pathlib import Path
from urllib.error import URLError

import pytest
from cryptography.hazmat.primitives import serialization

from broker.admin.cli import main as dledger_admin
from broker.server.cli import main as dledger_broker
from dledger.cli import main as dledger
from dledger_mq import make_tls_context
from dledger_mq.net.tls_contexts import TlsFiles
from jepsen.ports import free_ports
from jepsen.processes import SMALL_SEGMENTS, Process, poll
from tests.certificates import HOST, write_files
from tests.integration.commands import run_here
from tests.integration.hostile.test_bad_input import frame, read_answer
from tests.tls_group import PATIENCE_S, TlsGroup

pytestmark = [pytest.mark.integration, pytest.mark.slow]

OLD, NEW = "the-first-of-the-group", "the-second-of-the-group"
PASSWORD = "hush-says-the-key"
ACCOUNT = "only-the-account-knows"
SECRETS = (OLD, NEW, PASSWORD, ACCOUNT)
PAGES_MAX = 40


def encrypt(path: Path) -> None:
    """Give a key a password."""
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(PASSWORD.encode()),
        )
    )


def put(path: Path, text: str) -> None:
    """Put another file in its place, for its owner's eyes."""
    beside = path.with_suffix(".new")
    beside.touch(mode=0o600)
    beside.write_text(text)
    beside.replace(path)


class SecretGroup(TlsGroup):
    """A group and a name server that take TLS only, with encrypted keys, accounts, and a secret in a file of each."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "permissive")
        shown = write_files(folder / "shown")
        encrypt(Path(shown.key))
        self.tls_file = folder / "tls.properties"
        put(self.tls_file, self._tls_keys(shown))
        accounts = folder / "plain_acl.yml"
        put(
            accounts,
            f"globalWhiteRemoteAddresses: [{HOST}]\n"
            f"accounts:\n- {{accessKey: account-1, secretKey: {ACCOUNT}, admin: true}}\n",
        )
        acl = f"aclEnable=true\naclFile={accounts}\n"
        self.metrics: dict[str, int] = {}
        self.secret_files: dict[str, Path] = {}
        servers = set(map(id, self.processes.name_servers))
        for process in self.processes.processes():
            is_server = id(process) in servers
            conf = folder / f"{process.name}.conf"
            conf.write_text(acl if is_server else SMALL_SEGMENTS + acl)
            secret = self.secret_files[process.name] = folder / f"{process.name}.secret"
            put(secret, f"{OLD}\n")
            (self.metrics[process.name],) = free_ports(1)
            if is_server:
                process.command[process.command.index("-c") + 1] = str(conf)
            option = "--group-secret-file" if is_server else "--secret-file"
            process.command += [
                *(option, str(secret), "--tls-config", str(self.tls_file)),
                *("--metrics", f"{HOST}:{self.metrics[process.name]}", "--log-level", "debug"),
            ]

    def _tls_keys(self, shown: TlsFiles) -> str:
        ends = "".join(
            f"tls.{end}.certPath={shown.certificate}\ntls.{end}.keyPath={shown.key}\n"
            f"tls.{end}.keyPassword={PASSWORD}\ntls.{end}.trustCertPath={shown.trust}\n"
            for end in ("server", "client", "peer")
        )
        modes = "tls.server.mode=enforcing\ntls.peer.mode=enforcing\ntls.metrics.enable=true\n"
        return modes + ends

    def change(self, text: str) -> None:
        """Give each process another file, as on machines of their own, and wait until it has read it."""
        for process in self.processes.processes():
            before = process.log.read_text().count("was read again")
            put(self.secret_files[process.name], text)
            assert poll(
                lambda: process.log.read_text().count("was read again") > before,  # noqa: B023
                PATIENCE_S,
            ), process.log_tail()

    def is_in_order(self) -> bool:
        """Whether every member is there, and follows."""
        words = ("status", "--strict", "--namesrv", self.processes.namesrv)
        return run_here(dledger_admin, "--tls-trust", self.files.trust, *words).returncode == 0

    def knows(self, secret: Path) -> bool:
        """Whether a log client with this secret is let in."""
        words = ("--group", self.processes.group, "--peers", self.processes.peers)
        files = self.files
        shown = (
            "--tls-cert",
            files.certificate,
            "--tls-key",
            files.key,
            "--tls-trust",
            files.trust,
        )
        told = run_here(
            dledger, "status", *words, *shown, "--secret-file", str(secret), "--timeout", "30"
        )
        return told.returncode == 0


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecretGroup]:
    made = SecretGroup(tmp_path_factory.mktemp("secrets"))
    with made.processes as processes:
        processes.start()
        processes.wait_listening()
        assert poll(lambda: made.sends(made.tls), PATIENCE_S), made.logs()[-3000:]
        yield made


def test_the_groups_secret_changes_while_it_serves(group: SecretGroup, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    put(old, OLD)
    put(new, NEW)
    assert (group.knows(old), group.knows(new)) == (True, False)
    for text in (f"{OLD}\n{NEW}\n", f"{NEW}\n{OLD}\n"):
        group.change(text)
        assert poll(lambda: group.sends(group.tls), PATIENCE_S), group.logs()[-3000:]
        assert (group.knows(old), group.knows(new)) == (True, True)
    node = group.processes.nodes[0]
    node.kill()
    node.start()  # while the others still take both
    assert poll(node.is_listening, PATIENCE_S), node.log_tail()
    group.change(f"{NEW}\n")
    assert (group.knows(old), group.knows(new)) == (False, True)
    assert poll(group.is_in_order, PATIENCE_S), group.logs()[-3000:]
    assert poll(lambda: group.sends(group.tls), PATIENCE_S), group.logs()[-3000:]
    for member in group.processes.nodes:
        assert "does not know the group's secret" not in member.log.read_text()


def raw(node: Process, tls: ssl.SSLContext, sent: bytes, source: str = HOST) -> bytes:
    """The whole answer to a request from an address of loopback."""
    where = (HOST, node.port)
    with (
        socket.create_connection(where, timeout=PATIENCE_S, source_address=(source, 0)) as near,
        tls.wrap_socket(near, server_hostname=HOST) as encrypted,
    ):
        encrypted.sendall(sent)
        data = b""
        while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            more = encrypted.recv(1 << 16)
            assert more, f"closed after {data[:200]!r}"
            data += more
    return data


def page(url: str, tls: ssl.SSLContext | None = None) -> str:
    """What a page shows."""
    with urllib.request.urlopen(url, timeout=PATIENCE_S, context=tls) as answer:
        return str(answer.read().decode())


def console_pages(group: SecretGroup, folder: Path) -> str:
    """All that the console shows, as far as its links lead."""
    (port,) = free_ports(1)
    command = [
        *(sys.executable, "-m", "broker.admin.cli", "--tls-trust", group.files.trust),
        *("web", "--namesrv", group.processes.namesrv, "--listen", f"{HOST}:{port}"),
    ]
    console = Process("console", command, log=folder / "console.log", port=port)
    console.start()
    try:
        assert poll(console.is_listening, PATIENCE_S), console.log_tail()
        seen: dict[str, str] = {}
        wanted = ["/"]
        while wanted and len(seen) < PAGES_MAX:
            path = wanted.pop()
            try:
                seen[path] = page(f"http://{HOST}:{port}{path}")
            except urllib.error.HTTPError as error:
                raise AssertionError(f"{path}: {error.read()[-600:]!r}") from error
            links = map(html.unescape, re.findall(r'href="(/[^"#]*)"', seen[path]))
            wanted += [each for each in links if each not in seen and each not in wanted]
        assert len(seen) > 3
        return "".join(seen.values()) + console.log.read_text()
    finally:
        console.kill()


def test_no_secret_stands_anywhere(group: SecretGroup, tmp_path: Path) -> None:
    outputs: dict[str, str] = {}
    wrong = {"AccessKey": "account-1", "Signature": "d3Jvbmc=", "topic": "T"}
    for node in group.processes.nodes:
        refused = raw(node, group.tls, frame(34, wrong, b"{}"), source="127.0.0.2")
        shown = raw(node, group.tls, frame(26, {}))
        assert b"tls.server.mode=enforcing" in shown
        assert b"useTLS=true" in shown
        outputs[f"answers of {node.name}"] = (refused + shown).decode(errors="replace")
    for process in group.processes.processes():
        outputs[f"log of {process.name}"] = process.log.read_text()
        outputs[f"ps of {process.name}"] = Path(f"/proc/{process.pid}/cmdline").read_text()
        url = f"https://{HOST}:{group.metrics[process.name]}"
        outputs[f"figures of {process.name}"] = page(f"{url}/metrics", group.tls)
    admin = ("--tls-trust", group.files.trust)
    for words in (("config", "show"), ("status", "--json"), ("clusterList",)):
        told = run_here(dledger_admin, *admin, *words, "--namesrv", group.processes.namesrv)
        outputs[f"dledger-admin {words}"] = told.stdout + told.stderr
    node = group.processes.nodes[0]
    for more in ((), ("--json",)):
        told = run_here(dledger_broker, *node.command[1:], "--check", *more)
        assert told.returncode == 0, told.stderr
        outputs[f"--check {more}"] = told.stdout + told.stderr
    outputs["the console"] = console_pages(group, tmp_path)
    derived = [path for path in group.processes.folder.rglob("derived/**/*") if path.is_file()]
    outputs |= {str(path): path.read_bytes().decode("latin-1") for path in derived}
    assert not {name for name, text in outputs.items() for each in SECRETS if each in text}


def test_the_port_of_figures_takes_https_only(group: SecretGroup) -> None:
    name = group.processes.nodes[0].name
    where = f"{HOST}:{group.metrics[name]}"
    assert page(f"https://{where}/healthz", group.tls)
    with pytest.raises((URLError, RemoteDisconnected, ConnectionError)):
        page(f"http://{where}/healthz")
    with pytest.raises(URLError, match="CERTIFICATE_VERIFY_FAILED"):
        page(f"https://{where}/healthz", make_tls_context())


def test_a_wrong_signature_is_refused_over_tls(group: SecretGroup) -> None:
    node = group.processes.nodes[0]
    with (
        socket.create_connection(
            (HOST, node.port), timeout=PATIENCE_S, source_address=("127.0.0.2", 0)
        ) as near,
        group.tls.wrap_socket(near, server_hostname=HOST) as encrypted,
    ):
        encrypted.sendall(frame(105, {"topic": "T"}))
        assert read_answer(encrypted)["code"] == 16
