"""Transactions under leaders that come and go: the leader's own code over the fold, on several replicas.

Halves, ends (repeated, late, contradictory), checks and failures come in any order; entries on their way
survive a change of leader or do not. Committed is seen once, rolled back and given up never, every answer
agrees with what the log says in the end, and all replicas have the same digests.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.server.deliveries.transaction_checks import TransactionChecks
from broker.server.handlers.new_topics import NewTopics
from broker.server.handlers.send_answers import SendAnswers
from broker.server.handlers.transactions import TransactionEnds
from broker.server.requests.commits import Commits
from broker.server.requests.origin import Outputs
from broker.server.requests.request import PendingRequest
from broker.service.catalog import Catalog
from broker.service.repeats import Repeats
from broker.service.send import MessagePlan, SendPlan
from broker.service.transactions import EndRules
from broker.store.record_reader import MessageGoneError, read_message
from broker.store.refusals import ALARMS
from broker.store.staging import Staging
from broker.store.state import BrokerState
from broker.store.transactions import TransactionVerdict
from dledger import Committed, Failed, NotLeaderError, OutcomeUnknownError
from dledger.raft.entry import BodySpan, Entry, EntryKind
from dledger.raft.ids import EntryId, Index, Position, Term
from dledger_mq.message.ids import OffsetIdMaker, parse_offset_msg_id
from dledger_mq.message.properties import UNIQ_KEY, encode_properties
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.header import RemotingCommand, decode_command, make_request
from dledger_mq.remoting.replies import SendReplies
from tests.unit.server.pending import ParkingRouter, pending
from tests.unit.store.lone_broker import BORN, HOST, START_MS, FakeLog

pytestmark = pytest.mark.slow

KEYS = ["k0", "k1", "k2"]
BODIES = ["v1", "v2"]
"""Two of them under one key are two transactions."""
CHECKS = 2
Done = Callable[[Committed | Failed], None]


class Origin:
    """Takes the answers of one request."""

    is_forwarded = False
    is_closed = is_gone = False
    number = 1
    address = "127.0.0.1:1"
    born_host = BORN

    def __init__(self) -> None:
        self.answer: RemotingCommand | None = None

    def send(self, frame: bytes) -> None:
        decoder = FrameDecoder()
        decoder.feed(frame)
        (whole,) = decoder.frames()
        assert self.answer is None, "one answer to one request"
        self.answer = decode_command(whole)


class SmallGroup:
    """The log of the group, what is on its way, and its replicas; one of them leads."""

    def __init__(self, replicas: int) -> None:
        self.log = FakeLog()
        self.flying: list[tuple[Entry, Done]] = []
        self.now_ms = START_MS
        self.term = 1
        self.nodes = [Node(self) for _ in range(replicas)]
        self.ends: list[tuple[int, TransactionVerdict, Origin]] = []
        self.halves: list[tuple[str, str, Origin]] = []
        self.leader = self.nodes[0]
        self.elect(0)

    @property
    def end_position(self) -> Position:
        return self.flying[-1][0].end_position if self.flying else self.log.end_position

    def elect(self, number: int) -> None:
        self.term += 1
        self.log.append(b"", EntryKind.NOOP, self.term)
        self.leader = self.nodes[number]
        self.leader.catch_up()
        self.leader.commits.staging.discard()
        self.leader.ends.leadership_began()
        self.leader.checks.leadership_began()

    def commit(self, count: int) -> None:
        for _ in range(min(count, len(self.flying))):
            entry, done = self.flying.pop(0)
            self.log.entries.append(entry)
            self.leader.catch_up()
            done(Committed(entry.id, entry.id))

    def fail(self, surviving: int, number: int) -> None:
        """The leader is replaced; the first entries on their way turn out to be committed."""
        old = self.leader
        kept, lost = self.flying[:surviving], self.flying[surviving:]
        self.flying = []
        old.is_serving = False
        old.commits.lost(NotLeaderError(None, Term(self.term)))
        for _, done in kept + lost:
            done(Failed(OutcomeUnknownError("the leader was replaced")))
        self.log.entries.extend(entry for entry, _ in kept)
        old.is_serving = True
        self.elect(number % len(self.nodes))
        held, old.router.held = old.router.held, []
        for request in held:
            self.leader.serve(request)


class Node:
    """One replica and, while it leads, the leader's code; it is its own log server."""

    def __init__(self, world: SmallGroup) -> None:
        self.world = world
        self.appender = self.reader = self
        self.is_serving = True
        self.state = BrokerState()
        catalog = Catalog(self.state.topics.get, self.state.groups.get)
        self.commits = Commits(
            cast("Any", self),
            Staging(self.state, HOST),
            catalog,
            Outputs(),
            count_max=1000,
            bytes_max=10**9,
            now_ms=lambda: world.now_ms,
        )
        self.router = ParkingRouter(self.commits)
        self.ends = TransactionEnds(
            cast("Any", self),
            self.commits,
            self.router,
            lambda: self.state.transactions,
            rules=EndRules(
                lambda: self.state.transactions,
                timeout_ms=6000,
                delay_level_max=18,
                timers=None,
                load=self.load,
            ),
            answers=SendAnswers(SendReplies(), OffsetIdMaker(HOST), "b"),
            repeats=Repeats(self.state, self.load, lambda: world.now_ms),
            new_topics=NewTopics(lambda then: then(), lambda _: 0),
            open_max=100,
            now_ms=lambda: world.now_ms,
        )
        self.asked: list[str] = []
        self.checks = TransactionChecks(
            cast("Any", self),
            self.state,
            self.commits,
            self.ends,
            catalog=catalog,
            ask=lambda group, _frame: self.asked.append(group),
            broker_name="b",
            timeout_ms=6000,
            interval_ms=10_000,
            check_max=CHECKS,
            wall_ms=lambda: world.now_ms,
            monotonic_ms=lambda: world.now_ms,
        )

    # What the leader's code needs of a log.

    @property
    def end_position(self) -> Position:
        return self.world.end_position

    def entry_at(self, position: Position) -> Entry:
        return self.world.log.entry_at(position)

    def span_at(
        self, position: Position, size_bytes: int, *, only_memory: bool = False
    ) -> BodySpan | None:
        return self.world.log.span_at(position, size_bytes, only_memory=only_memory)

    def propose(self, body: bytes, done: Done) -> EntryId:
        world = self.world
        index = Index(len(world.log.entries) + len(world.flying) + 1)
        entry = Entry(index, Term(world.term), world.end_position, EntryKind.NORMAL, body)
        world.flying.append((entry, done))
        return entry.id

    def load(self, offset: int) -> Any:
        try:
            return read_message(self.world.log, offset)
        except MessageGoneError:
            return None

    def catch_up(self) -> None:
        self.state.apply(self.world.log.entries[self.state.applied_index :])

    def serve(self, request: PendingRequest) -> None:
        command = cast("RemotingCommand", request.command)
        if command.code == 37:
            self.ends.end(request, command)
        else:
            key = command.ext["key"]
            named = {"UNIQ_KEY": key, "TRAN_MSG": "true", "PGROUP": "P"}
            properties = encode_properties(named)
            message = MessagePlan(0, command.ext["body"].encode(), properties, key.encode())
            plan = SendPlan("T", 1, 0, 0, 0, (message,), is_half=True)
            self.ends.begin(request, plan, self.world.now_ms)


