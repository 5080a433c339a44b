"""What a load has measured: rounds, what they sum up to, and what was looked up afterwards. Values without I/O."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable

import msgspec


class AckSample(msgspec.Struct, frozen=True):
    """One acknowledgement: a message with this text in its unique key stands at this place."""

    key: str
    queue_id: int
    queue_offset: int


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One measured span. Latencies are those of requests; processor time is for each message.

    Attributes:
        requests: that were answered; of a one-way load, that were sent.
        messages: that were acknowledged, or received.
        refused: requests with another code than 0.
        generator_us: the generator's own; None where it is in the leader's, or was not counted.
        leader_us, follower_us: the leader's, and the mean of its followers'; None where there is none, or it died.
        error: the first refusal.
        samples: some of the acknowledgements.
    """

    seconds: float
    requests: int
    messages: int
    refused: int
    p50_us: float
    p99_us: float
    max_us: float
    generator_us: float | None = None
    leader_us: float | None = None
    follower_us: float | None = None
    error: str = ""
    samples: list[AckSample] = []

    @property
    def per_second(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds


class Spread(msgspec.Struct, frozen=True):
    """The median of some rounds, and how far they are from each other."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Sum values up.

        Raises:
            ValueError: there is none.
        """
        ordered = sorted(values)
        if not ordered:
            raise ValueError("no round was measured")
        return cls(statistics.median(ordered), ordered[0], ordered[-1])

    @property
    def percent(self) -> float:
        """From the lowest to the highest, in percent of the median."""
        return 100 * (self.high - self.low) / self.median if self.median else 0.0


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """All rounds of one load.

    Attributes:
        checked: acknowledgements that were looked up afterwards.
        missing: those of them whose message was not found, in words.
    """

    rounds: list[Round]
    checked: int = 0
    missing: list[str] = []

    def over(self, value: Callable[[Round], float]) -> Spread:
        """Sum up one value of all rounds."""
        return Spread.of(value(each) for each in self.rounds)

    @property
    def per_second(self) -> Spread:
        """Messages a second."""
        return self.over(lambda each: each.per_second)

    @property
    def is_of_events(self) -> bool:
        """Each round is one event, which has a time and no rate."""
        return all(each.requests <= 1 for each in self.rounds)

    @property
    def leader_us(self) -> Spread | None:
        """Processor time of the leader, for each message."""
        return _known(each.leader_us for each in self.rounds)

    @property
    def follower_us(self) -> Spread | None:
        """Processor time of the mean follower, for each message."""
        return _known(each.follower_us for each in self.rounds)

    @property
    def refused(self) -> int:
        """Refused requests of all rounds."""
        return sum(each.refused for each in self.rounds)

    @property
    def problem(self) -> str | None:
        """The reason for which the figures are worth nothing; None: there is none."""
        if self.missing:
            return f"acknowledged, and not there: {self.missing[0]}"
        if self.refused:
            error = next(each.error for each in self.rounds if each.refused)
            return f"{self.refused} requests were refused: {error}"
        if not all(each.messages for each in self.rounds):
            return "a round went by without one message: warm up or measure for longer"
        return None


def round_of(taken_s: Iterable[float], seconds: float) -> Round:
    """Sum up how long each message took; none at all is a round, too."""
    ordered = sorted(taken_s)
    last = len(ordered) - 1
    return Round(
        seconds=seconds,
        requests=len(ordered),
        messages=len(ordered),
        refused=0,
        p50_us=1e6 * ordered[len(ordered) // 2] if ordered else 0.0,
        p99_us=1e6 * ordered[min(last, len(ordered) * 99 // 100)] if ordered else 0.0,
        max_us=1e6 * ordered[last] if ordered else 0.0,
    )


def _known(values: Iterable[float | None]) -> Spread | None:
    found = [value for value in values if value is not None]
    return Spread.of(found) if found else None
