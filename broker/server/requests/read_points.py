"""Confirms reads on any node: what a client can have seen when it asked is applied here before a read runs.

A node that leads is confirmed by linear.py. Another one asks the leader how far it is, once for all reads that came
before, and waits until it has applied as much. It must not know what is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from broker.server.links.link import LeaderLink
from broker.server.links.private_codes import NOT_CARRIED_OUT, READ_POINT_FIELD, PrivateCode
from broker.server.requests.linear import LinearReads
from broker.server.requests.origin import ClientOrigin, answer
from dledger import DLedgerError, Index, LogServer
from dledger_mq.remoting.header import RemotingCommand

CONFIRM_MS = 2_000
"""A read waits no longer than this for the leader's answer, nor for this node to apply what it names."""


@dataclass(frozen=True, slots=True)
class NotConfirmed:
    """Says why a read was not confirmed.

    Attributes:
        reason: for people.
        has_leader: True if there may be a leader that confirms it later; False: none could be asked, or none answered.
    """

    reason: str
    has_leader: bool


@dataclass(frozen=True, slots=True)
class _Read:
    """A read that waits."""

    act: Callable[[], None]
    failed: Callable[[NotConfirmed], None]


@dataclass(frozen=True, slots=True)
class _Ahead:
    """Reads that the leader has confirmed, and that run here once entry `index` is applied."""

    index: int
    deadline_ms: int
    reads: list[_Read]


class ReadPoints:
    """Runs reads that see whatever was committed before they came."""

    def __init__(
        self,
        log: LogServer,
        link: LeaderLink,
        linear: LinearReads,
        *,
        waiting_max: int,
        now_ms: Callable[[], int],
    ) -> None:
        """Set up the confirmations; more than `waiting_max` reads fail at once. `now_ms` is monotonic."""
        self._log = log
        self._link = link
        self._linear = linear
        self._waiting_max = waiting_max
        self._now_ms = now_ms
        self._unasked: list[_Read] = []
        self._question: _Question | None = None
        self._ahead: list[_Ahead] = []
        self._answer_watchers: list[Callable[[], None]] = []
        self._count = 0
        """Invariant: 0 <= count <= waiting_max; the reads that wait, whether this node leads or not."""

    def watch_answers(self, callback: Callable[[], None]) -> None:
        """Call back whenever a leader has said how far it is."""
        self._answer_watchers.append(callback)

    @property
    def can_ask(self) -> bool:
        """True while somebody can be asked for a confirmation."""
        return self._log.is_serving or self._link.is_open

    def read(self, act: Callable[[], None], failed: Callable[[NotConfirmed], None]) -> None:
        """Run `act` once this node is confirmed to have applied enough; or `failed`, which must not come back here."""
        if self._count >= self._waiting_max:
            reason = f"{self._count} reads wait for the leader already"
            failed(NotConfirmed(reason, has_leader=True))
            return
        self._count += 1
        if self._log.is_serving:
            read = _Read(act, failed)
            self._linear.read(
                lambda: self._run([read]), lambda error: self._fail([read], str(error))
            )
        else:
            self._unasked.append(_Read(act, failed))
            self._ask()

    def _ask(self) -> None:
        """Ask for the reads that have come; those that come meanwhile need an answer of their own."""
        if self._question is not None or not self._unasked:
            return
        reads, self._unasked = self._unasked, []
        self._question = question = _Question(self, reads)
        if not self._link.ask(
            PrivateCode.READ_POINT, question, ext={}, body=b"", timeout_ms=CONFIRM_MS
        ):
            self._question = None
            self._fail(reads, "no leader can be asked", has_leader=self._link.is_open)

    def answered(self, question: _Question, response: RemotingCommand) -> None:
        """Take the leader's answer, unless it comes from a leader of the past."""
        if question is not self._question:
            return
        self._question = None
        index = response.ext.get(READ_POINT_FIELD, "")
        if response.code == 0 and index.isdecimal():
            for answered in self._answer_watchers:
                answered()
            deadline_ms = self._now_ms() + CONFIRM_MS
            self._ahead.append(_Ahead(int(index), deadline_ms, question.reads))
            self._log.reader.expect_applied(Index(int(index)))
            self.applied()
        else:
            self._fail(question.reads, response.remark or "the leader does not say how far it is")
        self._ask()

    def broken(self, question: _Question, reason: str) -> None:
        """Conclude that a question will not be answered."""
        if question is self._question:
            self._question = None
            self._fail(question.reads, reason)
            self._ask()

    def role_changed(self) -> None:
        """Wait no longer for the answer of a node that may lead no more: the reads are to be begun again."""
        question = self._question
        if question is not None:
            self.broken(question, f"{self._log.node_id} has another leader, or another role")

    def applied(self) -> None:
        """Run the reads for which enough is applied by now."""
        if not self._ahead:
            return
        index = self._log.reader.applied_index
        ready = [each for each in self._ahead if each.index <= index]
        self._ahead = [each for each in self._ahead if each.index > index]
        for each in ready:
            self._run(each.reads)

    def expire(self, now_ms: int) -> None:
        """Fail the reads for which this node has not applied enough in time."""
        late = [each for each in self._ahead if each.deadline_ms <= now_ms]
        self._ahead = [each for each in self._ahead if each.deadline_ms > now_ms]
        for each in late:
            reason = f"{self._log.node_id} has yet to apply entry {each.index}"
            self._fail(each.reads, reason, has_leader=True)

    def _run(self, reads: list[_Read]) -> None:
        self._count -= len(reads)
        assert self._count >= 0, f"{self._count} reads wait after {len(reads)} were confirmed"
        for read in reads:
            read.act()

    def _fail(self, reads: list[_Read], reason: str, *, has_leader: bool = False) -> None:
        self._count -= len(reads)
        assert self._count >= 0, f"{self._count} reads wait after {len(reads)} have failed"
        for read in reads:
            read.failed(NotConfirmed(reason, has_leader))

    # The leader's end.

    def answer_node(self, link: ClientOrigin, request: RemotingCommand) -> None:
        """Carry out READ_POINT: name an entry up to which everything is applied that anybody can have seen."""
        if not self._log.is_serving:
            answer(link, request.opaque, NOT_CARRIED_OUT, "this node does not lead")
            return

        def confirmed() -> None:
            ext = {READ_POINT_FIELD: str(self._log.reader.applied_index)}
            answer(link, request.opaque, 0, ext=ext)

        def failed(error: DLedgerError) -> None:
            answer(link, request.opaque, NOT_CARRIED_OUT, str(error))

        self._linear.read(confirmed, failed)


class _Question:
    """Waits for the leader's answer to READ_POINT, for some reads."""

    def __init__(self, points: ReadPoints, reads: list[_Read]) -> None:
        self.reads = reads
        self._points = points

    def answered(self, response: RemotingCommand) -> None:
        """See `LinkWaiter`."""
        self._points.answered(self, response)

    def broken(self, reason: str) -> None:
        """See `LinkWaiter`."""
        self._points.broken(self, reason)
