"""The result of a checker: valid, invalid or unknown, with anomalies and counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from jepsen.history.ops import Op


class Anomaly(msgspec.Struct, frozen=True):
    """One broken promise.

    Attributes:
        kind: its name in the field: "lost", "duplicate", "poll-skip", ...
        text: the facts, for a person.
        ops: indexes of the operations that show it, in the history.
    """

    kind: str
    text: str
    ops: tuple[int, ...] = ()


class CheckResult(msgspec.Struct, frozen=True):
    """The judgement of one checker.

    Attributes:
        name: of the checker.
        valid: None when the history proves nothing, or the checker gave up.
        anomalies: why it is not valid.
        counts: what was counted, for the report; JSON values.
        why_unknown: why `valid` is None, or what else could not be judged of a history that is not valid.

    Invariants: not valid if and only if there are anomalies; unknown only with a reason; valid without one.
    """

    name: str
    valid: bool | None
    anomalies: tuple[Anomaly, ...] = ()
    counts: dict[str, object] = {}
    why_unknown: str = ""

    def __post_init__(self) -> None:
        # Whoever builds a result by hand must not let a run pass: valid means that nothing was found, and enough seen.
        is_invalid = self.valid is False
        assert is_invalid == bool(self.anomalies), f"{self.name}: {self.valid}, {self.anomalies}"
        is_silent = self.valid is None
        assert bool(self.why_unknown) >= is_silent, f"{self.name} is unknown, and does not say why"
        assert not (self.valid and self.why_unknown), f"{self.name} passes: {self.why_unknown}"


Checker = Callable[[Sequence[Op]], CheckResult]


def merged(results: Iterable[CheckResult]) -> bool | None:
    """Return the verdict of all together: invalid beats unknown, unknown beats valid; none is unknown."""
    verdicts = [result.valid for result in results]
    if False in verdicts:
        return False
    return True if verdicts and None not in verdicts else None


def judged(
    name: str,
    anomalies: Iterable[Anomaly],
    counts: Mapping[str, object] | None = None,
    why_unknown: str = "",
) -> CheckResult:
    """Return the result of a checker: anomalies are invalid, whatever else stayed unknown."""
    found = tuple(anomalies)
    valid = False if found else None if why_unknown else True
    return CheckResult(name, valid, found, dict(counts or {}), why_unknown)