Step = tuple[Any, ...]
ENDS = (TransactionVerdict.COMMITTED, TransactionVerdict.ROLLED_BACK)


def script_of(seed: int) -> list[Step]:
    """Sixty steps; halves land soon, so that most ends meet one."""
    chance = random.Random(seed)
    makers: list[tuple[int, Callable[[], Step]]] = [
        (4, lambda: ("half", chance.choice(KEYS), chance.choice(BODIES))),
        (8, lambda: ("end", chance.randint(0, 6), chance.choice(ENDS))),
        (3, lambda: ("pass", chance.choice([10, 6000, 10_000]))),
        (6, lambda: ("flush",)),
        (6, lambda: ("commit", chance.randint(1, 2))),
        (2, lambda: ("fail", chance.randint(0, 2), chance.randint(0, 2))),
        (1, lambda: ("lag", chance.randint(0, 2))),
    ]
    weights = [weight for weight, _ in makers]
    return [make() for _, make in chance.choices(makers, weights, k=60)]


scripts = st.integers(0, 2**32).map(script_of)


def carry_out(world: SmallGroup, step: Step) -> None:
    leader = world.leader
    match step:
        case ("half", key, body):
            origin = Origin()
            world.halves.append((key, body, origin))
            command = make_request(10, 1, {"key": key, "body": body})
            leader.serve(pending(origin, 10, command=command, opaque=1))
        case ("end", offset, verdict):
            half = next((m for m in halves_of(world) if m[0] == offset), (offset, 48))
            ext = {
                "producerGroup": "P",
                "tranStateTableOffset": str(offset),
                "commitLogOffset": str(half[1]),
                "commitOrRollback": "8" if verdict is TransactionVerdict.COMMITTED else "12",
                "msgId": "",
            }
            origin = Origin()
            world.ends.append((offset, verdict, origin))
            leader.serve(pending(origin, 37, command=make_request(37, 1, ext), opaque=1))
        case ("pass", ms):
            world.now_ms += ms
            leader.checks.tick()
        case ("flush",):
            leader.commits.flush()
        case ("commit", count):
            world.commit(count)
        case ("fail", surviving, number):
            world.fail(surviving, number)
        case ("lag", number):
            world.nodes[number].catch_up()


