"""A planned stop: how long it waits for clients that do not know the new leader, and what ends the wait."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import trio
import trio.testing

from broker.server.stopping import (
    DRAIN_S,
    HAND_OVER_AGAIN_S,
    LEADERLESS_S,
    LOOK_S,
    READERS_S,
    OrderlyStop,
)

FORWARD_S = 35.0


class Node:
    """A member, its name servers and its clients, as far as a stop asks them; `done` is what it was made to do."""

    node_id = "n0"

    def __init__(self, *, takes_over: str | None = "n1", members: int = 3) -> None:
        self.roster = SimpleNamespace(is_alone=members == 1)
        self.is_leader = True
        self.leader_id: str | None = "n0"
        self.clients = 1
        self.waiting = 0
        self.has_readers = False
        self.readers_sent_s = -1.0
        self.passed_on_s: float | None = None
        self.done: list[str] = []
        self._takes_over = takes_over
        node = cast("Any", self)
        self.stop = OrderlyStop(
            node,
            node,
            forward_s=FORWARD_S,
            passed_on_s=lambda: self.passed_on_s,
            has_clients=lambda: self.clients > 0,
            is_quiet=lambda: self.waiting == 0,
            send_readers_away=self._send_readers_away,
            answer_held_pulls=lambda: self.done.append("answer held pulls"),
            now_s=trio.current_time,
        )

    def _send_readers_away(self) -> bool:
        self.readers_sent_s = trio.current_time()
        return self.has_readers

    async def hand_over(self) -> None:
        self.done.append("hand over")
        if self._takes_over is not None:
            self.is_leader, self.leader_id = False, self._takes_over

    async def drain(self) -> None:
        self.done.append("drain")

    async def leave(self, timeout_s: float) -> None:
        assert timeout_s < DRAIN_S
        self.done.append("leave")


async def took_s(node: Node) -> float:
    begun_s = trio.current_time()
    await node.stop.run()
    return trio.current_time() - begun_s


async def test_who_led_serves_on_until_every_client_has_asked_for_routes_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    node = Node()
    assert FORWARD_S <= await took_s(node) <= FORWARD_S + 2 * LOOK_S
    assert node.done == ["hand over", "leave", "drain", "answer held pulls"]


async def test_it_leaves_the_routes_only_after_that(
    autojump_clock: trio.testing.MockClock,
) -> None:
    node = Node()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.stop.run)
        await trio.sleep(FORWARD_S - 1)
        assert node.done == ["hand over"]


async def test_a_second_wish_ends_the_wait(autojump_clock: trio.testing.MockClock) -> None:
    node = Node()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.stop.run)
        await trio.sleep(3)
        node.stop.hurry()
        begun_s = trio.current_time()
    assert trio.current_time() - begun_s <= LOOK_S
    assert node.done == ["hand over", "leave", "drain", "answer held pulls"]


async def test_without_clients_nobody_is_waited_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    node = Node()
    node.clients = 0
    assert await took_s(node) == 0
    assert node.done == ["hand over", "leave", "drain", "answer held pulls"]


async def test_who_has_not_led_for_so_long_stops_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    node = Node()
    node.is_leader, node.leader_id = False, "n1"
    assert await took_s(node) == 0
    assert node.done == ["leave", "drain", "answer held pulls"]
    again = Node()
    again.is_leader, again.leader_id = False, "n1"
    again.stop.note_led()
    await trio.sleep(30)
    assert FORWARD_S - 30 <= await took_s(again) <= FORWARD_S - 30 + 2 * LOOK_S


async def test_readers_of_backlogs_pull_once_more_and_are_gone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    node = Node()
    node.is_leader, node.leader_id, node.has_readers = False, "n1", True
    begun_s = trio.current_time()
    assert await took_s(node) == READERS_S
    assert node.readers_sent_s == begun_s
    node.clients = 0
    assert await took_s(node) == 0


async def test_readers_of_backlogs_are_sent_to_the_new_leader_while_it_serves_on(
    autojump_clock: trio.testing.MockClock,
) -> None:
    node = Node()
    node.has_readers = True
    begun_s = trio.current_time()
    assert await took_s(node) <= FORWARD_S + 2 * LOOK_S + READERS_S
    assert node.readers_sent_s == begun_s


async def test_who_has_not_led_and_was_sent_to_serves_on_as_well(
    autojump_clock: trio.testing.MockClock,
) -> None:
    node = Node()
    node.is_leader, node.leader_id = False, "n1"
    node.passed_on_s = trio.current_time()
    await trio.sleep(5)
    assert FORWARD_S - 5 <= await took_s(node) <= FORWARD_S - 5 + 2 * LOOK_S
    assert node.done == ["leave", "drain", "answer held pulls"]


async def test_an_election_ends_no_stop(autojump_clock: trio.testing.MockClock) -> None:
    node = Node()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.stop.run)
        await trio.sleep(2)
        node.leader_id = None
        await trio.sleep(2)
        node.leader_id = "n2"
        await trio.sleep(5)
        assert node.done == ["hand over"]
        node.stop.hurry()


async def test_a_member_that_is_alone_stops_at_once(autojump_clock: trio.testing.MockClock) -> None:
    alone = Node(takes_over=None, members=1)
    assert await took_s(alone) == 0
    assert alone.done == ["hand over", "leave", "drain", "answer held pulls"]


async def test_the_lead_is_offered_again_for_a_while_when_nobody_takes_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    node = Node(takes_over=None)
    assert LEADERLESS_S <= await took_s(node) <= LEADERLESS_S + 2 * HAND_OVER_AGAIN_S
    assert 10 <= node.done.count("hand over") <= 20
    assert node.done[-3:] == ["leave", "drain", "answer held pulls"]
    late = Node(takes_over=None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(late.stop.run)
        await trio.sleep(LEADERLESS_S / 2)
        assert late.is_leader
        late._takes_over = "n2"
        await trio.sleep(FORWARD_S / 2)
        assert (late.leader_id, "leave" in late.done) == ("n2", False)
        late.stop.hurry()


async def test_a_group_that_stops_as_a_whole_is_not_waited_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    node = Node()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.stop.run)
        await trio.sleep(2)
        node.leader_id = None
        begun_s = trio.current_time()
    waited_s = trio.current_time() - begun_s
    assert LEADERLESS_S - LOOK_S <= waited_s <= LEADERLESS_S + 2 * LOOK_S


async def test_who_is_elected_once_more_hands_over_once_more(
    autojump_clock: trio.testing.MockClock,
) -> None:
    node = Node()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.stop.run)
        await trio.sleep(5)
        node.is_leader, node.leader_id = True, "n0"
        node.stop.note_led()
        await trio.sleep(1)
        assert node.done == ["hand over", "hand over"]
        assert not node.is_leader


async def test_answers_on_their_way_are_waited_for_a_bounded_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    node = Node()
    node.clients, node.waiting = 0, 1
    assert DRAIN_S <= await took_s(node) <= DRAIN_S + LOOK_S


async def test_how_far_a_stop_is_can_be_asked(autojump_clock: trio.testing.MockClock) -> None:
    node = Node()
    assert node.stop.stage == ""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.stop.run)
        await trio.sleep(5)
        assert node.stop.stage == "passes requests on to n1 for up to 30 s"
        node.leader_id = None
        assert node.stop.stage == "passes requests on for up to 30 s"
        node.waiting = 1
        node.stop.hurry()
        await trio.sleep(1)
        assert node.stop.stage == "leaves"
        node.waiting = 0
