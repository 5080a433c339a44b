"""A test can fail: it compares something, and what it compares is not always so."""

from __future__ import annotations

import ast

import pytest

from tests.architecture.checks import (
    Function,
    always_true,
    any_error_expected,
    checks_only_in_loops,
    checks_something,
    each_test,
)
from tests.architecture.ratchet import place_of
from tests.architecture.sources import ROOT, parsed

MODULES = sorted((ROOT / "tests").rglob("test_*.py"))


def test_every_test_checks_something() -> None:
    assert [
        f"{place_of(path, test.lineno)} {test.name}"
        for path in MODULES
        for test in each_test(parsed(path))
        if not checks_something(test, parsed(path))
    ] == []


def test_every_test_checks_something_for_sure() -> None:
    """Say how many there are to look at: `assert len(found) == 3`."""
    assert [
        f"{place_of(path, test.lineno)} {test.name}"
        for path in MODULES
        for test in each_test(parsed(path))
        if checks_only_in_loops(test)
    ] == []


def test_no_assertion_holds_always() -> None:
    assert [
        place_of(path, each.lineno) for path in MODULES for each in always_true(parsed(path))
    ] == []


def test_no_test_expects_just_any_error() -> None:
    assert [
        place_of(path, each.lineno) for path in MODULES for each in any_error_expected(parsed(path))
    ] == []


def only_test(source: str) -> tuple[Function, ast.Module]:
    tree = ast.parse(source)
    (test,) = each_test(tree)
    return test, tree


@pytest.mark.parametrize(
    "source",
    [
        "def test_it():\n    lock.release()",
        "async def test_it():\n    await store.wait()",
        "def lock():\n    return 1\ndef test_it():\n    lock()",
    ],
)
def test_a_test_that_only_calls_is_found(source: str) -> None:
    assert not checks_something(*only_test(source))


@pytest.mark.parametrize(
    "source",
    [
        "def test_it():\n    with pytest.raises(OSError):\n        release()",
        "async def test_it():\n    await wait_until(lambda: is_free)",
        "def fits(one):\n    assert one\ndef test_it():\n    fits(1)",
        "class Twin:\n    def step(self):\n        raise ValueError\ndef test_it():\n    Twin().step()",
    ],
)
def test_a_check_in_what_a_test_uses_is_one(source: str) -> None:
    assert checks_something(*only_test(source))


@pytest.mark.parametrize(
    ("body", "is_sure"),
    [
        ("for row in rows(): assert row", False),
        ("assert all(row for row in rows())", False),
        ("for row in [row for row in ROWS if row]: assert row", False),
        ("for row in ROWS: assert row", True),
        ("for name, row in zip('ab', (1, 2)): assert row", True),
        ("found = rows()\n    assert len(found) == 3\n    for row in found: assert row", True),
    ],
)
def test_a_loop_that_may_have_no_round_is_found(body: str, is_sure: bool) -> None:
    test, _ = only_test(f"def test_it():\n    {body}")
    assert checks_only_in_loops(test) is not is_sure


def test_assertions_that_always_hold_are_found() -> None:
    source = "assert (a == b, 'no')\nassert a == a\nassert f(1) == f(1)\nassert a"
    assert [each.lineno for each in always_true(ast.parse(source))] == [1, 2]


def test_just_any_error_is_found() -> None:
    source = "pytest.raises(Exception)\npytest.raises(Exception, match='x')\npytest.raises(OSError)"
    assert [each.lineno for each in any_error_expected(ast.parse(source))] == [1]
