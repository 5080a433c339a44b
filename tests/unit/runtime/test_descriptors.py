"""How many descriptors a process may have, and which ones clients do not get."""

from __future__ import annotations

import resource

import pytest

from dledger.runtime import descriptors

FREE = resource.RLIM_INFINITY


class Limits:
    """The limits of a process that has none of its own yet."""

    def __init__(self, soft: int, hard: int) -> None:
        self.now = (soft, hard)

    def get(self, which: int) -> tuple[int, int]:
        assert which == resource.RLIMIT_NOFILE
        return self.now

    def set(self, which: int, limits: tuple[int, int]) -> None:
        assert which == resource.RLIMIT_NOFILE
        self.now = limits


def let_have(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int) -> Limits:
    limits = Limits(soft, hard)
    monkeypatch.setattr(resource, "getrlimit", limits.get)
    monkeypatch.setattr(resource, "setrlimit", limits.set)
    return limits


@pytest.mark.parametrize(
    ("soft", "hard", "then"),
    [
        (1024, 524_288, 65_536),
        (1024, 4096, 4096),
        (1024, FREE, 65_536),
        (100_000, 524_288, 100_000),
        (FREE, FREE, FREE),
        (256, 256, 256),
    ],
)
def test_a_server_allows_itself_what_it_may(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, then: int
) -> None:
    limits = let_have(monkeypatch, soft, hard)
    descriptors.raise_limit()
    assert limits.now == (then, hard)


@pytest.mark.parametrize("error", [ValueError("not allowed"), OSError(1, "not permitted")])
def test_a_server_that_may_set_nothing_goes_on_with_what_it_has(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(_which: int, _limits: tuple[int, int]) -> None:
        raise error

    let_have(monkeypatch, 1024, FREE)
    monkeypatch.setattr(resource, "setrlimit", refuse)
    descriptors.raise_limit()
    assert descriptors.limit() == 1024


@pytest.mark.parametrize(
    ("soft", "first_kept"), [(65_536, 65_280), (1024, 768), (128, 96), (FREE, None)]
)
def test_the_last_ones_are_kept(
    monkeypatch: pytest.MonkeyPatch, soft: int, first_kept: int | None
) -> None:
    let_have(monkeypatch, soft, FREE)
    if first_kept is None:
        assert not descriptors.is_kept(1 << 30)
    else:
        assert not descriptors.is_kept(first_kept - 1)
        assert descriptors.is_kept(first_kept)
