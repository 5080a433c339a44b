"""Clients whose ids are longer than a record may hold: they follow a reset as all others do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from broker.server.handlers.committers import Committers
from broker.server.handlers.locks import Locks
from broker.server.handlers.resets import ResetRequests
from broker.service.clients import ConsumerClient
from broker.store.control import CommitOffsets, OffsetCommit, ResetOffsets
from dledger_mq.remoting.group_bodies import LockRequest, encode_lock_request
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.message_queue import WireQueue
from tests.unit.server.lone_leader import Asker
from tests.unit.server.pending import pending
from tests.unit.server.test_offsets import Bench, answers_of

PLACE = ("G", "T", 0)
LONG_ID = "c" * 300


def committers_of(bench: Bench, *, has_beaten: bool) -> Committers:
    members = {LONG_ID: ConsumerClient("G", LONG_ID, address=Asker.address)} if has_beaten else {}
    state = bench.leader.state
    return Committers(
        lambda: state.locks, lambda _group: members, resets=lambda: state.offsets.resets
    )


def lock(bench: Bench, committers: Committers) -> None:
    locks = Locks(bench.leader.commits, bench.router, bench.leader.state, committers)
    wanted = LockRequest("G", LONG_ID, (WireQueue("broker-a", 0, "T"),))
    body = encode_lock_request(wanted)
    command = RemotingCommand(code=41, opaque=9, version=409, body=body)
    locks.lock(pending(Asker(), 41), command)
    bench.leader.commit()


def ask(bench: Bench, committers: Committers) -> tuple[Asker, int]:
    """Where the group stands after a reset; and the number of entries that this took, some at most."""
    leader = bench.leader
    resets = ResetRequests(
        cast("Any", leader.log),
        leader.state,
        leader.commits,
        bench.router,
        link=cast("Any", SimpleNamespace(register=lambda *_: None)),
        members=cast("Any", None),
        committers=committers,
        broker_name="broker-a",
    )
    leader.commits.stage_control(ResetOffsets("G", "T", [(0, 1)]))
    leader.commit()
    asker = Asker()
    request = pending(asker, 30)
    resets.admit_first(request, PLACE, "", lambda: request.answer(0, ext={"offset": "1"}))
    count = 0
    while leader.commits.staging.staged_count and count < 20:
        leader.commits.flush()
        leader.log.commit()
        count += 1
    return asker, count


def commits(bench: Bench, committers: Committers) -> bool:
    client_id = committers.who(*PLACE, address=Asker.address, given_id="")
    bench.leader.commits.stage_control(CommitOffsets([OffsetCommit(*PLACE, 2, client_id)]))
    bench.leader.commit()
    return bench.leader.state.offsets.get(*PLACE) == 2


def test_a_member_is_admitted_with_one_record() -> None:
    bench = Bench()
    committers = committers_of(bench, has_beaten=True)
    asker, count = ask(bench, committers)
    assert count == 1
    assert answers_of(asker) == [(0, "1")]
    assert commits(bench, committers)


def test_the_holder_of_a_lock_is_admitted_with_one_record_and_not_kept_out_by_its_own_lock() -> (
    None
):
    bench = Bench()
    committers = committers_of(bench, has_beaten=False)
    lock(bench, committers)
    asker, count = ask(bench, committers)
    assert count == 1
    assert answers_of(asker) == [(0, "1")]
    assert commits(bench, committers)
