"""Groups whose members are short of descriptors now and then, under faults that damage nothing: what is late comes."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random

import pytest

from dledger.storage.log_reader import FilePlace, SegmentReader
from dledger.storage.sealed_index import SealedIndex
from dledger.storage.segmented_log import SegmentedLog
from dledger.testing.sim_disk import SimDisk
from dledger.testing.sim_draws import draw_settings
from dledger.testing.sim_settings import SimSettings
from dledger.testing.simulation import SimVerdict, run_settings
from dledger.testing.state_checker import StateChecker

pytestmark = pytest.mark.slow

SEEDS = range(1, 13)
REFUSED_PERCENT = 3
READS: tuple[tuple[type, str], ...] = (
    (SegmentReader, "read"),
    (FilePlace, "read"),
    (SealedIndex, "chain_crcs"),
    (SealedIndex, "index_at"),
)
HARMLESS_KINDS = (
    "crash-one",
    "kill-one",
    "partition-one",
    "partition-half",
    "pause",
    "stand-still",
)


def without_damage(seed: int) -> SimSettings:
    """A drawn run in which every read of an entry needs the disk, and no disk damages any. Segments are many."""
    drawn = draw_settings(seed)
    weights = {
        kind: weight for kind, weight in drawn.fault_weights.items() if kind in HARMLESS_KINDS
    }
    return replace(
        drawn, fault_weights=weights | {"crash-one": 2}, cache_bytes_max=0, segment_size_bytes=512
    )


class Refusals:
    """Refuses some of the reads of entries and of indexes, not those of the checkers.

    Nor those of a cut into finished segments, at which a member stops.

    Attributes:
        counts: how many were refused, by who made them.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self._rng = Random(f"short/{seed}")
        self._is_checking = False
        for reader, name in READS:
            monkeypatch.setattr(reader, name, self._some_of(getattr(reader, name), reader.__name__))
        looked_at = SimDisk.only_looked_at

        @contextmanager
        def only_looked_at(disk: SimDisk) -> Iterator[None]:
            with self._checking(), looked_at(disk):
                yield

        monkeypatch.setattr(SimDisk, "only_looked_at", only_looked_at)
        for owner, name in ((StateChecker, "compare"), (SegmentedLog, "truncate_from")):
            monkeypatch.setattr(owner, name, self._none_of(getattr(owner, name)))

    def _none_of(self, act: Callable[..., object]) -> Callable[..., object]:
        def act_unrefused(*given: object) -> object:
            with self._checking():
                return act(*given)

        return act_unrefused

    @contextmanager
    def _checking(self) -> Iterator[None]:
        before, self._is_checking = self._is_checking, True
        try:
            yield
        finally:
            self._is_checking = before

    def _some_of(self, read: Callable[..., object], name: str) -> Callable[..., object]:
        def refuse_some(*given: object) -> object:
            if not self._is_checking and self._rng.random() * 100 < REFUSED_PERCENT:
                self.counts[name] += 1
                raise OSError(errno.EMFILE, "Too many open files")
            return read(*given)

        return refuse_some


def test_a_shortage_costs_no_entry_and_is_never_taken_for_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reached, refused = Counter[str](), Counter[str]()
    for seed in SEEDS:
        with monkeypatch.context() as patch:
            refusals = Refusals(patch, seed)
            result = run_settings(without_damage(seed))
        assert result.verdict is SimVerdict.FINE, f"seed {seed}: {result.problem}"
        reached.update(result.reached)
        refused.update(refusals.counts)
    assert (reached["repaired-live"], reached["repaired-before-start"]) == (0, 0)
    assert reached["entries-loaded"] > 0
    assert min(refused["SegmentReader"], refused["FilePlace"], refused["SealedIndex"]) > 0, refused
