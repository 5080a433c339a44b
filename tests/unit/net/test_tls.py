"""The two ends of an encrypted connection, without sockets: bytes from one are given to the other in pieces."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from dledger_mq.net.tls import TlsEnd, TlsError
from dledger_mq.net.tls_contexts import TlsFiles, TlsFilesError, client_context, server_context
from dledger_mq.remoting.frame import TLS_BYTE
from tests.certificates import HOST, client_side, server_side, write_files


def ends(
    folder: Path,
    *,
    auth: ssl.VerifyMode = ssl.CERT_NONE,
    client: ssl.SSLContext | None = None,
) -> tuple[TlsEnd, TlsEnd]:
    """A server's end and a client's."""
    near = client or client_side(folder / "client")
    return (
        TlsEnd(server_side(folder / "server", auth), is_server=True),
        TlsEnd(near, is_server=False, host=HOST),
    )


def shake(server: TlsEnd, client: TlsEnd, piece_bytes: int = 1 << 20) -> int:
    """Carry the handshake between the two; return how many bytes went to the server."""
    count, to_server = 0, client.begin()
    while to_server:
        count += len(to_server)
        to_client = b""
        for start in range(0, len(to_server), piece_bytes):
            assert server.decrypt(to_server[start : start + piece_bytes]) == b""
            to_client += server.take_output()
        to_server = b""
        for start in range(0, len(to_client), piece_bytes):
            assert client.decrypt(to_client[start : start + piece_bytes]) == b""
            to_server += client.take_output()
    return count


@pytest.mark.parametrize("piece_bytes", [1, 7, 1 << 20])
def test_bytes_come_out_as_they_were_put_in_however_they_are_cut(
    tmp_path: Path, piece_bytes: int
) -> None:
    server, client = ends(tmp_path)
    assert not server.is_open
    shake(server, client, piece_bytes)
    assert server.is_open
    assert client.is_open
    sent = bytes(range(256)) * 200
    travelling = client.encrypt(sent[:3]) + client.encrypt(sent[3:])
    assert sent[:256] not in travelling
    got = [
        server.decrypt(travelling[start : start + piece_bytes])
        for start in range(0, len(travelling), piece_bytes)
    ]
    assert b"".join(got) == sent
    assert client.decrypt(server.encrypt(b"answer")) == b"answer"


def test_a_handshake_begins_with_the_byte_that_no_frame_begins_with(tmp_path: Path) -> None:
    _, client = ends(tmp_path)
    assert client.begin()[0] == TLS_BYTE


def test_what_follows_a_handshake_in_the_same_read_is_not_lost(tmp_path: Path) -> None:
    server, client = ends(tmp_path)
    assert server.decrypt(client.begin()) == b""
    client.decrypt(server.take_output())
    assert client.is_open  # TLS 1.3: a client speaks at once
    assert server.decrypt(client.take_output() + client.encrypt(b"at once")) == b"at once"


def test_an_end_is_said_and_heard(tmp_path: Path) -> None:
    server, client = ends(tmp_path)
    shake(server, client)
    assert server.decrypt(client.encrypt(b"last") + client.farewell()) == b"last"
    assert server.has_ended
    assert client.decrypt(server.encrypt(b"still")) == b"still"  # half-closed


def test_no_session_is_offered_to_be_resumed(tmp_path: Path) -> None:
    server, client = ends(tmp_path)
    shake(server, client)
    assert client._object.session is None or not client._object.session.has_ticket


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "it speaks HTTP, not TLS"),
        (b"\x16\x03\x01" + b"\xff" * 300, "TLS handshake: "),
        (b"\x00\x00\x00\x90garbage", "what it sent is no TLS"),
    ],
    ids=["http", "half a hello", "garbage"],
)
def test_what_is_no_handshake_is_refused_with_the_reason(
    tmp_path: Path, sent: bytes, words: str
) -> None:
    server, _ = ends(tmp_path)
    with pytest.raises(TlsError, match=words):
        server.decrypt(sent)


def test_a_changed_byte_is_found(tmp_path: Path) -> None:
    server, client = ends(tmp_path)
    shake(server, client)
    travelling = bytearray(client.encrypt(b"a hundred"))
    travelling[-1] ^= 1
    with pytest.raises(TlsError, match="bad record mac"):
        server.decrypt(bytes(travelling))


def test_a_client_that_believes_another_authority_goes_and_says_why(tmp_path: Path) -> None:
    server, client = ends(tmp_path, client=client_side(tmp_path / "other", "strangers"))
    server.decrypt(client.begin())
    with pytest.raises(TlsError, match="not believed: unable to get local issuer certificate"):
        client.decrypt(server.take_output())
    with pytest.raises(TlsError, match="does not know who signed the certificate"):
        server.decrypt(client.take_output())


def test_a_certificate_for_another_host_is_not_believed(tmp_path: Path) -> None:
    server = TlsEnd(server_side(tmp_path), is_server=True)
    client = TlsEnd(client_side(tmp_path), is_server=False, host="10.9.8.7")
    server.decrypt(client.begin())
    with pytest.raises(
        TlsError, match=r"IP address mismatch, certificate is not valid for '10.9.8.7'"
    ):
        client.decrypt(server.take_output())


def old_client() -> ssl.SSLContext:
    """One that speaks TLS 1.0 and 1.1 only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="deprecated"):
        context.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="deprecated"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    return context


