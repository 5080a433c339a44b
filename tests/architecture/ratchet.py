"""Counts that only fall: what is not clean yet in a part of the product, and how much of it is still allowed.

A list of what is allowed has a line per part (`dledger/raft`; a module that lies directly in a package counts for the
package). A part without a line has nothing left to mend. Lower a number when it has become too high, never raise one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tests.architecture.sources import ROOT, modules_under

PRODUCT = ("dledger", "dledger_mq", "broker", "pipeline", "jepsen", "bench", "examples", "scripts")


def product_modules() -> Iterator[Path]:
    for package in PRODUCT:
        yield from modules_under(package)


def part_of(path: Path) -> str:
    """Name the part that a module belongs to: a package, or a folder directly in one."""
    return "/".join(path.relative_to(ROOT).parts[:-1][:2])


def place_of(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def excess(found: Iterable[tuple[Path, int]], allowed: Mapping[str, int]) -> list[str]:
    """Return the places in each part that has more of them than allowed, and the parts that have fewer by now."""
    places: dict[str, list[str]] = defaultdict(list)
    for path, line in found:
        places[part_of(path)].append(place_of(path, line))
    more = [
        text
        for part, lines in places.items()
        if len(lines) > allowed.get(part, 0)
        for text in (f"{part} has {len(lines)}, allowed are {allowed.get(part, 0)}:", *lines)
    ]
    fewer = [
        f"{part} has {len(places[part])} by now: allow no more than that"
        for part, count in allowed.items()
        if len(places[part]) < count
    ]
    return more + fewer
