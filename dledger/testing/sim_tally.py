"""Sums over many runs: what they did, what went wrong in them, and how fast they went.

It sees results only, and no run.
"""

from __future__ import annotations

from collections import Counter

from dledger.testing.simulation import SimResult, SimVerdict

BAD_KEPT_MAX = 100
"""Failing runs of which the problem is kept; the others are only counted."""

SILENT_SEEDS_MIN = 2000
"""In so many runs everything that can go wrong must have gone wrong once."""


class Tally:
    """Adds up results.

    Attributes:
        seed_count: runs.
        bad: the first failing ones.
        coverage: how often each thing that can go wrong did.
        reached: how often groups came to each state that they should come to.
        seeds: in how many runs each of all these came.
    """

    def __init__(self) -> None:
        self.seed_count = 0
        self.bad: list[SimResult] = []
        self.coverage: Counter[str] = Counter()
        self.reached: Counter[str] = Counter()
        self.seeds: Counter[str] = Counter()
        self._verdicts: Counter[SimVerdict] = Counter()
        self._sums: Counter[str] = Counter()
        self._virtual_ms = 0

    def add(self, result: SimResult) -> None:
        """Count one more run."""
        self.seed_count += 1
        self._verdicts[result.verdict] += 1
        if result.verdict is not SimVerdict.FINE and len(self.bad) < BAD_KEPT_MAX:
            self.bad.append(result)
        self.coverage.update(result.coverage)
        self.reached.update(result.reached)
        both = {**result.coverage, **result.reached}
        self.seeds.update({name: count > 0 for name, count in both.items()})
        self._virtual_ms += result.virtual_ms
        self._sums.update(
            {
                "steps": result.step_count,
                "terms_led": result.leader_count,
                "faults": result.fault_count,
                "entries_committed": result.committed_count,
                "acknowledged": result.calls.acknowledged,
                "refused": result.calls.refused,
                "unknown": result.calls.unknown,
                "reads": result.calls.reads,
                "transfers": result.calls.transfers,
                **result.work,
            }
        )

    @property
    def bad_count(self) -> int:
        """Runs that were not fine."""
        return self.seed_count - self._verdicts[SimVerdict.FINE]

    @property
    def exit_code(self) -> int:
        """The smallest code of all verdicts but `FINE`; 0 when all were."""
        return min((int(verdict) for verdict in self._verdicts if verdict), default=0)

    def silent(self) -> list[str]:
        """Return the faults and states that could have occurred in these runs and never did."""
        return sorted(name for name, seed_count in self.seeds.items() if not seed_count)

    def summary(self, took_s: float) -> dict[str, float]:
        """Return everything as numbers; `simulated_per_real` is virtual time by real time."""
        return {
            "seeds": self.seed_count,
            "seconds": round(took_s, 2),
            "seeds_per_second": round(self.seed_count / took_s, 1),
            "virtual_seconds": self._virtual_ms // 1000,
            "simulated_per_real": round(self._virtual_ms / 1000 / took_s, 1),
            **self._sums,
            **{verdict.name.lower(): self._verdicts[verdict] for verdict in SimVerdict},
        }
