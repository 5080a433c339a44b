"""Rows of sinks at the leader: each is stored once per batch, whoever sends it however often.

What is new is staged together with the record that says so (`TakeRows`), in one entry; what is there already
is answered at once. A send whose rows, or whose sink's batch, hang on an entry that is still on its way waits
for that entry: nobody is told that a row is there before it is committed.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from broker.server.commits import Commits
from broker.server.gate import Errand, Gate
from broker.server.origin import answer
from broker.service.refusal import Refusal
from broker.service.rows import Rows, bounds_problem, new_rows, read_rows
from broker.service.send import SendPlan
from broker.store.control import TakeRows
from broker.store.sinks import Sinks
from broker.store.staging import StagedEntry
from dledger import DLedgerError
from dledger_mq.message.errors import RecordError
from dledger_mq.message.ids import OffsetIdMaker
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.requests import ROWS_STORED

Stage = Callable[[SendPlan, int, bytes], int]
"""Stages the messages of a plan (born time, born host); the place of the first."""


class RowSends:
    """Takes sends of rows while this node leads."""

    def __init__(
        self,
        commits: Commits,
        gate: Gate,
        sinks: Sinks,
        ids: OffsetIdMaker,
        *,
        stage: Stage,
    ) -> None:
        self._commits = commits
        self._gate = gate
        self._sinks = sinks
        self._ids = ids
        self._stage = stage
        self._flying: dict[str, list[_RowsWaiter]] = {}
        self._flying_count = 0

    def send(self, errand: Errand, plan: SendPlan, sink_batch: str, born_ms: int) -> None:
        """One send of rows, decided on by `SendRules` like any other."""
        rows = read_rows(sink_batch, plan)
        if isinstance(rows, Refusal):
            errand.refuse(rows.code, rows.remark)
            return
        ahead = self._ahead_of(rows)
        if ahead is not None:
            ahead.behind.append(errand)
            return
        wanted = new_rows(rows, self._sinks)
        fresh = [key for key, is_new in zip(rows.keys, wanted, strict=True) if is_new]
        if not fresh:
            self._tell(errand, plan.queue_id, wanted)
            return
        problem = bounds_problem(rows, len(fresh), self._flying_count, self._sinks)
        if problem is not None:
            errand.refuse(problem.code, problem.remark)
            return
        messages = tuple(m for m, is_new in zip(plan.messages, wanted, strict=True) if is_new)
        try:
            place = self._stage(
                msgspec.structs.replace(plan, messages=messages), born_ms, errand.origin.born_host
            )
        except RecordError as error:
            remark = f"the message is illegal: {error}"
            errand.refuse(ResponseCode.MESSAGE_ILLEGAL, remark)
            return
        self._commits.stage_control(TakeRows(rows.sink_id, rows.batch_id, b"".join(fresh)))
        waiter = _RowsWaiter(self, errand, rows, plan.queue_id, wanted, frozenset(fresh))
        self._flying.setdefault(rows.sink_id, []).append(waiter)
        self._flying_count += len(fresh)
        self._commits.wait(place, waiter)

    def _ahead_of(self, rows: Rows) -> _RowsWaiter | None:
        """What is on its way and decides about these rows."""
        for waiter in self._flying.get(rows.sink_id, ()):
            flying = waiter.rows
            if flying.batch_id > rows.batch_id or (
                flying.batch_id == rows.batch_id and not waiter.fresh.isdisjoint(rows.keys)
            ):
                return waiter
        return None

    def landed(self, waiter: _RowsWaiter) -> None:
        """A send came to its end."""
        waiters = self._flying[waiter.rows.sink_id]
        waiters.remove(waiter)
        if not waiters:
            del self._flying[waiter.rows.sink_id]
        self._flying_count -= len(waiter.fresh)

    def committed(self, waiter: _RowsWaiter, staged: StagedEntry, place: int) -> None:
        """Its rows stand; those who asked for the same are decided on now."""
        self.landed(waiter)
        self._tell(waiter.errand, waiter.queue_id, waiter.wanted, staged, place)
        for errand in waiter.behind:
            self._gate.bring(errand)

    def failed(self, waiter: _RowsWaiter, error: DLedgerError) -> None:
        """It is not confirmed. Of those behind it nothing was stored: they go to whoever leads."""
        self.landed(waiter)
        self._gate.unconfirmed(waiter.errand, error)
        for errand in waiter.behind:
            self._gate.hold(errand)

    def _tell(
        self,
        errand: Errand,
        queue_id: int,
        wanted: list[bool],
        staged: StagedEntry | None = None,
        place: int = -1,
    ) -> None:
        """Answer: which rows were stored now, and where the first of those stands."""
        if errand.is_oneway:
            return
        ext = {
            "msgId": self._ids(staged.physical_offset(place)) if staged is not None else "",
            "queueId": str(queue_id),
            "queueOffset": str(staged.queue_offset(place)) if staged is not None else "-1",
            ROWS_STORED: "".join("1" if is_new else "0" for is_new in wanted),
        }
        answer(errand.origin, errand.opaque, ResponseCode.SUCCESS, ext=ext)


class _RowsWaiter:
    """A send of rows that waits for its commit.

    Attributes:
        wanted: for each row of the send whether it is stored with it; `fresh` are the keys of those.
        behind: sends that are decided on when this one is.
    """

    __slots__ = ("_sends", "behind", "errand", "fresh", "queue_id", "rows", "wanted")

    def __init__(
        self,
        sends: RowSends,
        errand: Errand,
        rows: Rows,
        queue_id: int,
        wanted: list[bool],
        fresh: frozenset[bytes],
    ) -> None:
        self.errand = errand
        self.rows = rows
        self.queue_id = queue_id
        self.wanted = wanted
        self.fresh = fresh
        self.behind: list[Errand] = []
        self._sends = sends

    def committed(self, staged: StagedEntry, place: int) -> None:
        self._sends.committed(self, staged, place)

    def failed(self, error: DLedgerError) -> None:
        self._sends.failed(self, error)
