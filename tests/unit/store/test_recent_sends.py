"""The window's bounds are part of the fold: a replica with others would come to another digest."""

from __future__ import annotations

from broker.store.recent_sends import AGE_MAX_MS, COPIES_MAX, RecentSends


def test_an_entry_is_forgotten_when_it_is_older_than_the_bound_and_no_sooner() -> None:
    window = RecentSends()
    window.add([b"a"], [100], 0)
    window.add([b"b"], [200], AGE_MAX_MS)
    assert window.offsets(b"a") == (100,)
    window.add([b"c"], [300], AGE_MAX_MS + 1)
    assert window.offsets(b"a") == ()
    assert [window.offsets(b"b"), window.offsets(b"c")] == [(200,), (300,)]
    assert [keys for _, keys, _ in window.entries()] == [[b"b"], [b"c"]]


def test_the_newest_copies_of_a_key_are_kept() -> None:
    window = RecentSends()
    for offset in range(COPIES_MAX + 1):
        window.add([b"k"], [offset], 0)
    assert window.offsets(b"k") == tuple(range(1, COPIES_MAX + 1))
