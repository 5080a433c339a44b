"""Runs that do not come to their end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from jepsen import catalogue
from jepsen.nemeses.proxy import ProxyError
from jepsen.run import RunSettings, execute
from jepsen.systems.api import Subject, SystemOptions

SETTINGS = RunSettings("log-set", "none", 1.0)


def made_with(error: BaseException, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let a system raise when it is made; the problems that are told, of an unknown run."""

    @contextmanager
    def breaks(_folder: Path, _options: SystemOptions) -> Iterator[Subject]:
        raise error
        yield

    entry = replace(catalogue.WORKLOADS["log-set"], systems={"log": breaks})
    monkeypatch.setattr(catalogue, "WORKLOADS", {"log-set": entry})
    result = execute(SETTINGS, folder)
    assert result.valid is None
    assert result.is_interrupted == ("interrupted" in result.problems[0])
    return list(result.problems)


def test_links_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problems = made_with(ProxyError("an address is taken"), tmp_path, monkeypatch)
    assert problems == ["while starting: ProxyError: an address is taken"]


def test_a_crash_of_the_harness_is_told_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = ExceptionGroup("in a nursery", [ZeroDivisionError("by zero")])
    (problem,) = made_with(group, tmp_path, monkeypatch)
    assert problem.startswith("while starting: the harness crashed: ZeroDivisionError: by zero")


def test_an_interrupt_among_other_troubles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = BaseExceptionGroup("in a nursery", [OSError("cut"), KeyboardInterrupt()])
    assert made_with(group, tmp_path, monkeypatch) == ["while starting: interrupted"]
