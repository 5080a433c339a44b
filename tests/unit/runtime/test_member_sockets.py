"""Encrypted connections of members: what epoll says of them, what a full socket does, and who is let in."""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio

from dledger import ConfigError, MemberTls, NodeId, Peer, PeerProtocolError
from dledger.codec.frame import FrameDecoder
from dledger.runtime.member_sockets import MemberSocket, connect_member, meet, send_pieces
from dledger.runtime.sockets import FrameStream, tune
from tests.certificates import HOST, write_files

TIMEOUT_S = 120.0


def member_tls(folder: Path, name: str = "ours", *, takes_plain_text: bool = False) -> MemberTls:
    files = write_files(folder / name, name)
    found = MemberTls.from_files(certificate=files.certificate, key=files.key, trust=files.trust)
    return MemberTls(found.server, found.client, takes_plain_text)


class Port:
    """Where a member takes connections in: what came of each."""

    def __init__(self, tls: MemberTls | None) -> None:
        self.tls = tls
        self.listening = socket.create_server((HOST, 0))
        self.listening.setblocking(False)
        self.peer = Peer(NodeId("n1"), HOST, self.listening.getsockname()[1])
        self.streams: list[FrameStream] = []
        self.refusals: list[str] = []

    async def run(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self.listening)
            sock, _ = self.listening.accept()
            tune(sock)
            stream = FrameStream(sock, FrameDecoder(frame_bytes_max=1 << 10, blob_bytes_max=0))
            try:
                if self.tls is not None:
                    await meet(stream, self.tls)
                else:
                    await trio.lowlevel.wait_readable(sock)
                    if sock.recv(1, socket.MSG_PEEK) == b"\x16":
                        raise PeerProtocolError("no frame")  # noqa: TRY301
            except (PeerProtocolError, OSError) as error:
                self.refusals.append(str(error))
                stream.close()
            else:
                self.streams.append(stream)


@asynccontextmanager
async def taking_in(tls: MemberTls | None) -> AsyncIterator[Port]:
    port = Port(tls)
    with trio.fail_after(TIMEOUT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(port.run)
            try:
                yield port
            finally:
                nursery.cancel_scope.cancel()
    for stream in port.streams:
        stream.close()
    port.listening.close()


async def until(port: Port, count: int = 1) -> FrameStream:
    """The connection that was taken in; others may have been refused before."""
    while len(port.streams) < count:
        await trio.lowlevel.checkpoint()
    return port.streams[-1]


async def test_all_that_is_sent_comes_and_nothing_stays_where_epoll_does_not_see_it(
    tmp_path: Path,
) -> None:
    tls = member_tls(tmp_path)
    sent = bytes(range(256)) * (1 << 15)  # 8 MiB: more than a socket takes
    async with taking_in(tls) as port:
        near = await connect_member(port.peer, tls)
        far = (await until(port)).sock
        assert isinstance(near, MemberSocket)
        assert isinstance(far, MemberSocket)
        poller = select.epoll()
        poller.register(far, select.EPOLLIN)
        rest, received, buffer = memoryview(sent), bytearray(), bytearray(1 << 20)
        was_full = False
        while len(received) < len(sent):
            if rest:
                with suppress(BlockingIOError):
                    rest = rest[near.send(rest) :]
                was_full |= bool(rest)
            while poller.poll(0):
                try:
                    count = far.recv_into(buffer)
                except BlockingIOError:
                    break
                received += buffer[:count]
            await trio.lowlevel.checkpoint()
        assert received == sent
        assert was_full
        with pytest.raises(BlockingIOError):
            far.recv(1 << 16)
        near.close()
        await trio.lowlevel.wait_readable(far)
        assert far.recv(1 << 16) == b""
        poller.close()


@pytest.mark.parametrize("is_encrypted", [True, False])
async def test_pieces_come_as_one(tmp_path: Path, is_encrypted: bool) -> None:
    tls = member_tls(tmp_path) if is_encrypted else None
    body = bytes(range(256)) * (1 << 14)  # 4 MiB: more than a socket takes
    pieces: list[bytes | bytearray | memoryview] = [b"head", memoryview(body)[1:], b"", b"tail"]
    sent = b"".join(pieces)
    async with taking_in(member_tls(tmp_path, takes_plain_text=True)) as port:
        near = await connect_member(port.peer, tls)
        taken = send_pieces(near, pieces)
        assert 0 < taken < len(sent)
        far = (await until(port)).sock
        received = bytearray()
        while len(received) < len(sent):
            with suppress(BlockingIOError):
                taken += send_pieces(near, [memoryview(sent)[taken:]]) if taken < len(sent) else 0
            with suppress(BlockingIOError):
                received += far.recv(1 << 20)
            await trio.lowlevel.checkpoint()
        assert received == sent
        near.close()


async def test_plain_text_is_refused_where_tls_is_a_must(tmp_path: Path) -> None:
    async with taking_in(member_tls(tmp_path)) as port:
        near = await connect_member(port.peer, None)
        near.send(b"\x00\x00\x00\x08 hello")
        await trio.lowlevel.wait_readable(near)
        with suppress(ConnectionResetError):
            assert near.recv(10) == b""
        assert port.refusals == [
            "plain text on a port that takes TLS only (tls.peer.mode=enforcing)"
        ]
        near.close()


@pytest.mark.parametrize("is_tls_there", [True, False])
async def test_while_a_group_changes_over_both_are_spoken(
    tmp_path: Path, is_tls_there: bool
) -> None:
    changing = member_tls(tmp_path, takes_plain_text=True)
    async with taking_in(changing if is_tls_there else None) as port:
        near = await connect_member(port.peer, changing)
        near.send(b"hello")
        far = (await until(port)).sock
        assert isinstance(near, MemberSocket) is is_tls_there
        await trio.lowlevel.wait_readable(far)
        assert far.recv(10) == b"hello"
        near.close()
        if is_tls_there:
            plain = await connect_member(port.peer, None)
            plain.send(b"plain")
            assert (await until(port, 2)).sock.recv(5) == b"plain"
            plain.close()


async def test_a_stranger_is_kept_out_on_both_sides(tmp_path: Path) -> None:
    ours, strangers = member_tls(tmp_path), member_tls(tmp_path, "strangers")
    async with taking_in(ours) as port:
        with pytest.raises(PeerProtocolError, match="is not believed: "):
            await connect_member(port.peer, strangers)
        credulous = MemberTls(strangers.server, lambda: believing_anybody(tmp_path))
        near = await connect_member(port.peer, credulous)  # TLS 1.3: refused after the handshake
        await trio.lowlevel.wait_readable(near)
        with pytest.raises(ssl.SSLError):
            near.recv(10)
        near.close()
        assert port.streams == []
        assert "unknown ca" in port.refusals[0]
        assert "the certificate that it showed is not believed" in port.refusals[1]


def believing_anybody(folder: Path) -> ssl.SSLContext:
    files = write_files(folder / "strangers", "strangers")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.load_cert_chain(files.certificate, files.key)
    return context


async def test_who_speaks_no_tls_is_no_member(tmp_path: Path) -> None:
    async with taking_in(None) as port:
        with pytest.raises(PeerProtocolError, match="TLS with n1-"):
            await connect_member(port.peer, member_tls(tmp_path))


def test_certificates_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    files = write_files(tmp_path)
    with pytest.raises(ConfigError, match=r"/no/ca\.pem cannot be used"):
        MemberTls.from_files(certificate=files.certificate, key=files.key, trust="/no/ca.pem")
