"""Parts from which a state is served are read soon after a start, though nobody asks for them."""

from __future__ import annotations

import errno

import pytest
import trio

from dledger.errors import DiskFailedError, EntryDamagedError
from dledger.runtime import part_checks
from dledger.runtime.part_checks import check_parts
from dledger.testing.sim_disk import SimFile
from tests.unit.runtime.conftest import PATIENCE_S, wait_until
from tests.unit.storage.test_parts_in_use import Served


async def check_all(served: Served) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(check_parts, served.in_use, "n0")
        await wait_until(lambda: all(part.is_verified for part in served.parts))
        nursery.cancel_scope.cancel()


async def test_every_part_is_read_and_a_damaged_file_is_noted() -> None:
    served = Served(3)
    served.flip(0)
    await check_all(served)
    assert [served.store.has_part(part.stored) for part in served.parts] == [False, True, True]


async def test_where_both_files_are_damaged_the_node_stops_and_the_next_start_does_without() -> (
    None
):
    served = Served(3)
    served.flip(0)
    served.flip(1)
    with pytest.raises(DiskFailedError, match=r"twin"), trio.fail_after(PATIENCE_S):
        await check_parts(served.in_use, "n0")
    assert served.path(0) not in served.disk.paths()


async def test_a_loss_that_a_reader_has_met_stops_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_checks, "IDLE_S", 0.001)
    served = Served()
    await check_all(served)
    served.flip(0)
    served.flip(1)
    with pytest.raises(OSError, match="twin"):
        served.part.read_beside(0, served.part.stored.state_bytes)
    with pytest.raises(DiskFailedError), trio.fail_after(PATIENCE_S):
        await check_parts(served.in_use, "n0")


async def test_a_loss_that_the_fold_has_met_is_set_aside_though_the_fold_stops_the_node() -> None:
    """It would at every start that finds the files again, each time before they are looked at."""
    served = Served(2)
    await check_all(served)
    served.flip(0)
    served.flip(1)

    async def fold() -> None:
        served.part.read(0, served.part.stored.state_bytes)

    with pytest.RaisesGroup(EntryDamagedError), trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(check_parts, served.in_use, "n0")
            nursery.start_soon(fold)
    assert not {served.path(0), served.path(1)} & set(served.disk.paths())


async def test_a_lack_of_descriptors_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_checks, "RETRY_S", 0.001)
    served = Served(2)
    real_open, refused = served.disk.open, 0

    def refuse_some(path: str, *, create: bool = False) -> SimFile:
        nonlocal refused
        if refused < 5:
            refused += 1
            raise OSError(errno.EMFILE, "Too many open files", path)
        return real_open(path, create=create)

    monkeypatch.setattr(served.disk, "open", refuse_some)
    await check_all(served)
    assert refused == 5
    assert not served.in_use.damaged
