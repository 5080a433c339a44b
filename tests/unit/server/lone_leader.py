"""A leader without sockets, peers and clock: sends, send-backs, delays and timers over a log by hand."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, cast

from broker.server.deliveries.delays import Delays
from broker.server.deliveries.timers import TimerDeliveries
from broker.server.handlers.new_topics import NewTopics
from broker.server.handlers.send_answers import SendAnswers
from broker.server.handlers.send_backs import SendBacks
from broker.server.handlers.sends import Sends
from broker.server.requests.commits import Commits
from broker.server.requests.origin import Outputs
from broker.server.requests.put_times import PutTimes
from broker.service.catalog import Catalog, Creation
from broker.service.repeats import Repeats
from broker.service.send import SendRules, SendSettings
from broker.service.send_back import SendBackRules
from broker.service.timers import RecallRules, TimerRules
from broker.store.groups import SubscriptionGroupConfig
from broker.store.record_reader import read_message
from broker.store.staging import Staging
from broker.store.state import BrokerState
from broker.store.topics import TopicConfig
from dledger import Committed, EntryId, Failed, LeadershipLostError
from dledger.raft.entry import Entry, EntryKind
from dledger.raft.ids import Position
from dledger_mq.message.ids import OffsetIdMaker
from dledger_mq.message.properties import encode_properties
from dledger_mq.message.record import StoredMessage
from dledger_mq.remoting.header import RemotingCommand
from dledger_mq.remoting.replies import SendReplies
from dledger_mq.remoting.requests import SendFields, SendRequest
from tests.unit.server.pending import ParkingRouter, pending
from tests.unit.store.lone_broker import HOST, START_MS, FakeLog

BODY_MAX = 4 * 1024 * 1024


class LeaderLog(FakeLog):
    """What is proposed waits until the test commits or loses it."""

    def __init__(self, state: BrokerState) -> None:
        super().__init__()
        self.appender = self.reader = self
        self.is_serving = True
        self._state = state
        self._open: list[tuple[Entry, Callable[[Any], None]]] = []

    @property
    def open_count(self) -> int:
        return len(self._open)

    @property
    def committed_position(self) -> Position:
        return self._open[0][0].position if self._open else self.end_position

    def propose(self, body: bytes, done: Callable[[Any], None]) -> EntryId:
        entry = self.append(body)
        self._open.append((entry, done))
        return entry.id

    def commit(self) -> None:
        waiting, self._open = self._open, []
        for entry, done in waiting:
            self._state.apply([entry])
            done(Committed(entry.id, entry.id))

    def lose(self) -> None:
        """The proposals of this leader were not committed, and are not in the next one's log."""
        waiting, self._open = self._open, []
        del self.entries[len(self.entries) - len(waiting) :]
        for _, done in waiting:
            done(Failed(LeadershipLostError("gone")))


class Asker:
    """A client's connection; `codes` and `exts` of its answers."""

    number = 1
    address = "1.2.3.4:5"
    born_host = HOST
    is_forwarded = False
    is_closed = is_gone = False

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def send(self, frame: bytes) -> None:
        self.frames.append(frame)


