"""A state that takes long is taken in beside the one that is shown, with turns for everybody else."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager

import pytest
import trio

from dledger.raft.ids import Index, NodeId
from dledger.runtime import snapshot_fetch
from dledger.starting_state import made_to_stay
from dledger.state_machine import SnapshotRefusedError, SwappingMachine
from tests.unit.runtime.conftest import Group
from tests.unit.runtime.test_snapshot_fetch import Fetching
from tests.unit.runtime.test_snapshotting import KeptBodies, S, fill_and_take
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

OpenGroup = Callable[..., AbstractAsyncContextManager[Group]]

STEPS = 6
OLD = [b"shown before"]


class SwappingBodies(KeptBodies):
    """Bodies that are taken in beside those that are shown."""

    def __init__(self, *, refuses_at: int = STEPS) -> None:
        super().__init__()
        self.refuses_at = refuses_at
        self.made: list[SwappingBodies] = []
        self.is_given_up = False

    def beside(self) -> SwappingBodies:
        made = SwappingBodies(refuses_at=self.refuses_at)
        self.made.append(made)
        return made

    def load_steps(self, chunks: Iterator[bytes]) -> Iterator[None]:
        assert not gc.isenabled()
        given = list(chunks)
        for number in range(STEPS):
            if number == self.refuses_at:
                raise SnapshotRefusedError("it is no state")
            self.bodies.append(b"%d" % number)  # half of a state
            yield
        self.restore(iter(given))

    def swap(self, other: SwappingBodies) -> None:
        self.bodies, other.bodies = other.bodies, self.bodies
        self.applied_index, other.applied_index = other.applied_index, self.applied_index

    def giving_up(self) -> Iterator[None]:
        self.is_given_up = True
        yield


class TakingIn:
    """A fetch by a member that shows something already, and what everybody else sees meanwhile."""

    def __init__(self, group: Group, machine: SwappingBodies) -> None:
        self.fetching = Fetching(group, group.members[NodeId("n0")])
        machine.bodies, machine.applied_index = [*OLD], Index(1)
        self.fetching.machine = self.fetching.fetch._machine = self.machine = machine
        self.fetching.driver.applied_index = Index(1)
        self.seen: list[tuple[list[bytes], bool]] = []

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch)
            await self.fetching.run()
            nursery.cancel_scope.cancel()

    async def _watch(self) -> None:
        """Note what is shown whenever somebody else has a turn while a state is taken in."""
        while True:
            await trio.lowlevel.checkpoint()
            if self.machine.made and not self.fetching.driver.replaced:
                self.seen.append((self.machine.bodies, self.fetching.driver.is_fold_held))


@pytest.fixture(autouse=True)
def _steps_take_a_turn_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_fetch, "TURN_S", 0)


async def test_others_have_turns_and_see_the_old_state_until_it_is_the_new_one(
    open_group: OpenGroup,
) -> None:
    assert isinstance(SwappingBodies(), SwappingMachine)
    async with open_group(size=1) as group:
        await group.start("n0", machine=KeptBodies())
        source = await fill_and_take(group)
        taking_in = TakingIn(group, SwappingBodies())
        await taking_in.run()
        assert taking_in.machine.bodies == source.machine.bodies
        assert len(taking_in.seen) >= STEPS
        assert all(seen == (OLD, True) for seen in taking_in.seen), "the fold stands still"
        (given_up,) = taking_in.machine.made
        assert (given_up.bodies, given_up.is_given_up) == (OLD, True)
        assert len(taking_in.fetching.driver.replaced) == 1
        assert not taking_in.fetching.driver.is_fold_held
        assert gc.isenabled()


@pytest.mark.parametrize("refuses_at", [0, 3])
async def test_a_state_that_is_refused_halfway_leaves_the_old_one(
    open_group: OpenGroup, caplog: pytest.LogCaptureFixture, refuses_at: int
) -> None:
    async with open_group(size=1) as group:
        await group.start("n0", machine=KeptBodies())
        await fill_and_take(group)
        taking_in = TakingIn(group, SwappingBodies(refuses_at=refuses_at))
        with caplog.at_level(logging.WARNING):
            await taking_in.run()
        assert "snapshot-refused" in caplog.text
        _is_as_before(taking_in)


async def test_a_state_that_is_another_than_was_written_down_leaves_the_old_one(
    open_group: OpenGroup, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_group(size=1) as group:
        await group.start("n0", machine=KeptBodies())
        await fill_and_take(group)
        monkeypatch.setattr(SwappingBodies, "digest", lambda _: 1)
        taking_in = TakingIn(group, SwappingBodies())
        with caplog.at_level(logging.WARNING):
            await taking_in.run()
        assert "written were" in caplog.text
        _is_as_before(taking_in)


async def test_a_stop_in_the_middle_leaves_the_old_state_and_the_fold_free(
    open_group: OpenGroup,
) -> None:
    async with open_group(size=1) as group:
        await group.start("n0", machine=KeptBodies())
        await fill_and_take(group)
        taking_in = TakingIn(group, SwappingBodies())
        with trio.fail_after(S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(taking_in.run)
                while len(taking_in.seen) < 2:
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
        _is_as_before(taking_in)


def _is_as_before(taking_in: TakingIn) -> None:
    assert (taking_in.machine.bodies, taking_in.machine.applied_index) == (OLD, 1)
    assert not taking_in.fetching.driver.replaced
    assert not taking_in.fetching.driver.is_fold_held
    (given_up,) = taking_in.machine.made
    assert given_up.is_given_up
    assert gc.isenabled()


async def test_the_fold_stands_still_until_nobody_holds_it_up(open_group: OpenGroup) -> None:
    """A snapshot may be taken while a state is taken in: whoever is done first frees nothing that the other holds."""
    async with open_group(size=1) as group:
        leader = await group.start("n0", machine=KeptBodies())
        await group.leader()
        driver = leader.server._standing.driver
        assert driver is not None
        driver.hold_fold()
        driver.hold_fold()
        with trio.move_on_after(0):
            await leader.server.appender.append(b"x", timeout_s=S)
        await wait_until(lambda: driver.engine.has_committed)
        driver.release_fold()
        assert driver.is_fold_held
        driver.run_pass()
        assert leader.machine.bodies == []
        driver.release_fold()
        await wait_until(lambda: leader.machine.bodies == [b"x"])


@pytest.mark.parametrize(("frozen_count", "froze"), [(0, []), (5, ["frozen"])])
def test_a_process_that_has_frozen_what_it_began_with_freezes_what_is_made_to_stay(
    monkeypatch: pytest.MonkeyPatch, frozen_count: int, froze: list[str]
) -> None:
    done: list[str] = []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: frozen_count)
    monkeypatch.setattr(gc, "freeze", lambda: done.append("frozen"))
    with made_to_stay():
        assert not gc.isenabled()
        assert not done
    assert done == froze
    assert gc.isenabled()
