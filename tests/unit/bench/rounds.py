"""Rounds as a load gives them, for tests of what is made of them."""

from __future__ import annotations

from typing import Any

import msgspec

from bench.load.results import Measured, Round

PLAIN = Round(
    seconds=2.0,
    requests=200,
    messages=200,
    refused=0,
    p50_us=100.0,
    p99_us=300.0,
    max_us=900.0,
    generator_us=0.5,
    leader_us=20.0,
    follower_us=8.0,
)


def round_with(**changes: Any) -> Round:
    return msgspec.structs.replace(PLAIN, **changes)


def measured(*rates: float, **changes: Any) -> Measured:
    """Rounds of two seconds with so many messages a second."""
    return Measured(rounds=[round_with(messages=int(2 * rate), **changes) for rate in rates])
