"""What is given away: one version, typed packages, and every import declared (pyproject.toml)."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import import_module
from importlib.metadata import packages_distributions
from typing import Any

import pytest

import dledger
import dledger_mq
from dledger.version import __version__
from tests.architecture.citations import files
from tests.architecture.sources import ROOT, imports_under

PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
COMMANDS: dict[str, str] = PYPROJECT["project"]["scripts"]
EXTRAS: dict[str, list[str]] = PYPROJECT["project"]["optional-dependencies"]
PREFIXES = tuple(
    name.rstrip("*") for name in PYPROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
)
PACKAGES = sorted(
    path.parent.name for path in ROOT.glob("*/__init__.py") if path.parent.name.startswith(PREFIXES)
)

OWNERS = packages_distributions()
"""Which distributions bring a module, as they are installed here."""

ENVIRONMENTS_OF_THEIR_OWN = {"jepsen/clients/cpp_worker.py"}
"""Programs that foreign clients run in; scripts/setup-interop makes these environments."""

EXTRAS_OF = {
    "broker": ("web", "grpc"),
    "pipeline": ("spark", "s3", "gs", "hdfs", "delta", "java"),
    "bench": ("dev", "spark", "grpc"),
}
"""Where more may be imported than every installation has."""

NAMES_OF_MANY = {"google": "google-cloud-storage"}
"""Modules that several distributions bring a part of: the one whose part is imported here."""


def distribution_names(requirements: list[str]) -> set[str]:
    return {
        normal(re.split(r"[<>=!~;\[ ]", requirement, maxsplit=1)[0]) for requirement in requirements
    }


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_tells_the_version(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    module, _, function = COMMANDS[command].partition(":")
    with pytest.raises(SystemExit) as end:
        getattr(import_module(module), function)(["--version"])
    assert (end.value.code, capsys.readouterr().out) == (0, f"{command} {__version__}\n")


def test_the_version_has_one_source() -> None:
    assert PYPROJECT["tool"]["setuptools"]["dynamic"]["version"] == {
        "attr": "dledger.version.__version__"
    }
    assert dledger.__version__ == dledger_mq.__version__ == __version__
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev0)?", __version__)


def test_nothing_tells_to_install_it_from_an_index() -> None:
    told = re.compile(r"pip\s+install\s+['\"]?dledger\b(?!-)")
    assert [str(path) for path in files() if told.search(path.read_text())] == []


def test_a_pull_request_is_checked_by_targets_that_everybody_has() -> None:
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    runs = set(re.findall(r"- run: (.*)", workflow))
    assert runs == {"make check", ".ci/run"}
    assert "run: |" not in workflow
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"check", "test"} <= targets
    assert (ROOT / ".ci/run").read_text().endswith("exec make test\n")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_tells_type_checkers_that_it_is_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()


@pytest.mark.parametrize("package", PACKAGES)
def test_whatever_is_imported_is_declared(package: str) -> None:
    declared = distribution_names(PYPROJECT["project"]["dependencies"])
    for extra in EXTRAS_OF.get(package, ()):
        declared |= distribution_names(EXTRAS[extra])
    wrong = [
        str(found)
        for found in imports_under(package)
        if found.top not in sys.stdlib_module_names
        if not (ROOT / found.top).is_dir()
        if NAMES_OF_MANY.get(found.top) not in declared
        if not {normal(owner) for owner in OWNERS.get(found.top, [found.top])} & declared
        if str(found.path.relative_to(ROOT)) not in ENVIRONMENTS_OF_THEIR_OWN
    ]
    assert wrong == []
