"""A leader hands over for its slow disk, and only for that: what is measured, what is decided, what is done."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from itertools import count, pairwise

import pytest

from dledger.config import RaftConfig
from dledger.raft.effects import Effect, HandsOver, Send, Waits
from dledger.raft.events import Propose, Received, Tick
from dledger.raft.ids import Index, NodeId
from dledger.raft.messages import TimeoutNow
from dledger.raft.slow_disk import (
    FORGET_MS,
    SaveTimer,
    Slowness,
    is_too_slow_to_lead,
    leader_slowness,
)
from dledger.raft.transfer import SLOW_DISK_PAUSE_MS
from dledger.testing.core_group import CoreGroup
from dledger.testing.make_roles import N0, N1, N2, elect, requests, success

N3, N4 = NodeId("n3"), NodeId("n4")
SLOW_MS = 300


# What is measured.


def timer(*took_ms: int, since_ms: int = 0) -> SaveTimer:
    """A member that needed these times, one after the other."""
    made, now_ms = SaveTimer(SLOW_MS), since_ms
    for number, each_ms in enumerate(took_ms, 1):
        made.given(Index(number), now_ms)
        now_ms += each_ms
        made.holds(Index(number), now_ms)
    return made


def test_one_entry_is_timed_at_a_time() -> None:
    made = SaveTimer(SLOW_MS)
    made.given(Index(5), 100)
    made.given(Index(9), 150)
    made.holds(Index(4), 160)
    assert (made.measured_ms, made.waits_ms(160)) == (None, 60)
    made.holds(Index(7), 180)
    assert (made.measured_ms, made.latest_ms, made.waits_ms(500)) == (180, 80, 0)
    made.holds(Index(9), 900)
    assert made.measured_ms == 180


def test_slow_measures_are_counted_in_a_row() -> None:
    made = timer(10, 400, 900)
    assert (made.slow_count, made.slow_since_ms, made.slow_least_ms) == (2, 10, 400)
    made.given(Index(9), 2000)
    made.holds(Index(9), 2299)
    assert made.slow_count == 0


def test_what_is_still_waited_for_counts_as_soon_as_it_is_longer() -> None:
    made = timer(10)
    made.given(Index(9), 50)
    assert made.takes_ms(55) == 10
    assert made.takes_ms(1050) == 1000


# What is decided.


def decide(
    own: SaveTimer, *others: SaveTimer, now_ms: int = 3000, majority: int = 2
) -> Slowness | None:
    return leader_slowness(own, others, majority=majority, now_ms=now_ms)


def test_slow_alone() -> None:
    own = timer(1000, 900, 1100)
    fast, middle = timer(5, since_ms=2000), timer(40, since_ms=2000)
    assert decide(own, fast, middle) == Slowness(own_ms=900, others_ms=40)
    assert decide(own, fast, middle, now_ms=2999) is None  # not for long enough


@pytest.mark.parametrize("others_ms", [226, 900, 5000])
def test_the_others_are_no_faster(others_ms: int) -> None:
    own = timer(1000, 900, 1100)
    fast = timer(5, since_ms=2000)
    assert decide(own, fast, timer(others_ms, since_ms=2000), now_ms=9000) is None


def test_an_average_of_the_others_counts_not_a_lucky_measure() -> None:
    own = timer(1000, 900, 1100)
    uneven = timer(900, 5, since_ms=2000)
    assert decide(own, uneven, uneven) is None


def test_a_spike_alone() -> None:
    fast = timer(5, since_ms=2000)
    assert decide(timer(5, 1900), fast, fast) is None
    assert decide(timer(1500, 1500), fast, fast, now_ms=9000) is None
    assert decide(timer(1500, 1500, 5, 1500), fast, fast, now_ms=9000) is None


def test_the_others_have_confirmed_nothing_meanwhile() -> None:
    own = timer(1000, 900, 1100, since_ms=1000)
    assert decide(own, timer(5), timer(5), now_ms=9000) is None
    assert decide(own, timer(5, since_ms=2000), timer(5), now_ms=9000) is None
    assert decide(own, now_ms=9000) is None


def test_a_sync_that_does_not_end_is_seen_while_it_runs() -> None:
    own, fast = timer(5), timer(5, since_ms=1000)
    own.given(Index(2), 1000)
    assert decide(own, fast, fast, now_ms=3099) is None
    assert decide(own, fast, fast, now_ms=3100) == Slowness(own_ms=2100, others_ms=5)
    assert decide(own, timer(5), timer(5), now_ms=9000) is None  # they confirmed nothing since


def test_only_a_majority_without_it_helps() -> None:
    own, fast, slow = timer(1000, 900, 1100), timer(5, since_ms=2000), timer(900, since_ms=2000)
    assert decide(own, fast, majority=2) is None
    assert decide(own, fast, fast, slow, slow, majority=3) is None
    assert decide(own, fast, fast, fast, slow, majority=3) is not None


def test_who_is_too_slow_to_lead_is_so_only_for_a_while_and_beside_the_others() -> None:
    fast, slow = timer(5, since_ms=1000), timer(600, since_ms=400)

    def is_too_slow(member: SaveTimer, other: SaveTimer, now_ms: int) -> bool:
        return is_too_slow_to_lead(member, (fast, other), majority=2, now_ms=now_ms)

    assert is_too_slow(slow, fast, 1000)
    assert not is_too_slow(fast, slow, 1000)
    assert not is_too_slow(slow, slow, 1000)
    assert not is_too_slow(slow, fast, 1001 + FORGET_MS)
    silent = SaveTimer(SLOW_MS)
    assert not is_too_slow(silent, fast, 1500)
    silent.given(Index(1), 1000)
    assert is_too_slow(silent, fast, 1500)


# What is done.


class LeaderOnSlowDisk:
    """A leader under load in a group whose members take so long to make entries durable.

    Members that are asked to campaign never do, so that the leader goes on.
    """

    def __init__(
        self, own_ms: int, others_ms: dict[NodeId, int], preferred: tuple[NodeId, ...] = ()
    ) -> None:
        names = (N0, *others_ms)
        configs = [RaftConfig(name, names, preferred_leaders=preferred) for name in names]
        self._group = CoreGroup(configs, lambda _: lambda low, _high: low)
        self._leader = self._group.members[N0]
        self._order = count()
        self._heap: list[tuple[int, int, Callable[[], object]]] = []
        self._is_syncing = False
        self._last_sync = dict.fromkeys(others_ms, (0, 0))
        self.own_ms = own_ms
        self.others_ms = others_ms
        self.has_load = True
        self.handed_over: list[tuple[int, HandsOver]] = []
        self.timeout_nows: list[tuple[int, NodeId]] = []
        self._carry_out(elect(self._group, self._leader))
        self._at(0, self._load)
        self._at(0, self._tick)

    @property
    def now_ms(self) -> int:
        return self._group.now_ms

    def lead_for(self, duration_ms: int) -> None:
        end_ms = self._group.now_ms + duration_ms
        while self._heap[0][0] <= end_ms:
            self._group.now_ms, _, act = heappop(self._heap)
            act()
        self._group.now_ms = end_ms

    def _at(self, after_ms: int, act: Callable[[], object]) -> None:
        heappush(self._heap, (self._group.now_ms + after_ms, next(self._order), act))

    def _load(self) -> None:
        if self.has_load:
            self._carry_out(self._leader.step(Propose((b"x",), token=1000 + next(self._order))))
        self._at(50, self._load)

    def _tick(self) -> None:
        self._carry_out(self._leader.step(Tick()))
        self._at(10, self._tick)

    def _carry_out(self, effects: list[Effect]) -> None:
        now_ms = self._group.now_ms
        for effect in effects:
            if isinstance(effect, HandsOver):
                self.handed_over.append((now_ms, effect))
            elif isinstance(effect, Send) and isinstance(effect.message, TimeoutNow):
                assert effect.waits is Waits.NOTHING
                self.timeout_nows.append((now_ms, effect.to))
        for request in requests(effects):
            answer = success(self._leader, request.to, request.end - 1, round_=request.round)
            answers_ms = self._answers_ms(request.to, has_entries=request.first < request.end)
            self._at(answers_ms - now_ms, partial(self._take, Received(answer)))
        if self._leader.saves and not self._is_syncing:
            self._is_syncing = True
            save_count = len(self._leader.saves)
            self._at(self.own_ms, partial(self._synced, save_count))

    def _answers_ms(self, peer: NodeId, *, has_entries: bool) -> int:
        """When a member answers: what comes while it syncs is in its next sync, heartbeats wait as well."""
        now_ms = self.now_ms
        begin_ms, end_ms = self._last_sync[peer]
        if has_entries and now_ms >= begin_ms:
            begin_ms = max(now_ms, end_ms)
            self._last_sync[peer] = begin_ms, begin_ms + self.others_ms[peer]
        return max(now_ms + 1, self._last_sync[peer][1])

    def _take(self, event: Received) -> None:
        self._carry_out(self._leader.step(event))

    def _synced(self, save_count: int) -> None:
        self._is_syncing = False
        self._carry_out(self._leader.sync(save_count))


def test_a_leader_with_a_slow_disk_hands_over_once_in_a_while() -> None:
    leader = LeaderOnSlowDisk(500, {N1: 5, N2: 8})
    leader.lead_for(2 * SLOW_DISK_PAUSE_MS + 6000)
    times_ms = [at_ms for at_ms, _ in leader.handed_over]
    assert 3000 <= times_ms[0] <= 5000
    assert len(times_ms) == 3
    assert all(after - before >= SLOW_DISK_PAUSE_MS for before, after in pairwise(times_ms))
    (_, first), *_ = leader.handed_over
    assert first.target in {N1, N2}
    assert (first.own_ms >= 500, first.others_ms) == (True, 8)
    assert leader.timeout_nows[0][1] == first.target
    assert leader.timeout_nows[0][0] - times_ms[0] <= 100  # not for its own disk


def test_a_single_sync_that_does_not_end() -> None:
    leader = LeaderOnSlowDisk(1, {N1: 5, N2: 8})
    leader.lead_for(2000)
    leader.own_ms = 60_000
    begun_ms = leader.now_ms
    leader.lead_for(3000)
    ((at_ms, _),) = leader.handed_over
    assert 2100 <= at_ms - begun_ms <= 2300
    assert leader.timeout_nows


@pytest.mark.parametrize(
    ("own_ms", "others_ms"),
    [
        (1, {N1: 5, N2: 8}),
        (200, {N1: 200, N2: 200}),
        (500, {N1: 500, N2: 500}),
        (3000, {N1: 2000, N2: 2500}),
        (500, {N1: 5, N2: 500}),  # each commit needs one of the slow ones
        (500, {N1: 5}),
        (500, {}),
        (1, {N1: 700, N2: 5}),
        (500, {N1: 5, N2: 5, N3: 500, N4: 500}),
    ],
)
def test_nothing_would_be_won(own_ms: int, others_ms: dict[NodeId, int]) -> None:
    leader = LeaderOnSlowDisk(own_ms, others_ms)
    leader.lead_for(20_000)
    assert leader.handed_over == []
    assert leader.timeout_nows == []


def test_without_load_nobody_hands_over() -> None:
    leader = LeaderOnSlowDisk(500, {N1: 5, N2: 8})
    leader.has_load = False
    leader.lead_for(20_000)
    assert leader.handed_over == []


def test_the_fast_ones_are_chosen() -> None:
    leader = LeaderOnSlowDisk(500, {N1: 700, N2: 5, N3: 8, N4: 9})
    leader.lead_for(6000)
    assert [each.target for _, each in leader.handed_over] != []
    assert all(each.target != N1 for _, each in leader.handed_over)


def test_a_preferred_member_with_a_slow_disk_is_left_alone_until_it_is_well() -> None:
    leader = LeaderOnSlowDisk(1, {N1: 500, N2: 5}, preferred=(N1,))
    leader.lead_for(20_000)
    assert leader.timeout_nows == []
    leader.others_ms[N1] = 5
    leader.lead_for(3000)
    assert {to for _, to in leader.timeout_nows} == {N1}
