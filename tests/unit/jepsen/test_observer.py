"""What the onlooker tells of leaders, from what members answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from dledger import StatusAnswer
from jepsen.observer import Observer, Watched


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
