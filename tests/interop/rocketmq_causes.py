"""Why tests of RocketMQ's do not pass here, each in a sentence, for docs/rocketmq-tests.md."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Whose(Enum):
    """Whose a failure is."""

    OURS = "ours"
    THEIRS = "theirs"
    DIVERGENCE = "stated divergence"


@dataclass(frozen=True, slots=True)
class Cause:
    """Whose a failure is, and why it is there."""

    whose: Whose
    sentence: str


CAUSES: dict[str, Cause] = {}
"""By test, or by class, both without the package that all have."""
