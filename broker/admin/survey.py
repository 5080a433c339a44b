"""One look at a cluster: all name servers and all brokers that they or the brokers name, at once and in bounded time.

A dead machine delays nobody: every answer leads to further questions at once, and each is given up after ANSWER_S.
Connections are closed after each look, since a broker that stops waits for its clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import trio

from broker.admin.ask import ASKED_AT_ONCE, NodeAnswer, ask_broker, ask_name_server, make_links
from broker.admin.facts import NAME_LENGTH_MAX, read_facts
from broker.admin.health import UNKNOWN_GROUP, KnownMembers, MemberState, Sight, judge
from dledger_mq.client.link import Links

ANSWER_S: Final = 2.0
"""For one answer, connecting included."""

SECOND_LOOK_S: Final = 0.2
"""A follower that lacks entries now has them by then, unless it is behind: it hears the leader every 60 ms."""

ADDRESSES_MAX: Final = 4096
"""More are not asked: whoever names so many is no name server of ours."""


async def look_around(
    name_servers: Sequence[str], brokers: Sequence[str], known: KnownMembers
) -> Sight:
    """Ask everybody, and those a second time who lack what their leader has committed.

    Args:
        name_servers: each is asked for its brokers.
        brokers: addresses that are asked whatever the name servers say.
        known: members that were seen before; they are asked as well.
    """
    async with trio.open_nursery() as nursery:
        look = _Look(make_links(nursery))
        remembered = (address for group in known.values() for address in group.values())
        async with trio.open_nursery() as asking:
            look.begin(asking, name_servers, {*brokers, *remembered} - {""})
        problems = {address: look.name_servers[address] for address in name_servers}
        registered = {name: frozenset(each) for name, each in look.registered.items()}
        if brokers:
            registered[UNKNOWN_GROUP] = frozenset(brokers)
        sight = Sight(problems, registered, look.answers)
        behind = [
            member.address
            for group in judge(sight, known).groups
            for member in group.members
            if member.state is MemberState.CATCHING_UP
        ]
        if behind:
            await trio.sleep(SECOND_LOOK_S)
            sight = Sight(problems, registered, look.answers, await look.ask_again(behind))
        nursery.cancel_scope.cancel()
    return sight


class _Look:
    """The questions of one look.

    Attributes:
        name_servers, registered, answers: as in `Sight`, filled by and by.
    """

    def __init__(self, links: Links) -> None:
        self.name_servers: dict[str, str] = {}
        self.registered: dict[str, set[str]] = {}
        self.answers: dict[str, NodeAnswer] = {}
        self._links = links
        self._limiter = trio.CapacityLimiter(ASKED_AT_ONCE)
        self._asked: set[str] = set()

    def begin(
        self, asking: trio.Nursery, name_servers: Sequence[str], brokers: Iterable[str]
    ) -> None:
        """Start the first questions; those that follow from their answers run in the same nursery."""
        for address in name_servers:
            asking.start_soon(self._ask_name_server, address, asking)
        self._start(sorted(brokers), asking)

    async def ask_again(self, addresses: Iterable[str]) -> Mapping[str, NodeAnswer]:
        """Ask brokers a second time; return their answers by address."""
        later: dict[str, NodeAnswer] = {}

        async def ask(address: str) -> None:
            later[address] = await self._ask(address)

        async with trio.open_nursery() as asking:
            for address in addresses:
                asking.start_soon(ask, address)
        return later

    def _start(self, addresses: Iterable[str], asking: trio.Nursery) -> None:
        """Ask brokers that have not been asked yet."""
        for address in addresses:
            if address not in self._asked and len(self._asked) < ADDRESSES_MAX:
                self._asked.add(address)
                asking.start_soon(self._ask_broker, address, asking)

    async def _ask_name_server(self, address: str, asking: trio.Nursery) -> None:
        found = await ask_name_server(self._links, address, timeout_s=ANSWER_S)
        if isinstance(found, str):
            self.name_servers[address] = found
            return
        self.name_servers[address] = ""
        for name, broker in sorted(found.brokers.items()):
            addresses = [one for _, one in sorted(broker.broker_addrs.items())]
            self.registered.setdefault(name[:NAME_LENGTH_MAX], set()).update(addresses)
            self._start(addresses, asking)

    async def _ask_broker(self, address: str, asking: trio.Nursery) -> None:
        answer = self.answers[address] = await self._ask(address)
        facts = read_facts(answer)
        if facts is not None:
            self._start((each for each in facts.members.values() if each), asking)

    async def _ask(self, address: str) -> NodeAnswer:
        async with self._limiter:
            return await ask_broker(self._links, address, timeout_s=ANSWER_S)
