"""Transactions: messages that become visible only if something else happened too.

The model. A transaction stores a half message that nobody sees, then decides. What was committed stands in its queue
once, what was rolled back or never decided is never seen, and nothing is seen before it was decided. The
application's table of decisions is the truth: a broker that did not hear the word asks, and is answered the same.

What is done. Each process has a producer of one group and a consumer. The generator draws the decision, and whether it
is sent: a share of the transactions ends silently and leaves the word to a check, which any producer of the
group answers from the table (as a database would hold it). Undecided ones answer every check with "not yet". After some
that were confirmed the end is said once more, the other way round, as no honest client would: the broker must stay
with what it has recorded.
In the end everything that was committed must be read, and a little later nothing else has come.
"""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final, cast

import trio

from dledger_mq import (
    ClientError,
    Message,
    MessageQueue,
    PullConsumer,
    ReceivedMessage,
    TransactionProducer,
    TransactionResult,
    TransactionState,
)
from jepsen.checkers.places import check_places
from jepsen.checkers.queue_log import check_queue_log
from jepsen.checkers.results import Checker
from jepsen.checkers.transactions import CHECKED, check_transactions
from jepsen.clients.topics import open_topics
from jepsen.generators import SECOND_NS, Generator, Invocation
from jepsen.history.ops import OBSERVER
from jepsen.history.outcomes import Outcome, ended
from jepsen.history.values import TxnAsked, shaped
from jepsen.systems.api import System
from jepsen.systems.brokers import brokers
from jepsen.workloads.api import Workload, WorkloadClient
from jepsen.workloads.contents import content_sent, key_of, message_of
from jepsen.workloads.reading import (
    READS,
    PollingReader,
    Reader,
    drain,
    mixed_with_polls,
    share_out,
)

TOPIC: Final = "ChaosBank"
QUEUES: Final = 4
DECISIONS: Final = {"commit": 60, "rollback": 25, "none": 15}
SILENT_SHARE: Final = 0.25
CONTRADICTED_SHARE: Final = 0.1
LOCAL_S: Final = 0.02
TIMEOUT_S: Final = 6.0
SETTLE_NS: Final = 45 * SECOND_NS  # a check comes every half second once somebody leads
QUIET_NS: Final = (
    2 * SECOND_NS
)  # several intervals of checks: what must not be seen would be by then
STATES: Final = {
    "commit": TransactionState.COMMIT,
    "rollback": TransactionState.ROLLBACK,
    "none": TransactionState.UNKNOWN,
}
WORDS: Final = {state: word for word, state in STATES.items()}


class BankTxn(TxnAsked):
    """A transaction of this workload.

    Attributes:
        silent: the decision is not sent, so that a check must ask for it.
        contradicted: once it is confirmed the end is sent again, the other way round.
        local_ms: the decision takes so long.
    """

    silent: bool
    contradicted: bool
    local_ms: int


class BankAnswer(BankTxn, total=False):
    """The transaction, and what became of it; see `TxnAnswer`."""

    decided_ns: int
    confirmed: str
    id: str


class Decisions:
    """The table of the application: how each transaction was decided, shared by all its producers.

    Attributes:
        owed: committed and acknowledged, and not yet read.
    """

    def __init__(self, on_check: Callable[[str], None]) -> None:
        """Start empty; `on_check` is called with each key that a broker asks for."""
        self.owed: set[str] = set()
        self._on_check = on_check
        self._states: dict[str, TransactionState] = {}
        self._read: set[str] = set()

    def decide(self, key: str, decision: str) -> None:
        """Note how it was decided; from here on checks hear that."""
        self._states[key] = STATES[decision]

    def owe(self, key: str) -> None:
        """Note that its half message is stored, and that it was committed."""
        if key not in self._read:
            self.owed.add(key)

    def note_read(self, key: str) -> None:
        """Note that it was read."""
        self._read.add(key)
        self.owed.discard(key)

    async def look_up(self, message: ReceivedMessage) -> TransactionState:
        """Answer a broker's check from the table; a transaction without a decision is unknown."""
        key = key_of(message.body)
        self._on_check(key)
        return self._states.get(key, TransactionState.UNKNOWN)


