"""Sockets on one epoll descriptor."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import trio

from dledger.runtime.ready_sockets import READ, WRITE, ReadySockets

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    near, far = socket.socketpair()
    with near, far:
        yield near, far


@pytest.fixture
def ready() -> Iterator[ReadySockets[str]]:
    sockets: ReadySockets[str] = ReadySockets()
    yield sockets
    sockets.close()


def test_only_what_is_wanted_is_reported_until_it_is_forgotten(
    ready: ReadySockets[str], pair: Pair
) -> None:
    near, far = pair
    ready.watch(near, "near", READ)
    assert ready.take() == []
    ready.watch(near, "near", READ | WRITE)
    assert ready.take() == [("near", WRITE)]
    far.send(b"x")
    assert ready.take() == [("near", READ | WRITE)]
    ready.watch(near, "somebody else", READ)
    assert ready.take() == [("somebody else", READ)] == ready.take()
    assert ready.is_watched(near)
    ready.forget(near)
    ready.forget(near)
    assert not ready.is_watched(near)
    assert ready.take() == []


def test_an_end_is_reported_though_nothing_is_wanted(ready: ReadySockets[str], pair: Pair) -> None:
    near, far = pair
    ready.watch(near, "near", WRITE)
    far.close()
    ((owner, mask),) = ready.take()
    assert owner == "near"
    assert mask & ~(READ | WRITE)


def test_more_than_one_look_takes_come_in_turn(ready: ReadySockets[str]) -> None:
    count = 600
    pairs = [socket.socketpair() for _ in range(count)]
    for number, (near, far) in enumerate(pairs):
        ready.watch(near, str(number), READ)
        far.send(b"x")
    looks = [{owner for owner, _ in ready.take()} for _ in range(3)]
    assert set.union(*looks) == {str(number) for number in range(count)}
    for near, far in pairs:
        ready.forget(near)
        near.close()
        far.close()


async def test_who_waits_goes_on_when_one_is_ready(ready: ReadySockets[str], pair: Pair) -> None:
    near, far = pair
    ready.watch(near, "near", READ)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ready.wait)
            await trio.testing.wait_all_tasks_blocked()
            far.send(b"x")
    assert ready.take() == [("near", READ)]
