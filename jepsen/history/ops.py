"""The history of a run: operations, in the order in which they were seen, as Jepsen writes them.

An operation is invoked by a process (a worker with a client of its own) and completes as

    ok    it happened, and `value` says what came of it;
    fail  it surely did not happen;
    info  nobody knows: it may have happened, may happen later, or never.

A process whose operation ended as `info` does not work on under its name: its next operation stands under
a new number, since the old one may still be in flight. Faults are operations of the process "nemesis" and
always `info`; what an onlooker sees (who leads which term) are those of the process "observer".

The history file has one JSON object per line and is only ever appended to; a last line that a crash cut
off is left out on reading. `edn.py` writes the same for other checkers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, Protocol, TextIO

import msgspec

OpType = Literal["invoke", "ok", "fail", "info"]
NEMESIS: Final = "nemesis"
OBSERVER: Final = "observer"
FIRST_LISTENER: Final = 1_000_000
"""Listeners of push consumers stand in the history as processes, far above the workers' numbers."""

RECEIVE: Final = "receive"
"""The messages that a push consumer was handed: a completion that stands alone, without an invocation."""


class Op(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a history.

    Attributes:
        index: place in the history, from 0.
        t_ns: nanoseconds since the start of the run, monotonic.
        process: number of the worker, or NEMESIS, or OBSERVER.
        type: invoke, or how it ended.
        f: what is done, in the words of the workload: "send", "poll", "read", "kill", ...
        value: arguments on `invoke`, result on `ok`; anything that JSON can hold; see `values.py`.
        error: why it failed, or why nobody knows.
        node: which node answered, or is broken, where that is known.
    """

    index: int
    t_ns: int
    process: int | str
    type: OpType
    f: str
    value: object = None
    error: str = ""
    node: str = ""

    @property
    def is_client(self) -> bool:
        """True when a worker did it, not the nemesis or the observer."""
        return isinstance(self.process, int)


class Pair(msgspec.Struct, frozen=True):
    """An invocation with its completion; None when the run ended before it did."""

    invoke: Op
    completion: Op | None

    @property
    def type(self) -> OpType:
        """The type of its completion; an operation without an end is `info`."""
        return "info" if self.completion is None else self.completion.type


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Op)


class Notes(Protocol):
    """The writing side of a history; an `OpLog`, or a part of one."""

    def now_ns(self) -> int:
        """Return nanoseconds since the start of the run."""

    def add(
        self,
        process: int | str,
        type_: OpType,
        f: str,
        value: object = None,
        *,
        error: str = "",
        node: str = "",
    ) -> Op:
        """Append an operation that is seen now."""


class OpLog:
    """Gathers the operations of a run, and writes each to a file at once when there is one.

    A worker does one thing at a time: whoever notes otherwise breaks an invariant of the harness, and the run stops.
    A listener does what the consumer makes it do, which is for the checkers to judge.

    Invariants: `ops[i].index == i`; times never fall; each completion of a worker follows its own invocation.
    """

    def __init__(
        self, path: Path | None = None, clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self.ops: list[Op] = []
        self._clock_ns = clock_ns
        self._start_ns = clock_ns()
        self._running: dict[int, str] = {}  # by process: `f` of the operation that it is at
        self._file: TextIO | None = path.open("w") if path else None

    def now_ns(self) -> int:
        """Return nanoseconds since the log was made."""
        return self._clock_ns() - self._start_ns

    def add(
        self,
        process: int | str,
        type_: OpType,
        f: str,
        value: object = None,
        *,
        error: str = "",
        node: str = "",
    ) -> Op:
        """Append an operation that is seen now."""
        op = Op(len(self.ops), self.now_ns(), process, type_, f, value, error, node)
        last_ns = self.ops[-1].t_ns if self.ops else 0
        assert op.t_ns >= last_ns, f"op {op.index} is seen at {op.t_ns} ns, after {last_ns} ns"
        if isinstance(process, int) and process < FIRST_LISTENER:
            self._follow(process, op)
        self.ops.append(op)
        if self._file is not None:
            self._file.write(_encoder.encode(op).decode() + "\n")
        return op

    def _follow(self, process: int, op: Op) -> None:
        """Check that each process does one operation at a time, as a history requires."""
        if op.type == "invoke":
            running = self._running.get(process, "")
            assert not running, f"op {op.index}: process {process} is still at {running}"
            self._running[process] = op.f
            return
        running = self._running.pop(process, "")
        assert running == op.f, (
            f"op {op.index}: process {process} ends {op.f}, it was at {running or 'nothing'}"
        )

    def close(self) -> None:
        """Write out and close the file; the operations stay readable."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> OpLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_ops(lines: Iterable[str]) -> Iterator[Op]:
    """Yield the operations of a history file; a last line without its end is left out.

    Raises:
        msgspec.ValidationError: a whole line is not an operation.
    """
    for line in lines:
        if line.endswith("\n"):
            yield _decoder.decode(line)


def pairs(ops: Sequence[Op]) -> list[Pair]:
    """Join the invocations of workers with their completions, in order of invocation.

    Raises:
        ValueError: a process invokes while its operation runs, or completes what it never invoked, or another thing.
    """
    open_at: dict[int | str, int] = {}
    found: list[Pair] = []
    for op in ops:
        if not op.is_client:
            continue
        if op.type == "invoke":
            if op.process in open_at:
                raise ValueError(f"op {op.index}: process {op.process} is still at work")
            open_at[op.process] = len(found)
            found.append(Pair(op, None))
        else:
            at = open_at.pop(op.process, None)
            if at is None:
                raise ValueError(f"op {op.index}: process {op.process} completes without a start")
            invoke = found[at].invoke
            if invoke.f != op.f:
                raise ValueError(f"op {op.index}: process {op.process} ends {op.f}, not {invoke.f}")
            found[at] = Pair(invoke, op)
    return found
