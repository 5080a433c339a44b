"""Rows of sinks at the leader: each is stored once per batch, whoever sends it however often.

What is new is staged together with the record that says so (`TakeRows`), in one entry; what is there already
is answered at once. A send whose rows, or whose sink's batch, depend on an entry that is still in flight waits
for that entry: no answer says that a row is there before it is committed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import msgspec

from broker.server.handlers.new_topics import NewTopics
from broker.server.handlers.plan_staging import stage_plan
from broker.server.requests.commits import Commits, OnCommit
from broker.server.requests.request import PendingRequest
from broker.server.requests.router import Router
from broker.service.refusal import Refusal
from broker.service.rows import Rows, bounds_problem, new_rows, newer_batch, read_rows
from broker.service.send import SendPlan
from broker.store.control import TakeRows
from broker.store.sinks import Sinks
from broker.store.staging import StagedEntry
from dledger import DLedgerError
from dledger_mq.message.errors import RecordError
from dledger_mq.message.ids import OffsetIdMaker
from dledger_mq.remoting.codes import ResponseCode
from dledger_mq.remoting.requests import NEWER_BATCH, ROWS_STORED


@dataclass(slots=True, eq=False)
class _Flight:
    """A send of rows that waits for its commit.

    Attributes:
        wanted: one for each row of the send: True if it is stored with it.
        fresh: the keys of those rows, at least one.
        waiting: sends that are decided on when this one is.
    """

    request: PendingRequest
    rows: Rows
    plan: SendPlan
    wanted: list[bool]
    fresh: frozenset[bytes]
    waiting: list[PendingRequest] = field(default_factory=list)


class RowSends:
    """Takes sends of rows while this node leads.

    Invariant: `_flying` has the flights of each sink, none of them empty; `_flying_count` is the sum of their `fresh`.
    """

    def __init__(
        self,
        commits: Commits,
        router: Router,
        sinks: Callable[[], Sinks],
        ids: OffsetIdMaker,
        *,
        new_topics: NewTopics,
    ) -> None:
        self._commits = commits
        self._router = router
        self._sinks = sinks
        self._ids = ids
        self._new_topics = new_topics
        self._flying: dict[str, list[_Flight]] = {}
        self._flying_count = 0

    def send(self, request: PendingRequest, plan: SendPlan, sink_batch: str, born_ms: int) -> None:
        """Carry out one send of rows, decided on by `SendRules` like any other."""
        rows = read_rows(sink_batch, plan)
        if isinstance(rows, Refusal):
            request.refuse(rows.code, rows.remark)
            return
        ahead = self._ahead_of(rows)
        if ahead is not None:
            ahead.waiting.append(request)
            return
        wanted = new_rows(rows, self._sinks())
        fresh = [key for key, is_new in zip(rows.keys, wanted, strict=True) if is_new]
        if not fresh:
            self._answer(request, plan, wanted, newer_batch=newer_batch(rows, self._sinks()))
            return
        problem = bounds_problem(rows, len(fresh), self._flying_count, self._sinks())
        if problem is not None:
            request.refuse(problem.code, problem.remark)
            return
        messages = tuple(m for m, is_new in zip(plan.messages, wanted, strict=True) if is_new)
        try:
            rest = msgspec.structs.replace(plan, messages=messages)
            place = stage_plan(self._commits.staging, rest, born_ms, request.origin.born_host)
        except RecordError as error:
            remark = f"the message is illegal: {error}"
            request.refuse(ResponseCode.MESSAGE_ILLEGAL, remark)
            return
        self._commits.stage_control(TakeRows(rows.sink_id, rows.batch_id, b"".join(fresh)))
        self._new_topics.note(plan)
        flight = _Flight(request, rows, plan, wanted, frozenset(fresh))
        assert len(flight.fresh) == len(fresh), f"a row of {rows.sink_id} is new twice in one send"
        self._flying.setdefault(rows.sink_id, []).append(flight)
        self._flying_count += len(fresh)
        self._commits.wait(
            place,
            OnCommit(partial(self._committed, flight), partial(self._failed, flight)),
            request.kept_bytes,
        )

    def _ahead_of(self, rows: Rows) -> _Flight | None:
        """Find the flight that decides about these rows, if there is one."""
        for flight in self._flying.get(rows.sink_id, ()):
            flying = flight.rows
            if flying.batch_id > rows.batch_id or (
                flying.batch_id == rows.batch_id and not flight.fresh.isdisjoint(rows.keys)
            ):
                return flight
        return None

    def _landed(self, flight: _Flight) -> None:
        """Remove a flight that is decided."""
        flights = self._flying[flight.rows.sink_id]
        flights.remove(flight)
        if not flights:
            del self._flying[flight.rows.sink_id]
        self._flying_count -= len(flight.fresh)
        assert (self._flying_count > 0) == bool(self._flying), (
            f"{self._flying_count} rows are in flight, of the sinks {list(self._flying)}"
        )

    def _committed(self, flight: _Flight, staged: StagedEntry, place: int) -> None:
        """Answer a send whose rows stand, and decide on those after it."""
        self._landed(flight)
        try:
            self._answer(flight.request, flight.plan, flight.wanted, staged=staged, place=place)
        except Exception as error:
            if not self._router.mistakes.answer(error, flight.request):
                raise
        for request in flight.waiting:
            self._router.route(request)

    def _failed(self, flight: _Flight, error: DLedgerError) -> None:
        """Conclude what follows for an unconfirmed send; park those after it, of which nothing was stored."""
        self._landed(flight)
        self._router.unconfirmed(flight.request, error)
        for request in flight.waiting:
            self._router.park(request)

    def _answer(
        self,
        request: PendingRequest,
        plan: SendPlan,
        wanted: list[bool],
        *,
        staged: StagedEntry | None = None,
        place: int = -1,
        newer_batch: int | None = None,
    ) -> None:
        """Answer which rows were stored now, and where the first of those stands."""
        ext = {
            "msgId": self._ids(staged.physical_offset(place)) if staged is not None else "",
            "queueId": str(plan.queue_id),
            "queueOffset": str(staged.queue_offset(place)) if staged is not None else "-1",
            ROWS_STORED: "".join("1" if is_new else "0" for is_new in wanted),
        }
        if newer_batch is not None:
            ext[NEWER_BATCH] = str(newer_batch)
        give = partial(request.answer, ResponseCode.SUCCESS, ext=ext)
        self._new_topics.answer(request, plan.topic, give)
