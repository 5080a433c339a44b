"""Who is asked for routes when name servers answer, fail or are silent: scripted links and a virtual clock."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import trio
import trio.testing

from dledger_mq.client.errors import (
    ClientClosedError,
    ConnectionLostError,
    NameServersUnreachableError,
)
from dledger_mq.client.link import Link
from dledger_mq.client.name_servers import ANSWER_TIMEOUT_S, HESITATION_S, NameServers
from dledger_mq.remoting.header import RemotingCommand

ADDRESSES = ("a:1", "b:1", "c:1")


class ScriptedLink(Link):
    """A connection to a name server that answers at once, breaks at once, or says nothing."""

    def __init__(self, address: str, manner: str, asked: list[str]) -> None:
        self.address = address
        self._manner = manner
        self._asked = asked

    async def call(
        self,
        code: int,
        ext: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        timeout_s: float,
        is_gathered: bool = False,
    ) -> RemotingCommand:
        self._asked.append(self.address)
        if self._manner == "breaks":
            raise ConnectionLostError(f"{self.address}: refused")
        if self._manner == "silent":
            await trio.sleep(timeout_s)
            raise ConnectionLostError(f"{self.address}: silent")
        return RemotingCommand(code=0, opaque=1, remark=self.address)


class Scripted:
    """Name servers of which each behaves in its manner."""

    def __init__(self, *manners: str) -> None:
        self.manners = dict(zip(ADDRESSES, manners, strict=True))
        self.asked: list[str] = []
        self.servers = NameServers(ADDRESSES, self._link)

    def _link(self, address: str) -> Link:
        return ScriptedLink(address, self.manners[address], self.asked)

    async def ask(self) -> tuple[str | None, float]:
        """Ask; who answered, and how long it took."""
        begun_s = trio.current_time()
        answer = await self.servers.call(105, {})
        return answer.remark, trio.current_time() - begun_s


async def test_who_answers_is_asked_alone_and_again(autojump_clock: trio.testing.MockClock) -> None:
    scripted = Scripted("answers", "answers", "answers")
    assert await scripted.ask() == ("a:1", 0.0)
    assert await scripted.ask() == ("a:1", 0.0)
    assert scripted.asked == ["a:1", "a:1"]


async def test_a_silent_one_costs_the_hesitation_and_no_more(
    autojump_clock: trio.testing.MockClock,
) -> None:
    scripted = Scripted("silent", "silent", "answers")
    assert await scripted.ask() == ("c:1", pytest.approx(2 * HESITATION_S))
    assert await scripted.ask() == ("c:1", 0.0)
    scripted.manners["c:1"] = "silent"
    scripted.manners["a:1"] = "answers"
    assert await scripted.ask() == ("a:1", pytest.approx(HESITATION_S))


async def test_those_who_have_less_time_than_the_hesitation_ask_others_in_the_end(
    autojump_clock: trio.testing.MockClock,
) -> None:
    scripted = Scripted("silent", "silent", "answers")
    for _ in range(2):
        with trio.move_on_after(HESITATION_S / 2) as scope:
            await scripted.ask()
        assert scope.cancelled_caught
    assert await scripted.ask() == ("c:1", 0.0)


async def test_one_that_fails_is_left_at_once(autojump_clock: trio.testing.MockClock) -> None:
    scripted = Scripted("breaks", "breaks", "answers")
    assert await scripted.ask() == ("c:1", 0.0)
    assert scripted.asked == list(ADDRESSES)


async def test_when_none_answers_each_is_given_its_time_and_its_reason_is_told(
    autojump_clock: trio.testing.MockClock,
) -> None:
    scripted = Scripted("silent", "breaks", "silent")
    begun_s = trio.current_time()
    with pytest.raises(
        NameServersUnreachableError, match=r"b:1: refused; a:1: silent; c:1: silent"
    ):
        await scripted.ask()
    assert trio.current_time() - begun_s == pytest.approx(HESITATION_S + ANSWER_TIMEOUT_S)


async def test_a_client_that_was_left_is_told_so_plainly(
    autojump_clock: trio.testing.MockClock,
) -> None:
    scripted = Scripted("silent", "answers", "answers")
    links_left = 1

    def get_link(address: str) -> Link:
        nonlocal links_left
        if not links_left:
            raise ClientClosedError("the client was left")
        links_left -= 1
        return ScriptedLink(address, scripted.manners[address], scripted.asked)

    servers = NameServers(ADDRESSES, get_link)
    for _ in range(2):  # in the midst of asking, and before
        with pytest.raises(ClientClosedError):
            await servers.call(105, {})
