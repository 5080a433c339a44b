"""Faults of links tell the links what to do, and the cure heals them."""

from __future__ import annotations

import random

import pytest

from jepsen.nemeses import named, specifications
from jepsen.nemeses import network as network_faults
from jepsen.nemeses.claims import Claims
from jepsen.nemeses.namespaces import NamespaceLinks
from jepsen.systems.api import CLIENTS, CUT, WHOLE, Link, Shape
from tests.integration.nemeses.conftest import FakeSystem

pytestmark = pytest.mark.integration


class NotedLinks:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.shapes: dict[Link, Shape] = {}
        self._claims = Claims()
        self.changes = 0

    def shape(self, source: str, target: str, shape: Shape, owner: str = "") -> None:
        self.shapes[source, target] = self._claims.claim((source, target), shape, owner)
        self.changes += 1

    def replay(self, source: str, target: str, count: int) -> int:
        self.changes += 1
        return count

    def heal(self, owner: str | None = None) -> None:
        self.shapes |= self._claims.release(owner)


OF_LINKS = [spec for spec in specifications() if named(spec).links in {"any", "proxies"}]
OF_NAMESPACES = [spec for spec in specifications() if named(spec).links == "namespaces"]


@pytest.mark.parametrize("spec", OF_LINKS)
async def test_every_fault_of_links_strikes_and_is_cured(
    system: FakeSystem, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_faults, "FLAP_S", 0.0)
    monkeypatch.setattr(network_faults, "REPLAY_PAUSE_S", 0.0)
    links = system.links = NotedLinks()
    fault = named(spec)
    assert await fault.cure(system) == ""
    assert await fault.inject(system, random.Random(1))
    assert links.changes > 0
    if not spec.startswith(("flap", "replay")):
        assert any(shape != WHOLE for shape in links.shapes.values())
    assert await fault.cure(system) == ("" if spec == "replay" else "all links are whole")
    assert set(links.shapes.values()) <= {WHOLE}
    assert await fault.cure(system) == ""


async def test_what_tcp_never_does_is_not_done_to_clients(system: FakeSystem) -> None:
    links = system.links = NotedLinks()
    await named("corrupt").inject(system, random.Random(1))
    assert not any(CLIENTS in link for link in links.shapes)
    await named("delay").inject(system, random.Random(1))
    assert any(CLIENTS in link for link in links.shapes)


@pytest.mark.parametrize("spec", OF_NAMESPACES)
async def test_faults_of_namespaces_are_cured(system: FakeSystem, spec: str) -> None:
    fault = named(spec)
    if lacking := fault.lacking():
        pytest.skip(lacking)
    with NamespaceLinks([node.name for node in system.nodes]) as links:
        system.links = links
        assert await fault.inject(system, random.Random(1))
        assert await fault.cure(system)
        assert await fault.cure(system) == ""


async def test_a_cure_leaves_to_another_fault_what_that_has_struck(system: FakeSystem) -> None:
    """What the history calls in force is in force."""
    links = system.links = NotedLinks()
    cut, slow = named("partition:leader-peers"), named("delay")
    await cut.inject(system, random.Random(1))
    await slow.inject(system, random.Random(1))
    assert links.shapes["n0", "n1"] == CUT
    assert links.shapes["n0", "n2"].delay_ms > 0
    await slow.cure(system)
    assert links.shapes["n0", "n1"] == CUT
    assert links.shapes["n0", "n2"] == WHOLE
    await cut.cure(system)
    assert set(links.shapes.values()) == {WHOLE}