class TransactionWorkload(Workload):
    """The workload of transactions, decided by a table of the application."""

    name = "transactions"

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._queues: dict[str, MessageQueue] = {}
        self._readers: list[Reader] = []
        self._numbers = itertools.count()
        self._decisions = Decisions(self._note_check)
        self._final_ns = 0
        self._quiet_ns = 0

    def _note_check(self, key: str) -> None:
        self.log.add(OBSERVER, "info", CHECKED, {"key": key})

    @asynccontextmanager
    async def setup(self, system: System) -> AsyncIterator[None]:
        """Make the topic and share out its queues."""
        group = brokers(system)
        logging.getLogger(TransactionProducer.__module__).setLevel(logging.ERROR)  # it is our doing
        self._queues = await open_topics(group, [TOPIC], queues=QUEUES)
        self._readers = share_out(list(self._queues), self._workers)
        yield

    @asynccontextmanager
    async def client(self, system: System, process: int) -> AsyncIterator[WorkloadClient]:
        """Open a producer of the group, and a consumer."""
        namesrv = brokers(system).namesrv
        slot = process % self._workers
        async with (
            TransactionProducer(
                namesrv, "chaos-bank", checker=self._decisions.look_up, timeout_s=TIMEOUT_S
            ) as producer,
            PullConsumer(namesrv, f"chaos-bank-{slot}", timeout_s=TIMEOUT_S) as consumer,
        ):
            # Brokers ask those who have registered with them, and a producer registers with the brokers
            # of the routes that it has; without a leader the route comes with the first transaction.
            with suppress(ClientError):
                await producer.queues(TOPIC)
            note = self._decisions.note_read
            reader = PollingReader(self._readers[slot], consumer, self._queues, on_read=note)
            yield TransactionClient(self, producer, reader)

    def generator(self, chance: random.Random, workers: int) -> Generator:
        """Generate transactions, and polls beside them."""
        return mixed_with_polls(self._readers, partial(self._txn, chance), 2, chance)

    def _txn(self, chance: random.Random) -> Invocation:
        (decision,) = chance.choices(list(DECISIONS), list(DECISIONS.values()))
        key = f"t{next(self._numbers)}"
        value = {
            "key": key,
            "content": content_sent(message_of(TOPIC, key)),
            "decision": decision,
            "silent": chance.random() < SILENT_SHARE,
            "contradicted": chance.random() < CONTRADICTED_SHARE,
            "local_ms": round(chance.uniform(0, LOCAL_S) * 1000),
        }
        return Invocation("txn", value)

    def final(self, workers: int) -> Generator:
        """Read everything, until all that was committed has come and nothing else does."""
        return drain(self._readers, list(self._queues), self._is_complete)

    def _is_complete(self) -> bool:
        now_ns = self.log.now_ns()
        self._final_ns = self._final_ns or now_ns
        if self._decisions.owed and now_ns < self._final_ns + SETTLE_NS:
            return False
        self._quiet_ns = self._quiet_ns or now_ns
        return now_ns >= self._quiet_ns + QUIET_NS

    def checkers(self) -> Sequence[Checker]:
        """Return transactions, each queue as a log, and what was sent is what stands there."""
        return (check_transactions, check_queue_log, check_places)

    async def carry_out(self, producer: TransactionProducer, value: BankTxn) -> Outcome:
        """Run one transaction, and return the broker's answer as its outcome."""
        key, decision = value["key"], value["decision"]
        known = cast("BankAnswer", dict(value))  # what is known is added to it

        async def local(_message: Message, _transaction_id: str) -> TransactionState:
            await trio.sleep(value["local_ms"] / 1000)
            known["decided_ns"] = self.log.now_ns()
            self._decisions.decide(key, decision)
            return TransactionState.UNKNOWN if value["silent"] else STATES[decision]

        try:
            result = await producer.send_in_transaction(message_of(TOPIC, key), local)
        except ClientError as error:
            if "decided_ns" in known:  # stored and decided: only the word about the end was refused
                self._owe(key, decision)
                return Outcome("ok", known, error=f"{type(error).__name__}: {error}")
            # It may be stored; then a check comes, and hears of the decision.
            outcome = ended(error, known)
            if outcome.type == "info":
                self._decisions.decide(key, decision)
            return outcome
        self._owe(key, decision)
        known["id"] = result.sent.message_id
        if result.is_confirmed:
            recorded = result.state
            if value["contradicted"]:
                recorded = await _send_contradicting_end(producer, result) or recorded
            known["confirmed"] = WORDS[recorded]
        return Outcome("ok", known)

    def _owe(self, key: str, decision: str) -> None:
        if decision == "commit":
            self._decisions.owe(key)


async def _send_contradicting_end(
    producer: TransactionProducer, result: TransactionResult
) -> TransactionState | None:
    """Send the opposite end of a transaction; return what the broker has recorded, None without an answer."""
    commit, rollback = TransactionState.COMMIT, TransactionState.ROLLBACK
    otherwise = rollback if result.state is commit else commit
    ext = producer._ext_of(TOPIC, result.sent)  # noqa: SLF001 - no honest client says this
    try:
        return await producer._end(  # noqa: SLF001 - no honest client says this
            result.sent.queue.broker_name, ext, otherwise, timeout_s=TIMEOUT_S
        )
    except ClientError:
        return None


class TransactionClient:
    """One producer of the group, and a reader."""

    def __init__(
        self, workload: TransactionWorkload, producer: TransactionProducer, reader: PollingReader
    ) -> None:
        self._workload = workload
        self._producer = producer
        self._reader = reader

    async def invoke(self, f: str, value: object) -> Outcome:
        """Run one operation, and return its outcome."""
        if f not in READS:
            return await self._workload.carry_out(self._producer, shaped(value, BankTxn))
        try:
            return await self._reader.invoke(f, value)
        except ClientError as error:
            return ended(error, value, changes_nothing=True)
