"""The leaders that the observer reports, from what members answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import trio
import trio.testing

from dledger import StatusAnswer
from jepsen.systems.observer import Observer, Watched


@dataclass
class Answer:
    """As much of a status as is looked at."""

    node_id: str
    term: int
    is_serving: bool


class Watch:
    """An observer whose members answer what a test says."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []
        self.observer = Observer(cast("Watched", None), lambda *what: self.told.append(what))

    def sees(self, *answers: tuple[str, int, bool]) -> None:
        seen = {name: Answer(name, term, serves) for name, term, serves in answers}
        self.observer._seen = cast("dict[str, StatusAnswer]", seen)
        self.observer._note_leader()


def test_a_leader_is_told_once() -> None:
    watch = Watch()
    watch.sees(("n0", 1, False), ("n1", 1, False))
    watch.sees(("n0", 1, True), ("n1", 1, False))
    watch.sees(("n0", 1, True))
    assert watch.told == [("n0", 1)]
    assert watch.observer.leader == "n0"


def test_that_nobody_leads_is_told_once_and_so_is_who_comes_back() -> None:
    watch = Watch()
    for serves in (True, False, False, True, True):
        watch.sees(("n0", 3, serves))
    assert watch.told == [("n0", 3), ("", 3), ("n0", 3)]


def test_who_led_before_is_not_told_again_after_the_next_one() -> None:
    """It has not heard of that, and the next one does not answer at the moment."""
    watch = Watch()
    watch.sees(("n0", 3, True), ("n1", 4, True))
    watch.sees(("n0", 3, False))
    watch.sees(("n0", 3, True))
    assert watch.told == [("n1", 4), ("", 4)]
    assert watch.observer.leader == "n0"


async def test_what_was_seen_before_does_not_make_a_group_whole(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Whoever has just killed a node and asks for the group waits until it was asked anew."""
    watch = Watch()
    observer = watch.observer
    is_asked = False

    def is_whole() -> bool:
        assert is_asked
        return True

    observer.is_whole = is_whole  # type: ignore[method-assign]  # what it sees is the test's
    async with trio.open_nursery() as nursery:
        nursery.start_soon(observer.wait_whole, 10.0)
        for _ in range(2):
            await trio.sleep(0.1)
            is_asked = True
            observer._changed.set()
            observer._changed = trio.Event()
    assert await observer.wait_whole(1.0) is False
