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
        generator_us: the generator's own.
        leader_us, follower_us: the leader's, and the mean of its followers'; None where there is none.
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
    generator_us: float
    leader_us: float
    follower_us: float | None
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
    def leader_us(self) -> Spread:
        """Processor time of the leader, for each message."""
        return self.over(lambda each: each.leader_us)

    @property
    def follower_us(self) -> Spread | None:
        """Processor time of the mean follower, for each message."""
        found = [each.follower_us for each in self.rounds if each.follower_us is not None]
        return Spread.of(found) if found else None

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
