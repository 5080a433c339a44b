"""Transactions under leaders that are killed: committed is seen once, rolled back never.

    python -m jepsen.transactions [--rounds 20] [--seed N] [--keep DIR] [--json]

Two producers of one group run transactions without a pause; their outcomes are noted in a table that
both checkers read, as a database would. Some local transactions do not tell their outcome, some ends are
said again the other way round. Meanwhile the leader is killed with SIGKILL and started again, round after
round. In the end every queue is read: each committed message must be there once, no other at all.

Exit status as `python -m jepsen.demo`: 0 valid, 1 broken, 2 unknown.
"""

from __future__ import annotations

import argparse
import logging
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Final

import msgspec
import trio
from rich.console import Console

from broker.client import (
    ClientError,
    Message,
    PullConsumer,
    ReceivedMessage,
    SendOutcomeUnknownError,
    TransactionProducer,
    TransactionResult,
    TransactionState,
)
from jepsen.demo import INTERRUPTED, INVALID, STARTUP_ERRORS, UNKNOWN, VALID, raise_first
from jepsen.history import Recorder
from jepsen.nemesis import LeaderKiller
from jepsen.observer import Observer
from jepsen.processes import Group, sigterm_as_interrupt
from jepsen.workload import wait_for_queues

TOPIC: Final = "Transactions"
WORKERS: Final = 16
START_TIMEOUT_S: Final = 30.0
SETTLE_S: Final = 60.0
QUIET_S: Final = 3.0
"""Longer than several intervals of checks: what is not seen by then is not seen."""

CONF: Final = """transactionTimeOut=1000
transactionCheckInterval=500
transactionCheckMax=1000
"""

COMMIT, ROLLBACK = TransactionState.COMMIT, TransactionState.ROLLBACK


class Ledger:
    """What the applications know of their transactions; shared, as a database is.

    Attributes:
        decided: how a local transaction ended, by transaction id; those that never ran are not here.
        running: transactions whose outcome is not decided yet.
        counts: what happened, by kind.
    """

    def __init__(self) -> None:
        self.decided: dict[str, TransactionState] = {}
        self.running: set[str] = set()
        self.counts: Counter[str] = Counter()

    async def look_up(self, message: ReceivedMessage) -> TransactionState:
        """The checker: what never ran was rolled back."""
        self.counts["checks"] += 1
        if message.unique_key in self.running:
            return TransactionState.UNKNOWN
        return self.decided.get(message.unique_key, ROLLBACK)


class Findings(msgspec.Struct, frozen=True):
    """What was seen, against what was decided."""

    committed: int
    rolled_back: int
    lost: list[str]
    twice: list[str]
    never_committed: list[str]
    contradictions: int

    @property
    def is_valid(self) -> bool:
        """Whether every promise was kept."""
        broken = self.lost or self.twice or self.never_committed or self.contradictions
        return not broken


def judge(
    decided: Mapping[str, TransactionState], seen: Mapping[str, int], contradictions: int = 0
) -> Findings:
    """Compare; `seen` counts the visible messages by transaction id."""
    committed = {key for key, state in decided.items() if state is COMMIT}
    return Findings(
        committed=len(committed),
        rolled_back=len(decided) - len(committed),
        lost=sorted(committed - seen.keys()),
        twice=sorted(key for key, count in seen.items() if count > 1),
        never_committed=sorted(seen.keys() - committed),
        contradictions=contradictions,
    )


class Worker:
    """Runs transactions one after the other."""

    def __init__(
        self, name: str, producer: TransactionProducer, ledger: Ledger, chance: random.Random
    ) -> None:
        self._name = name
        self._producer = producer
        self._ledger = ledger
        self._chance = chance

    async def run(self, stop: trio.Event) -> None:
        """Until told to stop."""
        number = 0
        while not stop.is_set():
            await self._one(f"{self._name}-{number}")
            number += 1

    async def _one(self, key: str) -> None:
        ledger, counts = self._ledger, self._ledger.counts
        message = Message(TOPIC, key.encode(), unique_key=key)
        ledger.running.add(key)
        try:
            result = await self._producer.send_in_transaction(message, self._local)
        except SendOutcomeUnknownError:
            counts["half unknown"] += 1
        except ClientError:  # every other one is definite: not stored
            counts["half refused"] += 1
        else:
            counts["confirmed" if result.is_confirmed else "left to a check"] += 1
            if result.is_confirmed:
                await self._compare(key, result)
        finally:
            ledger.running.discard(key)

    async def _local(self, message: Message, transaction_id: str) -> TransactionState:
        await trio.sleep(self._chance.uniform(0, 0.02))
        state = COMMIT if self._chance.random() < 0.6 else ROLLBACK
        self._ledger.decided[transaction_id] = state
        self._ledger.running.discard(transaction_id)
        return state if self._chance.random() < 0.8 else TransactionState.UNKNOWN

    async def _compare(self, key: str, result: TransactionResult) -> None:
        """What the broker says it recorded is what was decided, also to somebody who says otherwise."""
        decided = self._ledger.decided[key]
        recorded = result.state
        if self._chance.random() < 0.1:
            self._ledger.counts["said otherwise"] += 1
            otherwise = ROLLBACK if decided is COMMIT else COMMIT
            ext = self._producer._ext_of(TOPIC, result.sent)  # noqa: SLF001 - no honest client says this
            try:
                recorded = await self._producer._end(  # noqa: SLF001 - no honest client says this
                    result.sent.queue.broker_name, ext, otherwise, timeout_s=10
                )
            except ClientError:
                self._ledger.counts["otherwise unanswered"] += 1
        if recorded is not decided:
            self._ledger.counts["contradictions"] += 1


