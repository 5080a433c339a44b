"""Faults of the links between members, and between clients and members."""

from __future__ import annotations

import random
from typing import Final

import trio

from jepsen.nemeses.api import Fault, LinkKind, NothingStruckError, Scope
from jepsen.nemeses.namespaces import MTU, NamespaceLinks, lacking_namespaces
from jepsen.nemeses.partitions import Partition, between, cut_links
from jepsen.nemeses.process import struck
from jepsen.systems.api import CLIENTS, CUT, WHOLE, Link, LinkControl, Shape, System

FLAP_S: Final = 0.1
FLAP_ROUNDS: Final = 50
REPLAY_ROUNDS: Final = 20
REPLAY_PAUSE_S: Final = 0.25
REPLAYED_FRAMES: Final = 20
SMALL_MTU: Final = 600


def links_of(system: System) -> LinkControl:
    """Return the system's links; the fault has requested them when it was made."""
    assert system.links is not None, "the system was started without links"
    return system.links


def _names(system: System) -> list[str]:
    return [node.name for node in system.nodes]


def _described(links: set[Link]) -> str:
    """Describe directed links as text: `n0<->n1 n0->n2`."""
    both = sorted({tuple(sorted(link)) for link in links if link[::-1] in links})
    single = sorted(link for link in links if link[::-1] not in links)
    return " ".join([*(f"{a}<->{b}" for a, b in both), *(f"{a}->{b}" for a, b in single)])


class _LinkFault(Fault):
    """Base: the cure undoes what the fault itself did to links; another one may go on."""

    links: LinkKind = "any"

    def __init__(self, name: str) -> None:
        self.name = name
        self._is_struck = False

    def shape(self, system: System, link: Link, shape: Shape) -> None:
        """Set the shape of a link until the cure."""
        self._is_struck = True
        links_of(system).shape(*link, shape, self.name)

    async def cure(self, system: System) -> str:
        """Make every link whole again that was struck."""
        if not self._is_struck or system.links is None:
            return ""
        self._is_struck = False
        system.links.heal(self.name)
        return "all links are whole"


class CutLinks(_LinkFault):
    """A partition: bytes are swallowed, connections stay open."""

    def __init__(self, name: str, partition: Partition) -> None:
        super().__init__(name)
        self._partition = partition

    async def inject(self, system: System, chance: random.Random) -> str:
        """Cut the links of a drawn partition."""
        cut = cut_links(self._partition, _names(system), system.leader, chance)
        for link in sorted(cut):
            self.shape(system, link, CUT)
        return f"cut {_described(cut)}"


class HalfOpen(_LinkFault):
    """A node's connections stay open, but nothing is taken from them any more: TCP notices nothing.

    As a peer that vanished without a word, or a firewall that forgot its connections.
    """

    links: LinkKind = "proxies"

    def __init__(self, name: str, scope: Scope) -> None:
        super().__init__(name)
        self.scope = scope

    async def inject(self, system: System, chance: random.Random) -> str:
        """Stall all links of whom it strikes."""
        names = struck(system, self.scope, chance, running=False)
        for name in names:
            for link in between([name], [*set(_names(system)) - {name}, CLIENTS]):
                self.shape(system, link, Shape(flow="stall"))
        return f"nothing leaves or reaches {', '.join(names)}; connections stay open"


class Flap(_LinkFault):
    """One node's links are cut and healed ten times a second."""

    def __init__(self, name: str, scope: Scope) -> None:
        super().__init__(name)
        self.scope = scope

    async def inject(self, system: System, chance: random.Random) -> str:
        """Flap for some seconds."""
        (name, *_) = struck(system, self.scope, chance, running=False)
        cut = sorted(between([name], set(_names(system)) - {name}))
        for at in range(2 * FLAP_ROUNDS):
            for link in cut:
                self.shape(system, link, WHOLE if at % 2 else CUT)
            await trio.sleep(FLAP_S)
        return f"{name} was cut off and joined again {FLAP_ROUNDS} times"


class ShapeLinks(_LinkFault):
    """All links between members get a shape; clients' links too, if it is one that TCP could have."""

    def __init__(
        self, name: str, shape: Shape, *, with_clients: bool, links: LinkKind = "proxies"
    ) -> None:
        super().__init__(name)
        self.links = links
        self._shape = shape
        self._with_clients = with_clients

    async def inject(self, system: System, chance: random.Random) -> str:
        """Shape the links."""
        names = _names(system)
        ends = [*names, CLIENTS] if self._with_clients else names
        for source in ends:
            for target in ends:
                if source != target:
                    self.shape(system, (source, target), self._shape)
        return f"{self.name} on all links{'' if self._with_clients else ' between members'}"


class _NamespaceFault(_LinkFault):
    """Base of what only real devices can do."""

    links: LinkKind = "namespaces"

    def lacking(self) -> str | None:
        """Return what this machine lacks: it needs root, and `ip`."""
        return lacking_namespaces()


def _namespaces(system: System) -> NamespaceLinks:
    links = links_of(system)
    assert isinstance(links, NamespaceLinks), "the system was started without namespaces"
    return links


class Unplug(_NamespaceFault):
    """One node's cable is out: not even its own kernel hears that connections end."""

    def __init__(self, name: str, scope: Scope) -> None:
        super().__init__(name)
        self.scope = scope
        self._names: list[str] = []

    async def inject(self, system: System, chance: random.Random) -> str:
        """Unplug the links."""
        self._names = struck(system, self.scope, chance, running=False)
        for name in self._names:
            _namespaces(system).set_plugged(name, is_plugged=False)
        return f"unplugged {', '.join(self._names)}"

    async def cure(self, system: System) -> str:
        """Plug them in."""
        names, self._names = self._names, []
        for name in names:
            _namespaces(system).set_plugged(name, is_plugged=True)
        return f"plugged {', '.join(names)} in" if names else ""


class SmallPackets(_NamespaceFault):
    """No packet above 600 bytes passes between nodes."""

    async def inject(self, system: System, chance: random.Random) -> str:
        """Shrink the packets."""
        self._is_struck = True
        _namespaces(system).set_mtu(SMALL_MTU)
        return f"packets have at most {SMALL_MTU} bytes"

    async def cure(self, system: System) -> str:
        """Let packets have their usual size."""
        is_struck, self._is_struck = self._is_struck, False
        if is_struck:
            _namespaces(system).set_mtu(MTU)
        return f"packets have at most {MTU} bytes again" if is_struck else ""


class ReplayFrames(_LinkFault):
    """Members receive frames of earlier terms and of the first seconds once more, on live connections."""

    links: LinkKind = "proxies"

    async def inject(self, system: System, chance: random.Random) -> str:
        """Replay on random links, again and again.

        Raises:
            NothingStruckError: there was no frame to replay.
        """
        count = 0
        names = _names(system)
        for _ in range(REPLAY_ROUNDS):
            source, target = chance.sample(names, 2)
            count += links_of(system).replay(source, target, REPLAYED_FRAMES)
            await trio.sleep(REPLAY_PAUSE_S)
        if not count:
            raise NothingStruckError("no frames had gone between members that could be replayed")
        return f"replayed {count} old frames between members"
