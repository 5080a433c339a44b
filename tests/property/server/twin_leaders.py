"""Two leaders that get the same frames: one has the lane for bursts, with the other all goes the ordinary way."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

from broker.server.handlers.new_topics import NewTopics
from broker.server.handlers.send_answers import SendAnswers
from broker.server.handlers.sends import Sends
from broker.server.requests.commits import Commits
from broker.server.requests.dispatch import Dispatch
from broker.server.requests.origin import Outputs
from broker.server.requests.put_times import PutTimes
from broker.server.requests.request import PendingRequest
from broker.server.requests.router import Router
from broker.service.catalog import Catalog, Creation
from broker.service.repeats import Repeats
from broker.service.send import SendPlan, SendRules, SendSettings
from broker.service.timers import TimerRules
from broker.store.record_reader import read_message
from broker.store.staging import Staging
from broker.store.state import BrokerState
from broker.store.topics import PERM_ALL, TopicConfig
from dledger import EntryId, NodeId, NotLeaderError, Role, TransferringError
from dledger.raft.entry import EntryKind
from dledger.raft.ids import Term
from dledger_mq.message.ids import OffsetIdMaker
from dledger_mq.remoting.errors import FrameError
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.replies import SendReplies
from tests.unit.server.lone_leader import LeaderLog
from tests.unit.server.pending import Confirmed
from tests.unit.store.lone_broker import HOST, START_MS

ENTRY_BYTES_MAX = 2_000
PENDING_BYTES_MAX = 6_000
PENDING_MAX = 24
BODY_BYTES_MAX = 600
STAMP = SendSettings.make_stamp(region="R", trace_on=True, cluster="C")


class TwinLog(LeaderLog):
    """Refuses entries while `refuses`."""

    role = Role.LEADER
    leader_id = None
    full_disks = SimpleNamespace(leave_no_majority=False)

    def __init__(self, state: BrokerState) -> None:
        super().__init__(state)
        self.refuses = False

    def propose(self, body: bytes, done: Any) -> EntryId:
        if self.refuses:
            raise TransferringError("it is handed over")
        return super().propose(body, done)


class TwinOrigin:
    """A client's connection; `sent` is all that it got."""

    is_forwarded = False

    def __init__(self, number: int) -> None:
        self.number = number
        self.address = f"1.2.3.4:{number}"
        self.born_host = HOST[:4] + number.to_bytes(4, "big")
        self.is_closed = self.is_gone = False
        self.sent = b""

    def send(self, frame: bytes) -> None:
        self.sent += frame


