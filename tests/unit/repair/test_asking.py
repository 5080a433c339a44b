"""Whom a damaged member asks, what it believes, and when it gives up what it asks for."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import msgspec

from dledger.codec.entry import chain_crc, seal
from dledger.raft.entry import Entry
from dledger.raft.ids import Index, NodeId, Position
from dledger.raft.messages import RepairAnswer, RepairRequest
from dledger.repair.asking import ANSWER_TIMEOUT_MS, ROUND_PAUSE_MS, RepairRequests
from dledger.storage.damage import Missing
from dledger.storage.segmented_log import SegmentedLog
from dledger.testing.check_log_store import flush, new_entries
from dledger.testing.sim_disk import SimDisk

N0, N1, N2 = NodeId("n0"), NodeId("n1"), NodeId("n2")


def entries_of(count: int) -> list[Entry]:
    log = SegmentedLog.open(SimDisk(Random(0)))
    log.append(new_entries(log, 1, [10] * count))
    flush(log)
    return log.entries(Index(1), Index(count + 1))


ENTRIES = entries_of(9)


def missing(first: int, last: int, *, is_tail: bool = False) -> Missing:
    before, end = ENTRIES[first - 2], ENTRIES[last - 1]
    return Missing(
        first,
        last,
        before.end_position,
        end.end_position,
        chain_crc(before),
        chain_crc(end),
        is_tail=is_tail,
    )


def asked(asking: RepairRequests, now_ms: int = 0) -> RepairRequest:
    request = asking.next_request(now_ms)
    assert request is not None
    return request[1]


def answer(
    request: RepairRequest, source: NodeId, *indexes: int, lacks: bool = False
) -> RepairAnswer:
    found = tuple(ENTRIES[index - 1] for index in indexes)
    return RepairAnswer(source, request.number, found, lacks=lacks)


def test_what_is_named_is_taken_and_nothing_is_asked_again() -> None:
    asking = RepairRequests(N0, (N1, N2), [missing(3, 5)])
    request = asked(asking)
    assert (request.first_index, request.last_index) == (3, 5)
    assert request.last_chain_crc == chain_crc(ENTRIES[4])
    assert asking.answered(answer(request, N1, 3, 4, 5)) == tuple(ENTRIES[2:5])
    assert asking.is_done
    assert asking.next_request(10**6) is None


def test_a_range_shrinks_from_its_end_and_its_rest_is_named_by_what_came() -> None:
    asking = RepairRequests(N0, (N1, N2), [missing(3, 6)])
    assert len(asking.answered(answer(asked(asking), N1, 5, 6))) == 2
    request = asked(asking)
    assert (request.first_index, request.last_index) == (3, 4)
    assert request.last_chain_crc == chain_crc(ENTRIES[3])


def test_other_entries_than_the_named_ones_are_not_believed() -> None:
    for indexes in [(3, 4), (4, 5, 6), (2, 3, 4, 5), (3, 5)]:
        asking = RepairRequests(N0, (N1, N2), [missing(3, 5)])
        assert asking.answered(answer(asked(asking), N1, *indexes)) == ()
        assert not asking.is_done


def test_entries_with_room_between_them_are_not_believed_though_their_chain_is_right() -> None:
    third, fourth = ENTRIES[2:4]
    apart = msgspec.structs.replace(fourth, position=Position(fourth.position + 10), header=b"")
    apart = seal(apart, chain_crc(third))
    wanted = replace(
        missing(3, 4), end_position=apart.end_position, last_chain_crc=chain_crc(apart)
    )
    asking = RepairRequests(N0, (N1, N2), [wanted])
    request = asked(asking)
    assert asking.answered(RepairAnswer(N1, request.number, (third, apart), lacks=False)) == ()
    assert asking.waits[0].missing == wanted


def test_an_answer_to_an_earlier_request_or_of_another_member_is_dropped() -> None:
    asking = RepairRequests(N0, (N1, N2), [missing(3, 5)])
    late = asked(asking)
    assert asking.answered(answer(late, N2, 3, 4, 5)) == ()
    request = asked(asking, ANSWER_TIMEOUT_MS)
    assert asking.answered(answer(late, N1, 3, 4, 5)) == ()
    assert asking.answered(answer(request, N2, 3, 4, 5)) != ()


def test_who_does_not_answer_is_passed_over_and_everybody_is_asked_again_after_a_pause() -> None:
    asking = RepairRequests(N0, (N1, N2), [missing(3, 5)])
    first = asking.next_request(0)
    assert asking.next_request(ANSWER_TIMEOUT_MS - 1) is None
    second = asking.next_request(ANSWER_TIMEOUT_MS)
    assert first is not None
    assert second is not None
    assert {first[0], second[0]} == {N1, N2}
    assert asking.next_request(2 * ANSWER_TIMEOUT_MS) is None
    assert asking.next_request(2 * ANSWER_TIMEOUT_MS + ROUND_PAUSE_MS) is not None


def test_a_range_that_nobody_can_help_with_does_not_hold_up_the_others() -> None:
    asking = RepairRequests(N0, (N1, N2), [missing(3, 3), missing(7, 7)])
    for source in (N1, N2):
        asking.answered(answer(asked(asking), source))
    assert asked(asking).last_index == 7


def test_only_the_end_of_the_log_can_be_given_up_and_only_on_the_word_of_a_majority() -> None:
    asking = RepairRequests(N0, (N1, N2), [missing(8, 9, is_tail=True)])
    asking.answered(answer(asked(asking), N1, lacks=True))
    assert asking.never_committed() is None
    asking.answered(answer(asked(asking), N2, lacks=True))
    assert asking.never_committed() == missing(8, 9, is_tail=True)
    assert asking.unknown_to_all() is None


def test_a_gap_that_nobody_knows_was_named_by_damage() -> None:
    asking = RepairRequests(N0, (N1, N2), [missing(3, 5)])
    for source in (N1, N2):
        asking.answered(answer(asked(asking), source, lacks=True))
    assert asking.never_committed() is None
    assert asking.unknown_to_all() == missing(3, 5)


def test_what_some_have_forgotten_and_nobody_has_can_not_be_waited_for() -> None:
    """Nor can it be cut: an entry that a member has forgotten was committed."""
    tail = missing(8, 9, is_tail=True)
    asking = RepairRequests(N0, (N1, N2), [tail])
    asking.answered(answer(asked(asking), N1, lacks=True))
    assert asking.forgotten_by_all() is None
    request = asked(asking)
    gone = RepairAnswer(N2, request.number, (), lacks=False, has_forgotten=True)
    assert asking.answered(gone) == ()
    assert asking.forgotten_by_all() == tail
    assert asking.never_committed() is None
    assert asking.unknown_to_all() is None


def test_a_member_that_does_not_answer_may_still_have_what_another_has_forgotten() -> None:
    asking = RepairRequests(N0, (N1, N2), [missing(3, 5)])
    request = asked(asking)
    asking.answered(RepairAnswer(N1, request.number, (), lacks=False, has_forgotten=True))
    assert asking.forgotten_by_all() is None
    assert asking.answered(answer(asked(asking), N2, 3, 4, 5)) == tuple(ENTRIES[2:5])
    assert asking.is_done
