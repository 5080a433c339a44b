"""The send times of append requests: the leader's memory for its lease.

A leader numbers its append requests (`round`), whatever member they go to. A follower that answers
round r promises to support no other candidate for `lease_ms` from when r reached it, hence also from
when r was sent. So the lease needs the send time of a round, and nothing else (thesis 6.4.1).
"""

from __future__ import annotations

from bisect import bisect_right


class RoundClock:
    """Send times of the latest rounds; the time of rounds older than `horizon_ms` is forgotten.

    Invariant: both lists have one length and strictly increase; all rounds from one entry's up to
    the next entry's were sent at its time. Bounded: at most one entry for each millisecond.
    """

    __slots__ = ("_first_rounds", "_horizon_ms", "_sent_ms", "last_round")

    def __init__(self, horizon_ms: int) -> None:
        self.last_round = 0
        self._horizon_ms = horizon_ms
        self._first_rounds: list[int] = []
        self._sent_ms: list[int] = []

    def start(self, now_ms: int) -> int:
        """Number the request that is sent now."""
        self.last_round += 1
        times = self._sent_ms
        if not times or now_ms > times[-1]:
            if len(times) > 2 * self._horizon_ms + 16:
                self._forget(now_ms - self._horizon_ms)
            self._first_rounds.append(self.last_round)
            times.append(now_ms)
            assert len(times) == len(self._first_rounds), (
                f"{len(times)} times of {len(self._first_rounds)} rounds"
            )
        return self.last_round

    def sent_ms(self, round_: int) -> int | None:
        """Return when a round was sent; None when that is forgotten (or it is round 0, which never was)."""
        place = bisect_right(self._first_rounds, round_) - 1
        return self._sent_ms[place] if place >= 0 else None

    def _forget(self, before_ms: int) -> None:
        end = bisect_right(self._sent_ms, before_ms)
        del self._first_rounds[:end]
        del self._sent_ms[:end]