def test_versions_before_1_2_are_refused(tmp_path: Path) -> None:
    server, client = ends(tmp_path, client=old_client())
    with pytest.raises(TlsError, match=r"it offers no TLS version from 1\.2 on"):
        server.decrypt(client.begin())
    with pytest.raises(TlsError, match="does not allow the TLS versions that were offered"):
        client.decrypt(server.take_output())


def test_tls_1_2_is_taken(tmp_path: Path) -> None:
    context = client_side(tmp_path / "client")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    server, client = ends(tmp_path, client=context)
    shake(server, client)
    assert server.decrypt(client.encrypt(b"hello")) == b"hello"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_without_the_certificate_that_is_required_is_refused(
    tmp_path: Path, version: ssl.TLSVersion
) -> None:
    context = client_side(tmp_path / "client")
    context.maximum_version = version
    server, client = ends(tmp_path, auth=ssl.CERT_REQUIRED, client=context)
    with pytest.raises(TlsError, match="it showed no certificate, and one is required"):
        shake(server, client)
    with pytest.raises(TlsError, match="the other end"):
        client.decrypt(server.take_output())


def test_a_clients_certificate_is_checked(tmp_path: Path) -> None:
    good = client_side(tmp_path / "client", shows=True)
    server, client = ends(tmp_path, auth=ssl.CERT_REQUIRED, client=good)
    shake(server, client)
    assert server.is_open
    files = write_files(tmp_path / "stranger", "strangers")
    trust = write_files(tmp_path / "ours").trust
    stranger = client_context(TlsFiles(files.certificate, files.key, trust=trust))
    server, client = ends(tmp_path, auth=ssl.CERT_REQUIRED, client=stranger)
    with pytest.raises(TlsError, match="the certificate of the other end is not believed"):
        shake(server, client)


def unusable(files: TlsFiles, auth: ssl.VerifyMode = ssl.CERT_NONE) -> str:
    with pytest.raises(TlsFilesError) as caught:
        server_context(files, auth)
    return str(caught.value)


def test_files_that_cannot_be_used_are_named_with_the_reason(tmp_path: Path) -> None:
    ours, other = write_files(tmp_path / "a"), write_files(tmp_path / "b", "strangers")
    assert (
        unusable(TlsFiles("/no/cert.pem"))
        == "/no/cert.pem cannot be read: No such file or directory"
    )
    assert unusable(TlsFiles(ours.certificate, other.key)) == (
        f"the key in {other.key} does not belong to the first certificate in {ours.certificate}"
    )
    assert unusable(TlsFiles(ours.certificate)) == (
        f"{ours.certificate} and {ours.certificate} do not hold a certificate and its key as PEM"
    )
    Path(other.trust).write_text("nothing")
    assert unusable(
        TlsFiles(ours.certificate, ours.key, trust=other.trust), ssl.CERT_REQUIRED
    ).startswith(f"{other.trust} holds no certificates as PEM")


def test_an_encrypted_key_wants_its_password_and_asks_nobody(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    files = write_files(tmp_path)
    key = serialization.load_pem_private_key(Path(files.key).read_bytes(), None)
    Path(files.key).write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"right"),
        )
    )
    wrong = f"the key in {files.key} is encrypted, and its password is missing or wrong"
    assert unusable(TlsFiles(files.certificate, files.key)) == wrong
    assert unusable(TlsFiles(files.certificate, files.key, "wrong")) == wrong
    right = TlsFiles(files.certificate, files.key, "right")
    assert server_context(right, ssl.CERT_NONE).minimum_version is ssl.TLSVersion.TLSv1_2
    assert "right" not in repr(right)