def halves_of(world: SmallGroup) -> list[tuple[int, int]]:
    """Half queue offset and physical offset, as far as the leader has applied them."""
    queue = world.leader.state.queues.get("RMQ_SYS_TRANS_HALF_TOPIC", 0)
    if queue is None:
        return []
    return [(n, queue.unit(n).physical_offset) for n in range(queue.max_offset)]


def settle(world: SmallGroup) -> None:
    """Let everything end that is under way."""
    for _ in range(20):
        world.leader.commits.flush()
        world.commit(2)
        held, world.leader.router.held = world.leader.router.held, []
        for request in held:
            world.leader.serve(request)
    for node in world.nodes:
        node.catch_up()


def bodies(world: SmallGroup, topic: str, queue_id: int) -> list[tuple[bytes, int]]:
    queue = world.leader.state.queues.get(topic, queue_id)
    if queue is None:
        return []
    stored = [
        read_message(world.log, queue.unit(n).physical_offset) for n in range(queue.max_offset)
    ]
    return [(m.body, m.prepared_transaction_offset) for m in stored]


@settings(max_examples=300, deadline=None)
@given(scripts)
def test_committed_once_rolled_back_never(script: list[Step]) -> None:
    world = SmallGroup(3)
    for step in script:
        carry_out(world, step)
    settle(world)
    table = world.leader.state.transactions
    halves = halves_of(world)
    verdicts = {offset: table.verdict(offset) for offset, _ in halves}
    committed = sorted(
        at for offset, at in halves if verdicts[offset] is TransactionVerdict.COMMITTED
    )
    given_up = sorted(
        at for offset, at in halves if verdicts[offset] is TransactionVerdict.GIVEN_UP
    )
    assert sorted(at for _, at in bodies(world, "T", 1)) == committed
    for body, at in bodies(world, "T", 1):
        assert body == read_message(world.log, at).body, "each end acts on its own half message"
    assert sorted(at for _, at in bodies(world, "TRANS_CHECK_MAX_TIME_TOPIC", 0)) == given_up
    for offset, wanted, origin in world.ends:
        assert origin.answer is not None, "every end is answered"
        verdict = verdicts.get(offset)
        if origin.answer.code == 1:
            continue  # the half message was not there yet
        is_committed = verdict is TransactionVerdict.COMMITTED
        assert verdict is not TransactionVerdict.OPEN
        assert origin.answer.ext["commitOrRollback"] == ("8" if is_committed else "12")
        agrees = (wanted is TransactionVerdict.COMMITTED) == is_committed
        assert origin.answer.code == (0 if agrees else 200 if is_committed else 201)
    for half in table:
        assert half.check_count <= CHECKS
    for key, text, origin in world.halves:
        assert origin.answer is not None, "every half message is answered"
        if origin.answer.code == 0:
            offset = parse_offset_msg_id(origin.answer.ext["msgId"])[2]
            stored = read_message(world.log, offset)
            assert (stored.find(UNIQ_KEY), stored.body) == (key.encode(), text.encode())
            assert origin.answer.ext["queueOffset"] == str(stored.queue_offset)
    assert len({node.state.digest() for node in world.nodes}) == 1
    assert all(r.kind not in ALARMS for node in world.nodes for r in node.state.refusals.newest)


@settings(max_examples=100, deadline=None)
@given(scripts)
def test_a_half_message_is_open_once(script: list[Step]) -> None:
    """One that is sent again, by whatever way, does not leave a second one open."""
    world = SmallGroup(3)
    for step in script:
        carry_out(world, step)
        halves = [
            (half.key, read_message(world.log, half.physical_offset).body)
            for half in world.leader.state.transactions
        ]
        assert len(halves) == len(set(halves))
