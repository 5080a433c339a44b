"""The environment that a job takes along to machines that have nothing of ours: the extra `workers`, and no more.

`pip install` would fetch it; here each distribution is copied, file by file, from where the tests run, so that nothing
is asked for and nothing else comes along.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("dledger", "dledger_mq", "broker", "pipeline")
MODULE = "pyspark_rocketmq.py"


def make_environment(folder: Path) -> None:
    """Make a virtual environment with the project and its extra `workers`."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    for found in distributions(requirements("workers")):
        for file in found.files or ():
            source, target = Path(file.locate()), packages / file
            # Commands, which executors do not run; and old installers list all sources, also what they left out.
            if ".." not in file.parts and source.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                _link_or_copy(str(source), target)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, packages / name)
    shutil.copy2(ROOT / MODULE, packages)


def _link_or_copy(source: str, target: Path) -> None:
    """Give a file another name: no program changes what is installed."""
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def requirements(extra: str) -> list[str]:
    """What the project asks for, with an extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"][extra]]


def distributions(wanted: Sequence[str]) -> Iterator[Distribution]:
    """What is installed for some requirements, with what those ask for in turn."""
    seen: set[str] = set()
    waiting = [Requirement(each) for each in wanted]
    while waiting:
        asked = waiting.pop()
        if asked.marker is not None and not asked.marker.evaluate({"extra": ""}):
            continue
        name = asked.name.lower().replace("_", "-")
        if name in seen:
            continue
        seen.add(name)
        try:
            found = distribution(asked.name)
        except PackageNotFoundError as error:
            raise AssertionError(f"{asked} is not installed") from error
        yield found
        waiting += [Requirement(each) for each in found.requires or ()]
