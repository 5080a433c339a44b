"""Runs a generator: hands its invocations to workers, each with a client of its own, and writes the history.

A worker is a task that stands for one process at a time. An operation that ends as `info` may still be in
flight, so its process is over: the worker goes on as a new process (its number plus the number of workers) with
a new client. A client that raises is a bug of the harness and not of the system: the operation is `info`, what
was raised is kept in `crashes`, and the run cannot be called valid.

There is one interpreter for every workload and system. It knows nothing of faults: those have a task of their
own (`nemeses/schedule.py`) and write into the same history.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final

import trio

from jepsen.generators import Context, Generator, Invocation, Pending
from jepsen.history.ops import OpLog
from jepsen.history.outcomes import Outcome
from jepsen.workloads.api import Completion, WorkloadClient

OP_TIMEOUT_S: Final = 30.0  # clients give up long before: this one says that a client hangs
OpenClient = Callable[[int], AbstractAsyncContextManager[WorkloadClient]]


@dataclass(slots=True)
class _Worker:
    """One worker: the process that it stands for, and the channel on which it gets its work."""

    process: int
    inbox: trio.MemorySendChannel[Invocation]
    is_busy: bool = False
    free_since: int = 0  # counts how often anybody became free; the work goes round


class Interpreter:
    """Runs generators one after the other with the same workers.

    Args:
        log: the history.
        open_client: opens the client of a process.
        workers: how many operations may be in flight.
        op_timeout_s: how long one may take before it is given up as `info`.

    Attributes:
        crashes: what clients raised, for the report.
    """

    def __init__(
        self,
        log: OpLog,
        open_client: OpenClient,
        *,
        workers: int,
        op_timeout_s: float = OP_TIMEOUT_S,
    ) -> None:
        self.crashes: list[str] = []
        self._log = log
        self._open_client = open_client
        self._count = workers
        self._op_timeout_s = op_timeout_s
        self._next_process = 0
        self._frees = 0
        self._changed = trio.Event()

    async def run(self, generator: Generator) -> None:
        """Run a generator to its end, with processes that nobody has seen before."""
        async with trio.open_nursery() as nursery:
            workers = [self._worker(nursery, slot) for slot in range(self._count)]
            while True:
                context = self._context(workers)
                step, generator = generator.next(context)
                if isinstance(step, Invocation):
                    self._hand_out(step, workers)
                    # Others must get their turn: an eager generator would keep the loop for itself.
                    await trio.lowlevel.checkpoint()
                elif isinstance(step, Pending):
                    await self._wait(step)
                elif context.busy:
                    await self._wait(Pending())
                else:
                    break
            for worker in workers:
                worker.inbox.close()
        last = max(worker.process for worker in workers)
        self._next_process = self._count * (1 + last // self._count)
        assert self._next_process > last, f"process {last} would be there a second time"

    def _worker(self, nursery: trio.Nursery, slot: int) -> _Worker:
        inbox, work = trio.open_memory_channel[Invocation](1)
        worker = _Worker(self._next_process + slot, inbox)
        nursery.start_soon(self._work, worker, work, name=f"worker {slot}")
        return worker

    def _context(self, workers: list[_Worker]) -> Context:
        free = sorted(
            (each for each in workers if not each.is_busy), key=lambda each: each.free_since
        )
        names = [worker.process for worker in free]
        assert len(set(names)) == len(names), f"two workers are one process: {names}"
        return Context(self._log.now_ns(), names, len(workers) - len(names))

    def _hand_out(self, step: Invocation, workers: list[_Worker]) -> None:
        free = [worker for worker in workers if not worker.is_busy]
        able = [each for each in free if step.process in (None, each.process)]
        # A generator that gives work to nobody would end the run early, with what was left out unseen.
        assert able, (
            f"{step.f} is for process {step.process}, free are {[each.process for each in free]}"
        )
        worker = min(able, key=lambda each: each.free_since)
        worker.is_busy = True
        worker.inbox.send_nowait(step)

    async def _wait(self, step: Pending) -> None:
        timeout_s = (
            float("inf") if step.until_ns is None else (step.until_ns - self._log.now_ns()) / 1e9
        )
        with trio.move_on_after(max(timeout_s, 0.0005)):
            await self._changed.wait()

    def _note_free(self, worker: _Worker) -> None:
        worker.is_busy = False
        self._frees += 1
        worker.free_since = self._frees
        self._changed.set()
        self._changed = trio.Event()

    async def _work(self, worker: _Worker, work: trio.MemoryReceiveChannel[Invocation]) -> None:
        is_over = False
        while not is_over:
            async with self._open_client(worker.process) as client:
                is_over = await self._serve(worker, work, client)
            if not is_over:
                worker.process += self._count
                assert worker.process >= self._next_process, (
                    f"process {worker.process} was there before"
                )
            self._note_free(worker)

    async def _serve(
        self, worker: _Worker, work: trio.MemoryReceiveChannel[Invocation], client: WorkloadClient
    ) -> bool:
        """Work as one process, and return whether there is no more to do, ever."""
        async for step in work:
            assert worker.is_busy, f"process {worker.process} is free, and at {step.f}"
            assert step.process in (None, worker.process), (
                f"{step.f} of process {step.process} went to process {worker.process}"
            )
            self._log.add(worker.process, "invoke", step.f, step.value)
            outcome = await self._invoke(client, step)
            self._log.add(
                worker.process,
                outcome.type,
                step.f,
                outcome.value,
                error=outcome.error,
                node=outcome.node,
            )
            if outcome.type == "info":
                return False
            self._note_free(worker)
        return True

    async def _invoke(self, client: WorkloadClient, step: Invocation) -> Completion:
        try:
            with trio.move_on_after(self._op_timeout_s):
                return await client.invoke(step.f, step.value)
        except Exception as error:  # noqa: BLE001 - the root of a client: what it raises is a finding
            self.crashes.append(f"{step.f}: {type(error).__name__}: {error}")
            return Outcome("info", None, f"the client crashed: {type(error).__name__}: {error}")
        return Outcome("info", None, f"no end after {self._op_timeout_s} s")
