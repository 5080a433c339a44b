"""What is refused for want of descriptors or memory is no damage, is tried again at pulses, and noted now and then."""

from __future__ import annotations

import errno

import pytest

from dledger.errors import EntryDamagedError
from dledger.storage.read_errors import is_damage, is_shortage
from dledger.storage.shortage import NOTE_PAUSE_MS, PULSE_MS, Shortage

REFUSED = OSError(errno.EMFILE, "Too many open files")
Notes = list[tuple[str, dict[str, object]]]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_descriptors_and_memory_are_short_and_nothing_is_damaged(number: int) -> None:
    error = OSError(number, "simulated")
    assert (is_shortage(error), is_damage(error)) == (True, False)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOENT, errno.EACCES])
def test_other_errors_are_no_shortage(number: int) -> None:
    shortage = Shortage([])
    error = OSError(number, "simulated")
    with pytest.raises(OSError, match="simulated") as raised:
        shortage.judge("entry 7", error)
    assert raised.value is error
    assert not shortage.is_met


def test_what_was_refused_may_be_read_again_at_the_next_pulse() -> None:
    shortage = Shortage([])
    never_ms = shortage.next_deadline_ms()
    error = shortage.judge("entry 7", REFUSED)
    assert isinstance(error, EntryDamagedError)
    assert "entry 7 cannot be read now" in str(error)
    assert shortage.next_deadline_ms() == 0, "it learns at once what time it is"
    assert not shortage.pass_time(1000)
    assert shortage.next_deadline_ms() == 1000 + PULSE_MS
    assert not shortage.pass_time(999 + PULSE_MS)
    assert shortage.pass_time(1000 + PULSE_MS)
    assert (shortage.is_met, shortage.pulse_count) == (False, 1)
    assert shortage.next_deadline_ms() == never_ms
    assert not shortage.pass_time(1000 + 3 * PULSE_MS)


def test_a_shortage_that_lasts_is_noted_once_in_a_while() -> None:
    notes: Notes = []
    shortage = Shortage(notes)
    for now_ms in range(0, 2 * NOTE_PAUSE_MS + 1, PULSE_MS):
        shortage.seen("entry 7", REFUSED)
        shortage.pass_time(now_ms)
    assert [event for event, _ in notes] == ["entries-not-read"] * 3
    assert notes[0][1] == {"reason": f"entry 7: {REFUSED}"}


def test_how_long_it_lasts_is_counted_from_its_beginning_and_not_beyond_a_calm_pulse() -> None:
    shortage = Shortage([])
    assert shortage.lasts_ms(1000) == 0
    for now_ms in range(1000, 6001, PULSE_MS):
        shortage.seen("entry 7", REFUSED)
        shortage.pass_time(now_ms)
    assert shortage.lasts_ms(6000) == 5000
    shortage.pass_time(6000 + PULSE_MS)
    shortage.pass_time(6000 + 2 * PULSE_MS)
    assert shortage.lasts_ms(7000) == 0
    shortage.seen("entry 7", REFUSED)
    shortage.pass_time(8000)
    assert shortage.lasts_ms(8500) == 500
    shortage.count_anew()
    assert shortage.lasts_ms(8500) == 0
