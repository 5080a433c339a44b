"""A link has what all that strike it want, and loses with a cure what the cured one wanted."""

from __future__ import annotations

from jepsen.nemeses.claims import Claims, joined
from jepsen.systems.api import CUT, WHOLE, Shape

LINK = ("n0", "n1")
SLOW = Shape(delay_ms=50, jitter_ms=10)


def test_where_nothing_passes_nothing_else_matters() -> None:
    assert joined([]) == WHOLE
    assert joined([SLOW, CUT]) == CUT
    assert joined([CUT, Shape(flow="stall"), Shape(flow="reset")]) == Shape(flow="reset")


def test_what_can_be_had_at_once_is_had_at_once() -> None:
    shapes = [SLOW, Shape(lose=0.1, bytes_per_s=500), Shape(lose=0.3, delay_ms=1, bytes_per_s=200)]
    assert joined(shapes) == Shape(delay_ms=51, jitter_ms=10, lose=0.3, bytes_per_s=200)


def test_a_claim_is_taken_back_by_its_owner_alone() -> None:
    claims = Claims()
    assert claims.claim(LINK, SLOW, "delay") == SLOW
    assert claims.claim(LINK, CUT, "partition") == CUT
    assert claims.claim(LINK, WHOLE, "partition") == SLOW
    assert claims.claim(LINK, CUT, "partition") == CUT
    assert claims.release("somebody") == {}
    assert claims.release("delay") == {LINK: CUT}
    assert claims.leaving("n0") == [CUT]
    assert claims.release(None) == {LINK: WHOLE}
    assert claims.release(None) == {}
