"""A state that is restored is not searched for garbage meanwhile, and what fails fails as its snapshot does."""

from __future__ import annotations

import errno
import gc
from collections.abc import Iterator
from typing import Any, cast

import pytest

from dledger.errors import EntryDamagedError
from dledger.starting_state import restore_from
from dledger.state_machine import SnapshotRefusedError


class Machine:
    """Notes whether garbage is looked for while it is restored; refuses what is empty."""

    collects: bool | None = None

    def restore(self, chunks: Iterator[bytes]) -> None:
        self.collects = gc.isenabled()
        if not b"".join(chunks):
            raise SnapshotRefusedError("nothing")


class Store:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def chunks(self, _snapshot: object) -> Iterator[bytes]:
        return iter([self._data])


def restore(machine: Machine, data: bytes) -> None:
    restore_from(cast("Any", Store(data)), cast("Any", None), cast("Any", machine))


def test_garbage_is_looked_for_before_and_after() -> None:
    machine = Machine()
    assert gc.isenabled()
    restore(machine, b"state")
    assert (machine.collects, gc.isenabled()) == (False, True)
    with pytest.raises(SnapshotRefusedError):
        restore(machine, b"")
    assert gc.isenabled()


def test_who_looks_for_none_at_all_does_not_afterwards() -> None:
    gc.disable()
    try:
        restore(Machine(), b"state")
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_part_that_cannot_be_read_now_says_nothing_of_its_snapshot() -> None:
    """A snapshot that was refused for want of descriptors would be removed before any other."""

    class Reading(Machine):
        def restore(self, chunks: Iterator[bytes]) -> None:
            refused = OSError(errno.EMFILE, "Too many open files")
            raise EntryDamagedError("it cannot be read now") from refused

    with pytest.raises(OSError, match="Too many open files"):
        restore(Reading(), b"state")
