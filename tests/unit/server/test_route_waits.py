"""Answers that wait for name servers: until these know, for a second, or not at all when too many wait."""

from __future__ import annotations

from functools import partial

import pytest
import trio
import trio.testing

from broker.server.route_waits import ROUTE_WAIT_S, RouteWaits


class NameServers:
    """The registrations that two name servers have taken, and what was answered."""

    def __init__(self, waits_max: int = 10) -> None:
        self.taken = (0, 0)
        self.answered: list[str] = []
        self.waits = RouteWaits(self._has_taken, waits_max=waits_max)

    def _has_taken(self, numbers: tuple[int, ...]) -> bool:
        return all(map(int.__ge__, self.taken, numbers))

    def add(self, name: str, *numbers: int) -> None:
        self.waits.add(numbers, partial(self.answered.append, name))


async def test_each_answer_is_given_when_all_name_servers_have_taken_its_registration() -> None:
    servers = NameServers()
    servers.add("first", 1, 1)
    servers.add("second", 1, 2)
    servers.add("third", 2, 2)
    servers.waits.look()
    assert (servers.answered, len(servers.waits)) == ([], 3)
    for taken, answered in (
        ((1, 0), []),
        ((1, 1), ["first"]),
        ((1, 2), ["first", "second"]),
        ((5, 5), ["first", "second", "third"]),
    ):
        servers.taken = taken
        servers.waits.look()
        assert servers.answered == answered
    servers.add("known", 5, 5)
    assert (servers.answered[-1], len(servers.waits)) == ("known", 0)


async def test_no_answer_waits_longer_than_its_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    servers = NameServers()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(servers.waits.run)
        for name in ("first", "second"):
            servers.add(name, 1, 1)
            await trio.sleep(ROUTE_WAIT_S * 0.4)
        assert servers.answered == []
        await trio.sleep(ROUTE_WAIT_S * 0.4)
        assert servers.answered == ["first"]
        await trio.sleep(ROUTE_WAIT_S * 0.4)
        assert (servers.answered, len(servers.waits)) == (["first", "second"], 0)
        servers.add("later", 1, 1)
        await trio.sleep(ROUTE_WAIT_S * 1.1)
        assert servers.answered[-1] == "later"
        nursery.cancel_scope.cancel()


async def test_one_too_many_is_given_at_once_and_the_log_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    servers = NameServers(waits_max=2)
    for name in ("a", "b", "c", "d"):
        servers.add(name, 1, 1)
    assert (servers.answered, len(servers.waits)) == (["c", "d"], 2)
    assert [each.getMessage()[:9] for each in caplog.records] == ["2 answers"]
    servers.taken = (1, 1)
    servers.waits.look()
    assert servers.answered == ["c", "d", "a", "b"]
