"""RocketMQ's own Java clients against a group and a name server that take TLS only."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from dledger_mq.blocking import Admin
from jepsen.processes import poll
from tests.certificates import write_files
from tests.interop.conftest import JAVAS, ForeignClient, lacking, received, sent
from tests.tls_group import PATIENCE_S, TlsGroup, running

pytestmark = [pytest.mark.integration, pytest.mark.slow]

COUNT = 20
TIMEOUT_S = 300.0


@pytest.fixture(scope="module")
def enforcing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsGroup]:
    folder = tmp_path_factory.mktemp("enforcing")
    yield from running(folder, "enforcing")


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsGroup]:
    """Takes only who shows a certificate; the nodes show theirs to each other and to the name server."""
    folder = tmp_path_factory.mktemp("mutual")
    yield from running(folder, "enforcing", is_mutual=True)


@pytest.fixture(params=JAVAS)
def java(request: pytest.FixtureRequest, enforcing: TlsGroup) -> ForeignClient:
    return client(request.param, enforcing)


def client(kind: str, group: TlsGroup) -> ForeignClient:
    if reason := lacking(kind):
        pytest.skip(reason)
    return ForeignClient(kind, group.processes.namesrv)


def properties(monkeypatch: pytest.MonkeyPatch, **values: object) -> None:
    """Properties of Java's process, which are where these clients read their keys of TLS from."""
    words = [f"-Dtls.{key.replace('_', '.')}={value}" for key, value in values.items()]
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", " ".join(words))


def produces(java: ForeignClient, group: TlsGroup, name: str) -> list[str]:
    """What a Java producer gets stored in a new topic.

    Java's first handshake may take longer than the library waits for a route: then its first sends are lost.
    """
    with Admin(group.processes.namesrv, tls=group.tls, timeout_s=TIMEOUT_S) as admin:
        admin.create_topic(name)
    child = java.start("produce", "--topic", name, "--count", str(COUNT), "--keep-going")
    out, err = child.communicate(timeout=TIMEOUT_S)
    produced = sent([json.loads(line) for line in out.splitlines()])
    assert produced, err[-3000:]
    return produced


def consumes(java: ForeignClient, name: str, produced: list[str]) -> bool:
    """Whether these messages come to a Java consumer."""
    options = ("--count", str(len(produced)), "--timeout", "200")
    consumed = java.run("consume", "--topic", name, "--group", f"G{name}", *options)
    return Counter(received(consumed)) == Counter(produced)


def test_java_sends_in_its_test_mode_and_consumes_where_it_checks_our_certificate(
    java: ForeignClient, enforcing: TlsGroup, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is out of the box, it believes anybody."""
    properties(monkeypatch, enable="true")
    produced = produces(java, enforcing, name)
    properties(
        monkeypatch,
        enable="true",
        test_mode_enable="false",
        client_authServer="true",
        client_trustCertPath=enforcing.files.trust,
    )
    assert consumes(java, name, produced)


def test_java_shows_a_certificate(
    mutual: TlsGroup, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java, shown = client("java-4.9.8", mutual), write_files(tmp_path)
    key = serialization.load_pem_private_key(Path(shown.key).read_bytes(), None)
    Path(shown.key).write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,  # Netty reads no other
            serialization.NoEncryption(),
        )
    )
    properties(
        monkeypatch,
        enable="true",
        test_mode_enable="false",
        client_authServer="true",
        client_trustCertPath=shown.trust,
        client_certPath=shown.certificate,
        client_keyPath=shown.key,
    )
    assert consumes(java, name, produces(java, mutual, name))

    def is_told() -> bool:
        """A client may give up before the handshake got so far."""
        assert not mutual.sends(mutual.without_certificate, timeout_s=1.0)
        return "it showed no certificate, and one is required" in mutual.logs()

    assert poll(is_told, PATIENCE_S)