class LoneLeader:
    """Its clock is `now_ms`; `tick` is a turn of the delivering tasks, `commit` one of the log."""

    def __init__(self, state: BrokerState | None = None, log: LeaderLog | None = None) -> None:
        self.state = state or BrokerState()
        self.log = log or LeaderLog(self.state)
        self.now_ms = START_MS
        catalog = Catalog(self.state.topics.get, self.state.groups.get)
        self.commits = Commits(
            self.log,  # type: ignore[arg-type]  # the part of a LogServer that is used here
            Staging(self.state, HOST),
            catalog,
            Outputs(),
            count_max=10_000,
            bytes_max=64_000_000,
            now_ms=lambda: self.now_ms,
        )
        self.router = ParkingRouter(self.commits)
        keys = count()
        answers = SendAnswers(SendReplies(), OffsetIdMaker(HOST), "broker-a")
        self.sends = Sends(
            self.commits,
            self.router,
            SendRules(
                catalog,
                SendSettings(BODY_MAX, True, True, 6, 18, b""),
                pick=lambda bound: 0,
                new_key=lambda: f"made-{next(keys)}",
                timers=TimerRules(259_200_000, self.log_ms),
                has_live_lock=lambda group: self.state.locks.has_live_lock(group, self.log_ms()),
            ),
            answers,
            ends=cast("Any", None),
            rows=cast("Any", None),
            repeats=Repeats(self.state, lambda offset: read_message(self.log, offset), self.log_ms),
            new_topics=NewTopics(lambda then: then(), self.router.age_ms),
            put_times=PutTimes(),
        )
        self.send_backs = SendBacks(
            self.commits,
            self.router,
            SendBackRules(
                catalog,
                permission=6,
                auto_create_groups=True,
                delay_level_max=18,
                load=lambda offset: read_message(self.log, offset),
                pick=lambda bound: 0,
            ),
        )
        delivered: tuple[Any, Any, Any] = (self.log, self.state, self.commits)
        self.delays = Delays(*delivered, self.log_ms)
        self.timers = TimerDeliveries(
            *delivered,
            self.router,
            rules=RecallRules(True, "broker-a", lambda topic: topic in self.state.topics),
            now_ms=self.log_ms,
        )
        if log is None:
            self.state.apply([self.log.append(b"", EntryKind.NOOP)])
            self.create(TopicConfig("T", 4, 4))

    def log_ms(self) -> int:
        return max(self.now_ms, self.state.last_store_ms)

    def create(self, *new: TopicConfig | SubscriptionGroupConfig) -> None:
        topics = tuple(one for one in new if isinstance(one, TopicConfig))
        groups = tuple(one for one in new if isinstance(one, SubscriptionGroupConfig))
        self.commits.create(Creation(topics, groups))
        self.commit()

    def send(
        self,
        body: bytes = b"body",
        topic: str = "T",
        times: int = 0,
        queue_id: int = 0,
        **named: str,
    ) -> Asker:
        asker = Asker()
        fields = SendFields(
            producer_group="P",
            topic=topic,
            default_topic="TBW102",
            default_topic_queue_nums=4,
            queue_id=queue_id,
            sys_flag=0,
            born_timestamp_ms=self.now_ms,
            flag=0,
            properties=encode_properties(named).decode(),
            reconsume_times=times,
        )
        self.sends.send(
            pending(asker, 310, body=body, opaque=7), SendRequest(opaque=7, fields=fields)
        )
        return asker

    def give_back(self, message: StoredMessage, group: str, level: int = 0) -> Asker:
        asker = Asker()
        ext = {"offset": str(message.physical_offset), "group": group, "delayLevel": str(level)}
        command = RemotingCommand(code=36, opaque=8, ext=ext, version=409)
        self.send_backs.send_back(pending(asker, 36, opaque=8), command)
        return asker

    def recall(self, handle: str, topic: str = "T") -> Asker:
        asker = Asker()
        command = RemotingCommand(
            code=370, opaque=9, ext={"topic": topic, "recallHandle": handle}, version=409
        )
        self.timers.recall(pending(asker, 370), command)
        return asker

    def tick(self) -> None:
        self.delays.tick()
        self.timers.tick()

    def commit(self) -> None:
        """Propose what is staged, commit it, and what follows from that, until nothing is left."""
        self.commits.flush()
        while self.log.open_count:
            self.log.commit()
            self.commits.flush()

    def pass_until(self, now_ms: int, step_ms: int = 50) -> None:
        """Let time pass, with the tasks at work."""
        while self.now_ms < now_ms:
            self.now_ms = min(now_ms, self.now_ms + step_ms)
            self.tick()
            self.commit()

    def stored(self, topic: str = "T") -> list[StoredMessage]:
        """All messages of a topic, queue after queue."""
        return [
            read_message(self.log, queue.unit(offset).physical_offset)
            for queue in self.state.queues.of_topic(topic)
            for offset in range(queue.min_offset, queue.max_offset)
        ]
