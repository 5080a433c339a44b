"""How a planted mistake is looked for: first in the run that showed it when the test was written, then in all others.

A search asks whether any of its seeds shows a mistake, and nearly all of its time went into those before the one that
does. Where that one no longer shows it, since runs have changed, the others are searched as ever: the test passes, and
tells which seed is to be written in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable

Report = Callable[[str], None]
_reporters: list[Report] = []


def report_with(report: Report) -> None:
    """Let what is to be read, also when a test passes, be told in this way from now on."""
    _reporters[:] = [report]


def lately_first(seeds: Iterable[int], lately: int) -> Generator[int, None, None]:
    """Give all of these seeds, first the one that showed the mistake lately.

    Raises:
        ValueError: it is none of them.
    """
    others = list(seeds)
    others.remove(lately)
    yield lately
    for seed in others:
        try:
            yield seed
        except GeneratorExit:
            for report in _reporters:
                report(f"seed {lately} no longer shows what {seed} does: write that in its place")
            raise
