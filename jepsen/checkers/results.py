"""The answer of a checker: valid, invalid, or unknown, with the facts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

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
        why_unknown: why `valid` is None.
    """

    name: str
    valid: bool | None
    anomalies: tuple[Anomaly, ...] = ()
    counts: dict[str, object] = {}
    why_unknown: str = ""


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
    counts: dict[str, object] | None = None,
    why_unknown: str = "",
) -> CheckResult:
    """Return the result of a checker: anomalies are invalid, whatever else stayed unknown."""
    found = tuple(anomalies)
    valid = False if found else None if why_unknown else True
    return CheckResult(name, valid, found, counts or {}, why_unknown)
