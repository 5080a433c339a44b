"""RocketMQ's own clients as child processes that talk in lines: one sends, one reports what it is handed.

It knows nothing of workloads and histories (`workloads/queue_foreign.py` does). Whose client it is, `cpp.py`, `java.py`
and `node.py` say; what runs in the children are `cpp_worker.py`, `JavaWorker.java` and `node_worker.mjs`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec
import trio

from jepsen.keeper import marked

LOG_CHARS: Final = 400


@dataclass(frozen=True, slots=True)
class ForeignClient:
    """A foreign client: its name, its language and its command.

    Attributes:
        name: short, as in histories and names of workloads.
        title: as in sentences.
        worker: the command that runs its worker, but for what that shall do.
    """

    name: str
    title: str
    worker: Callable[[], list[str]]


class OutputLine(msgspec.Struct):
    """One line of a child. Which fields are set depends on `event`."""

    event: Literal["started", "ack", "unknown", "receive"]
    key: str = ""
    topic: str = ""
    queue: int = -1
    offset: int = -1
    body: str = ""
    uniq: str = ""
    text: str = ""


class ForeignProcess:
    """One child. `run` is its task.

    Attributes:
        command: what is run.
        has_started: set when the library is ready, or the child has ended.
        has_ended: set when the child is gone.
    """

    def __init__(
        self,
        client: ForeignClient,
        what: Literal["produce", "consume"],
        *,
        namesrv: str,
        folder: Path,
        take: Callable[[OutputLine], None],
        more: tuple[str, ...] = (),
    ) -> None:
        """Describe a child; `run` starts it.

        Args:
            client: whose library it runs.
            what: what it does.
            namesrv: addresses of the name servers.
            folder: for its log, and for what the library writes.
            take: called with every line but the first.
            more: more of its command line.
        """
        home = folder / f"{client.name}-{what}"
        self.command = [
            *(*client.worker(), what),
            *("--namesrv", namesrv, "--home", str(home), *more),
        ]
        self.has_started = trio.Event()
        self.has_ended = trio.Event()
        self._home = home
        self._log = folder / f"{client.name}-{what}.log"
        self._take = take
        self._process: trio.Process | None = None

    async def run(self) -> None:
        """Start it and take its lines until it ends, or this is cancelled."""
        self._home.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as errors:
            self._process = process = await trio.lowlevel.open_process(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **marked()},
                start_new_session=True,
            )
        try:
            assert process.stdout is not None, f"{self.command[0]} was started without a pipe"
            rest = b""
            async for chunk in process.stdout:
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._note(line)
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
            self.has_ended.set()
            self.has_started.set()  # nobody shall wait for one that failed

    async def ask(self, asked: dict[str, object]) -> bool:
        """Write a line to the child; return False when it has ended."""
        if self._process is None or self._process.stdin is None or self.has_ended.is_set():
            return False
        try:
            await self._process.stdin.send_all(msgspec.json.encode(asked) + b"\n")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        return True

    def last_words(self) -> str:
        """Return the end of what it wrote to stderr."""
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        return text.strip()[-LOG_CHARS:]

    def _note(self, text: bytes) -> None:
        try:
            line = msgspec.json.decode(text, type=OutputLine)
        except msgspec.MsgspecError:
            return  # the library itself writes to stdout now and then
        if line.event == "started":
            self.has_started.set()
        else:
            self._take(line)


class ForeignProducer:
    """Sends one message after the other through a child."""

    def __init__(self, client: ForeignClient, namesrv: str, folder: Path) -> None:
        self.process = ForeignProcess(
            client, "produce", namesrv=namesrv, folder=folder, take=self._take
        )
        self._title = client.title
        self._waiting: dict[str, tuple[trio.Event, list[OutputLine]]] = {}

    async def send(
        self, key: str, topic: str, queue_id: int | None, body: bytes
    ) -> OutputLine | None:
        """Send to a queue, or to one of the client's choice; return its answer, None when it surely got no message.

        A client that dies meanwhile is an "unknown", too.
        """
        answered, answer = self._waiting[key] = (trio.Event(), [])
        asked: dict[str, object] = {
            "key": key,
            "topic": topic,
            "queue": queue_id,
            "body": body.decode(),
        }
        try:
            if not await self.process.ask(asked):
                return None
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._wake_at_end, answered)
                await answered.wait()
                nursery.cancel_scope.cancel()
        finally:
            del self._waiting[key]
        return answer[0] if answer else OutputLine("unknown", key, text=f"{self._title} ended")

    async def _wake_at_end(self, answered: trio.Event) -> None:
        await self.process.has_ended.wait()
        answered.set()

    def _take(self, line: OutputLine) -> None:
        # What was given up is not waited for any more.
        if line.key in self._waiting:
            answered, answer = self._waiting[line.key]
            answer.append(line)
            answered.set()