class TwinLeader:
    """One of both. What it does not do by itself: to flush, to commit, to lose its leadership.

    Attributes:
        ahead: the twin whose order among connections this one has; None: its own.
        order: in which the connections had their turn that were ready together.
    """

    def __init__(self, *, has_lane: bool) -> None:
        self.state = BrokerState()
        self.log = TwinLog(self.state)
        self.ahead: TwinLeader | None = None
        self.order: list[int] = []
        self.origins = [TwinOrigin(number) for number in range(1, 14)]
        self.unrouted: list[Any] = []
        catalog = Catalog(self.state.topics.get, self.state.groups.get)
        self.commits = Commits(
            cast("Any", self.log),
            Staging(self.state, HOST),
            catalog,
            Outputs(),
            count_max=PENDING_MAX,
            bytes_max=PENDING_BYTES_MAX,
            entry_bytes_max=ENTRY_BYTES_MAX,
            now_ms=lambda: START_MS,
        )
        link = MagicMock(is_open=False)
        link.ask.return_value = link.send.return_value = False
        self.router = Router(
            cast("Any", self.log),
            link,
            cast("Any", Confirmed()),
            self.commits,
            waiting_max=20,
            now_ms=lambda: 1_000,
        )
        keys, picks = count(), count()
        self.rules = SendRules(
            catalog,
            SendSettings(BODY_BYTES_MAX, True, True, 6, 18, STAMP),
            pick=lambda bound: next(picks) % bound,
            new_key=lambda: f"made-{next(keys)}",
            timers=TimerRules(259_200_000, lambda: START_MS),
        )
        self.sends = Sends(
            self.commits,
            self.router,
            self.rules,
            SendAnswers(SendReplies("R"), OffsetIdMaker(HOST), "broker-a"),
            ends=cast("Any", SimpleNamespace(begin=_answer_half)),
            rows=cast("Any", SimpleNamespace(send=_answer_rows)),
            repeats=Repeats(
                self.state, lambda offset: read_message(self.log, offset), lambda: START_MS
            ),
            new_topics=NewTopics(self.unrouted.append, self.router.age_ms),
            put_times=PutTimes(),
        )
        self.dispatch = Dispatch(self.router, lambda: 1_000)
        self.dispatch.register(self.sends.handlers())
        self.dispatch.lane = self.sends.lane if has_lane else None
        self.begin_term()
        topics = (TopicConfig("TBW102", 4, 4, PERM_ALL), TopicConfig("T", 4, 2))
        self.commits.create(Creation((*topics, TopicConfig("M", 4, 4, filter_type="MULTI_TAG"))))
        self.commit()

    def read(self, origin: int, data: bytes) -> None:
        """Take what a connection has: whole frames."""
        decoder = FrameDecoder()
        decoder.feed(data)
        self.dispatch.handle(cast("Any", self.origins[origin]), decoder.frames())

    def read_together(self, data: bytes) -> None:
        """Take one frame each of as many connections, those that are open, in the order of the twin that is ahead."""
        decoder = FrameDecoder()
        decoder.feed(data)
        open_ones = [origin for origin in self.origins if not origin.is_closed]
        pairs = list(zip(open_ones, decoder.frames(), strict=False))
        origins, frames = [origin for origin, _ in pairs], [frame for _, frame in pairs]
        taken: Sequence[int] = ()
        if self.ahead is None:
            taken = self.dispatch.handle_together(cast("Any", origins), frames)
            self.order = [*taken, *(at for at in range(len(pairs)) if at not in taken)]
        for origin, frame in [pairs[at] for at in (self.ahead or self).order[len(taken) :]]:
            try:
                self.dispatch.handle(cast("Any", origin), [frame])
            except FrameError:
                origin.is_closed = origin.is_gone = True

    def commit(self) -> None:
        self.commits.flush()
        self.log.commit()

    def depose(self, *, is_unknown: bool) -> None:
        """Leadership is lost; what was proposed is not in the next leader's log, but nobody knows that here."""
        self.log.is_serving = False
        self.commits.lost(NotLeaderError(NodeId("n1"), Term(self.log.term + 1)))
        if is_unknown:
            self.log.lose()
        else:
            self.log.commit()  # the next leader has it
        self.sends.lost()
        assert not self.log.open_count, "entries of a leader of the past are open"

    def begin_term(self) -> None:
        """Lead, perhaps again, and carry out what waited for a leader."""
        self.commits.staging.discard()
        self.log.term += 1
        self.log.is_serving = True
        self.state.apply([self.log.append(b"", EntryKind.NOOP)])
        self.router.unpark()

    def take_routes(self) -> None:
        """The name servers know all topics."""
        unrouted = self.unrouted[:]
        self.unrouted.clear()
        for then in unrouted:
            then()

    def seen(self) -> dict[str, Any]:
        """All that is to be the same with both."""
        lane = self.sends.lane
        assert lane is not None, "repeats are recognised"
        return {
            "answers": [origin.sent for origin in self.origins],
            "entries": [(entry.term, entry.body) for entry in self.log.entries],
            "digests": self.state.digests(),
            "room": self.commits.room,
            "in flight": sorted(lane._known.ahead),
            "waiting": [_waiting(request) for request in self.router._waiting],
            "notes": [
                dict(notes)
                for notes in (
                    lane._known._repeats._unanswered,
                    lane._known._repeats._answered,
                    lane._known._repeats._asked_until_ms,
                )
            ],
        }


def _waiting(request: PendingRequest) -> tuple[Any, ...]:
    return (
        request.origin.number,
        request.frame,
        request.command,
        request.cause,
        request.may_be_done,
        request.was_held,
        request.deadline_ms,
        request.handler.code,
    )


def _answer_half(request: PendingRequest, plan: SendPlan, born_ms: int) -> None:
    request.answer(0, f"half {plan.topic} {plan.messages[0].uniq_key!r} {born_ms}")


def _answer_rows(request: PendingRequest, plan: SendPlan, batch: str, born_ms: int) -> None:
    request.answer(0, f"rows {plan.topic} {batch} {born_ms}")
