"""RESUME_CHECK_HALF_MESSAGE (323) at the leader: a half message that was given up is stored again, and ends once."""

from __future__ import annotations

import pytest

from broker.server.handlers.transaction_resumes import TransactionResumes
from broker.server.handlers.transactions import stage_op
from broker.store.record_reader import read_message
from broker.store.transactions import TransactionVerdict
from dledger_mq.message.ids import offset_msg_id
from dledger_mq.message.numbers import PhysicalOffset, QueueId, QueueOffset
from dledger_mq.message.record import StoredMessage
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.header import RemotingCommand, decode_command
from tests.unit.server.lone_leader import Asker
from tests.unit.server.pending import ParkingRouter, pending
from tests.unit.server.test_transaction_checks import HALF
from tests.unit.server.test_transaction_checks import Bench as ChecksBench
from tests.unit.store.lone_broker import HOST


class Bench(ChecksBench):
    """One half message stands, and was given up."""

    def __init__(self) -> None:
        super().__init__()
        state = self.state
        self.resumes = TransactionResumes(
            self.commits,
            ParkingRouter(self.commits),
            lambda: state.transactions,
            self.ends,
            load=lambda offset: read_message(self.broker.log, offset),
            stored=lambda key: state.key_index.candidates(HALF, key, 0, state.last_store_ms),
            now_ms=lambda: self.wall_ms,
        )
        self.begin("u")
        self.end(0, TransactionVerdict.GIVEN_UP)

    def end(self, offset: int, verdict: TransactionVerdict) -> None:
        stage_op(self.commits.staging, [QueueOffset(offset)], verdict, self.wall_ms)
        self.commit()

    def halves(self) -> list[StoredMessage]:
        queue = self.state.queues.get(HALF, QueueId(0))
        assert queue is not None
        units = (queue.unit(QueueOffset(at)) for at in range(queue.max_offset))
        return [read_message(self.broker.log, unit.physical_offset) for unit in units]

    def resume(self, offset: int) -> RemotingCommand:
        asker, place = Asker(), PhysicalOffset(self.halves()[offset].physical_offset)
        ext = {"msgId": offset_msg_id(HOST, place)}
        command = RemotingCommand(code=323, opaque=9, ext=ext, version=409)
        self.resumes.resume(pending(asker, 323, command=command), command)
        self.commit()
        decoder = FrameDecoder()
        decoder.feed(b"".join(asker.frames))
        (frame,) = decoder.frames()
        return decode_command(frame)


ENDS = [TransactionVerdict.COMMITTED, TransactionVerdict.ROLLED_BACK]


@pytest.mark.parametrize("verdict", ENDS)
def test_what_was_stored_again_and_has_ended_is_not_stored_once_more(
    verdict: TransactionVerdict,
) -> None:
    bench = Bench()
    assert bench.resume(0).code == 0
    bench.end(1, verdict)
    answer = bench.resume(0)  # the first answer was lost, say
    assert answer.code == 1
    assert verdict.name.lower().split("_")[0] in (answer.remark or "")
    assert len(bench.halves()) == 2


def test_while_it_is_open_its_checks_are_counted_anew() -> None:
    bench = Bench()
    assert [bench.resume(0).code, bench.resume(0).code] == [0, 0]
    assert len(bench.halves()) == 2


def test_what_was_given_up_again_is_stored_again() -> None:
    bench = Bench()
    bench.resume(0)
    bench.end(1, TransactionVerdict.GIVEN_UP)
    assert bench.resume(0).code == 0
    assert len(bench.halves()) == 3


def test_the_end_of_another_message_under_its_key_counts_for_nothing() -> None:
    bench = Bench()
    bench.begin("u", b"another")
    bench.end(1, TransactionVerdict.COMMITTED)
    assert bench.resume(0).code == 0
    assert [each.body for each in bench.halves()] == [b"half", b"another", b"half"]
