"""The thread that writes."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dledger.runtime.storage_thread import StorageThread, Work


def begin(storage: StorageThread, call: Callable[[], object]) -> Work:
    work = Work(call)
    storage.begin(work)
    return work


def test_work_is_done_in_order_and_waited_for() -> None:
    storage = StorageThread()
    done: list[int] = []
    works = [begin(storage, lambda number=number: done.append(number)) for number in range(5)]  # type: ignore[misc]
    assert all(work.wait() for work in works)
    assert works[0].wait()  # as often as anybody likes
    assert done == [0, 1, 2, 3, 4]
    storage.close()


def test_nobody_waits_longer_than_he_wants_to() -> None:
    storage = StorageThread()
    gate = threading.Event()
    work = begin(storage, gate.wait)
    assert not work.wait(0)
    gate.set()
    assert work.wait()
    assert work.error is None
    storage.close()


def test_what_it_raises_is_kept() -> None:
    storage = StorageThread()

    def fail() -> None:
        raise OSError("gone")

    work = begin(storage, fail)
    assert work.wait()
    assert isinstance(work.error, OSError)
    assert begin(storage, lambda: None).wait()
    storage.close()
    storage.close()


def test_who_leaves_is_told_when_it_is_done_or_sees_that_it_is() -> None:
    storage = StorageThread()
    for _ in range(200):  # the thread is now before, now behind
        told = threading.Event()
        work = begin(storage, lambda: None)
        work.leave(told.set)
        assert work.is_done or told.wait(60)
        assert work.wait()
        assert work.is_done
    storage.close()


def test_what_is_not_done_says_so() -> None:
    storage = StorageThread()
    gate, told = threading.Event(), threading.Event()
    work = begin(storage, gate.wait)
    work.leave(told.set)
    assert not work.is_done
    assert not told.is_set()
    gate.set()
    assert told.wait(60)
    assert work.is_done
    storage.close()