async def read_all(reader: PullConsumer) -> Counter[str]:
    """Every visible message of the topic, by transaction id."""
    seen: Counter[str] = Counter()
    for queue in await reader.queues(TOPIC):
        offset = await reader.min_offset(queue)
        while True:
            pulled = await reader.pull(queue, offset)
            seen.update(message.unique_key for message in pulled.messages)
            offset = pulled.next_offset
            if pulled.is_empty:
                break
    return seen


async def settle(reader: PullConsumer, ledger: Ledger) -> Counter[str]:
    """Wait until all that was committed is visible, and a little for what must not come."""
    deadline = trio.current_time() + SETTLE_S
    for pause_s in repeat(0.5):
        missing = judge(ledger.decided, await read_all(reader)).lost
        if not missing or trio.current_time() > deadline:
            break
        await trio.sleep(pause_s)
    await trio.sleep(QUIET_S)
    return await read_all(reader)


async def carry_out(
    group: Group, history: Recorder, rounds: int, seed: int
) -> tuple[Findings, dict[str, int]]:
    """Run transactions, kill leaders, and compare."""
    ledger, chance = Ledger(), random.Random(seed)
    async with trio.open_nursery() as nursery:
        observer = Observer(group, history.note_leader)
        nursery.start_soon(observer.run)
        async with (
            TransactionProducer(group.namesrv, "bank", checker=ledger.look_up) as one,
            TransactionProducer(group.namesrv, "bank", checker=ledger.look_up) as two,
            PullConsumer(group.namesrv, "auditor") as reader,
        ):
            await wait_for_queues(one, TOPIC, START_TIMEOUT_S)
            stop = trio.Event()
            killer = LeaderKiller(
                group, observer, history, kills=rounds, period_s=2.0, restart_after_s=0.5
            )
            async with trio.open_nursery() as working:
                for number in range(WORKERS):
                    worker = Worker(
                        f"tx{number}",
                        (one, two)[number % 2],
                        ledger,
                        random.Random(chance.random()),
                    )
                    working.start_soon(worker.run, stop)
                await killer.run()
                stop.set()
            seen = await settle(reader, ledger)
        nursery.cancel_scope.cancel()
    counts = {"kills": killer.done, **ledger.counts}
    return judge(ledger.decided, seen, ledger.counts["contradictions"]), counts


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m jepsen.transactions", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--keep", type=Path, metavar="DIR")
    parser.add_argument("--json", action="store_true", help="one line of results on stdout")
    read = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    if read.rounds < 1:
        parser.error("--rounds must be at least 1")
    console = Console(stderr=True) if read.json else Console()
    logging.getLogger("broker.client.transaction_producer").setLevel(
        logging.ERROR
    )  # it is our doing
    sigterm_as_interrupt()
    try:
        return _run(read.rounds, read.seed, read.keep, console, as_json=read.json)
    except STARTUP_ERRORS as error:
        console.print(f"UNKNOWN: the group did not start: {error}")
        return UNKNOWN
    except KeyboardInterrupt:
        console.print("interrupted; every process was ended")
        return INTERRUPTED


def _run(rounds: int, seed: int, keep: Path | None, console: Console, *, as_json: bool) -> int:
    folder = keep or Path(tempfile.mkdtemp(prefix="dledger-transactions-"))
    folder.mkdir(parents=True, exist_ok=True)
    conf = folder / "broker.conf"
    conf.write_text(CONF)
    console.print(f"seed {seed}, stores and logs in {folder}", highlight=False)
    with (
        Group(folder, broker_arguments=("-c", str(conf))) as group,
        Recorder(folder / "history.jsonl") as history,
    ):
        group.start()
        group.wait_listening(START_TIMEOUT_S)
        try:
            findings, counts = trio.run(carry_out, group, history, rounds, seed)
        except BaseExceptionGroup as errors:
            raise_first(errors)
    line = msgspec.json.encode({**msgspec.to_builtins(findings), "counts": counts}).decode()
    if as_json:
        sys.stdout.write(line + "\n")
    else:
        console.print(line, highlight=False, soft_wrap=True)
    if findings.is_valid and counts["kills"] == rounds:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
        return VALID
    console.print(f"history and logs: {folder}", highlight=False)
    return UNKNOWN if findings.is_valid else INVALID


if __name__ == "__main__":
    sys.exit(main())
