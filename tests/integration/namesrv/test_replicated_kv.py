"""Configuration values between name servers: consistent, durable, and refused without a majority."""

from __future__ import annotations

import pickle
import socket
import struct
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from broker.namesrv import replicated_kv
from broker.namesrv.errors import KvLimitError, KvUnavailableError, NameServerConfigError
from broker.namesrv.replicated_kv import KvGroup, ReplicatedKv
from dledger_mq.net.address import Address
from jepsen.ports import free_ports

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    # The library leaves the file of its journal's state for the collector to close.
    pytest.mark.filterwarnings(
        "ignore:.*kv.journal.meta.*:pytest.PytestUnraisableExceptionWarning"
    ),
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
]
TIMEOUT_S = 180.0
PASSWORD = "correct horse battery staple"


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An election on a slow machine takes longer than changes wait for one."""
    monkeypatch.setattr(replicated_kv, "COMMIT_TIMEOUT_S", TIMEOUT_S)


def free_addresses(count: int) -> list[Address]:
    return [Address("127.0.0.1", port) for port in free_ports(count)]


def member(addresses: list[Address], number: int, folder: Path) -> ReplicatedKv:
    own = addresses[number]
    peers = tuple(address for address in addresses if address != own)
    return ReplicatedKv(KvGroup(own, peers, PASSWORD, folder / str(number)))


async def test_values_on_their_way_count_against_the_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else is there, so nothing is applied meanwhile."""
    monkeypatch.setattr("broker.namesrv.kv.NAMESPACE_CHARS_MAX", 10)
    values = member(free_addresses(3), 0, tmp_path)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(values.put, "n", "a", "12345")
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(KvLimitError, match="would have 14 characters"):
                await values.put("n", "b", "12345")
            nursery.cancel_scope.cancel()
        monkeypatch.setattr(replicated_kv, "COMMIT_TIMEOUT_S", 0.5)
        for key in ("b", "c"):  # the one before is not on its way any more
            with pytest.raises(KvUnavailableError):
                await values.put("n", key, "12345")
    finally:
        await values.close()


def test_a_journal_that_cannot_be_used_is_told_of_in_a_sentence(tmp_path: Path) -> None:
    """An empty one is left by a process that was killed while it made it."""
    addresses = free_addresses(3)
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "kv.journal").touch()
    with pytest.raises(NameServerConfigError, match=r"journal .* cannot be used: cannot mmap an"):
        member(addresses, 0, tmp_path)
    (tmp_path / "0" / "kv.journal").write_bytes(
        bytes(2000)
    )  # of which the library would begin anew
    with pytest.raises(NameServerConfigError, match=r"kv.journal is damaged: it begins with b"):
        member(addresses, 0, tmp_path)
    (tmp_path / "0" / "kv.journal").unlink()
    (tmp_path / "0" / "kv.journal.meta").touch()  # of which the library would have given no vote
    with pytest.raises(NameServerConfigError, match=r"kv.journal.meta is damaged: it is empty"):
        member(addresses, 0, tmp_path)
    (tmp_path / "1").touch()
    with pytest.raises(NameServerConfigError, match=r"journal .* cannot be used: .*File exists"):
        member(addresses, 1, tmp_path)


@asynccontextmanager
async def group(folder: Path, addresses: list[Address]) -> AsyncIterator[list[ReplicatedKv]]:
    with trio.fail_after(TIMEOUT_S):
        members = [member(addresses, number, folder) for number in range(3)]
        try:
            yield members
        finally:
            for kv in members:
                await kv.close()


async def until_equal(members: list[ReplicatedKv], namespace: str) -> None:
    while any(kv.namespace(namespace) != members[0].namespace(namespace) for kv in members):
        await trio.lowlevel.checkpoint()


async def test_all_name_servers_see_what_any_was_told(tmp_path: Path) -> None:
    addresses = free_addresses(3)
    async with group(tmp_path, addresses) as members:
        for number, kv in enumerate(members):
            await kv.put("n", f"k{number}", str(number))
            assert kv.get("n", f"k{number}") == str(number), "what was answered can be read"
        await members[1].delete("n", "k0")
        await until_equal(members, "n")
        assert members[2].namespace("n") == {"k1": "1", "k2": "2"}
        assert members[2].namespace("m") is None
        with pytest.raises(KvLimitError):
            await members[0].put("", "k", "v")
    async with group(tmp_path, addresses) as members:
        await members[0].put("n", "again", "x")
        await until_equal(members, "n")
        assert members[0].namespace("n") == {"k1": "1", "k2": "2", "again": "x"}


async def test_without_a_majority_a_change_is_refused_in_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = free_addresses(3)
    async with group(tmp_path, addresses) as members:
        await members[0].put("n", "k", "v")
        await until_equal(members, "n")
        await members[1].close()
        await members[0].put("n", "k2", "v")
        await members[2].close()
        monkeypatch.setattr(replicated_kv, "COMMIT_TIMEOUT_S", 0.5)
        with pytest.raises(KvUnavailableError, match="not committed within"):
            await members[0].put("n", "k3", "v")
        assert members[0].get("n", "k") == "v", "reads go on"


class Intruder:
    """What a stranger would send: unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


async def test_a_stranger_is_cut_off_before_anything_is_unpickled(tmp_path: Path) -> None:
    addresses = free_addresses(3)
    trap = tmp_path / "trap"
    async with group(tmp_path, addresses) as members:
        await members[0].put("n", "k", "v")
        message = zlib.compress(pickle.dumps(Intruder(trap)))
        for address in addresses:
            stream = await trio.open_tcp_stream(*address)
            async with stream:
                await stream.send_all(struct.pack("i", len(message)) + message)
                assert await stream.receive_some() == b"", "the connection is closed"
        await members[1].put("n", "k2", "v")
    assert not trap.exists()
    pickle.loads(pickle.dumps(Intruder(trap)))
    assert trap.exists(), "the trap works"


async def test_a_taken_address_ends_the_start(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        own = Address(*taken.getsockname())
        with pytest.raises(NameServerConfigError, match="cannot listen there"):
            ReplicatedKv(KvGroup(own, (Address("127.0.0.1", 1),), PASSWORD, tmp_path))
