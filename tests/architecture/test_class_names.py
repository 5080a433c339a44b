"""One public class, one name: who meets a name in a package finds one idea behind it."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import PurePath

from tests.architecture.ratchet import product_modules
from tests.architecture.sources import ROOT, parsed

MIRROR = PurePath("dledger_mq/blocking")
"""Its classes are those of `dledger_mq/client` for callers without an event loop, and have their names."""

IN_SEVERAL_PACKAGES = frozenset({"ConnectionLostError", "Frame", "FrameDecoder", "SendAnswer"})
"""Names that still stand in more than one package. Take out what has become unique, and add none."""


def public_classes(tree: ast.Module) -> list[str]:
    """Return the public classes that a module defines, but for those within another."""
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]


def places_by_name(sources: Mapping[PurePath, ast.Module]) -> dict[str, list[PurePath]]:
    """Return the modules that define each public class."""
    places: dict[str, list[PurePath]] = defaultdict(list)
    for path, tree in sources.items():
        if MIRROR not in path.parents:
            for name in public_classes(tree):
                places[name].append(path)
    return dict(places)


def package_of(path: PurePath) -> str:
    return path.parts[0]


def twice_in_a_package(places: Mapping[str, Iterable[PurePath]]) -> list[str]:
    """Return a line for each class whose name another of its package has too."""
    found: list[str] = []
    for name, paths in sorted(places.items()):
        by_package: dict[str, list[str]] = defaultdict(list)
        for path in paths:
            by_package[package_of(path)].append(str(path))
        found += [f"{name}: {', '.join(same)}" for same in by_package.values() if len(same) > 1]
    return found


def in_several_packages(places: Mapping[str, Iterable[PurePath]]) -> set[str]:
    return {name for name, paths in places.items() if len({package_of(each) for each in paths}) > 1}


def product() -> dict[str, list[PurePath]]:
    return places_by_name({path.relative_to(ROOT): parsed(path) for path in product_modules()})


def test_a_public_class_name_stands_once_in_a_package() -> None:
    assert twice_in_a_package(product()) == []


def test_the_names_that_several_packages_have_become_fewer() -> None:
    assert in_several_packages(product()) == IN_SEVERAL_PACKAGES


def test_names_that_stand_twice_are_found() -> None:
    places = places_by_name(
        {
            PurePath(path): ast.parse(source)
            for path, source in (
                (
                    "broker/a.py",
                    "class Kind: ...\nclass _Row: ...\nclass Lone:\n    class Kind: ...",
                ),
                ("broker/store/b.py", "class Kind: ...\nclass _Row: ..."),
                ("jepsen/c.py", "class Lone: ..."),
                (MIRROR / "d.py", "class Lone: ..."),
            )
        }
    )
    assert twice_in_a_package(places) == ["Kind: broker/a.py, broker/store/b.py"]
    assert in_several_packages(places) == {"Lone"}
