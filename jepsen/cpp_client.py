"""The C++ client as two child processes whose lines become events of the history."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import msgspec
import trio

from jepsen.history import Recorder

ROOT: Final = Path(__file__).resolve().parent.parent
ENVIRONMENT: Final = ROOT / ".interop" / "cpp"
REQUIREMENT: Final = "rocketmq==0.4.4"
INSTALL_TIMEOUT_S: Final = 120
STOP_TIMEOUT_S: Final = 15.0
PRODUCER: Final = "cpp"
GROUP: Final = "demo-cpp"


def installed_python(say: Callable[[str], None]) -> Path | None:
    """Return the interpreter of the C++ client's environment; make it when it is missing.

    None when this machine cannot have it (it is a binary wheel for x86_64 with glibc); the reason is
    said.
    """
    python = ENVIRONMENT / "bin" / "python"
    ready = ENVIRONMENT / ".ready"
    if ready.exists() and python.exists():
        return python
    say(f"installing the C++ client (PyPI {REQUIREMENT}) into {ENVIRONMENT.relative_to(ROOT)}")
    steps = (
        [sys.executable, "-m", "venv", str(ENVIRONMENT)],
        [
            *(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--only-binary", ":all:", REQUIREMENT),
        ],
        [str(python), "-c", "import rocketmq"],
    )
    for step in steps:
        try:
            subprocess.run(step, check=True, capture_output=True, timeout=INSTALL_TIMEOUT_S)
        except (subprocess.SubprocessError, OSError) as error:
            output = getattr(error, "stderr", None) or b""
            last = output.decode(errors="replace").strip().splitlines()[-1:] or [str(error)]
            say(f"the C++ client cannot be installed here, going on without it: {last[0]}")
            return None
    ready.touch()
    return python


class Line(msgspec.Struct):
    """One line of a worker."""

    event: Literal["started", "send", "ack", "unknown", "receive"]
    queue: int = -1
    number: int = -1
    offset: int = -1
    body: str = ""
    text: str = ""


class CppWorker:
    """One worker process. `run` is its task; `stop` ends it in order."""

    def __init__(
        self,
        python: Path,
        what: Literal["produce", "consume"],
        namesrv: str,
        topic: str,
        *,
        queues: int,
        broker_name: str,
        history: Recorder,
    ) -> None:
        self.command = [
            *(str(python), str(Path(__file__).with_name("cpp_worker.py")), what),
            *("--namesrv", namesrv, "--topic", topic, "--group", GROUP, "--queues", str(queues)),
        ]
        self.what = what
        self.has_started = trio.Event()
        self.has_ended = trio.Event()
        self._broker_name = broker_name
        self._history = history
        self._process: trio.Process | None = None

    async def run(self, log: Path) -> None:
        """Start the process and take its lines until it ends."""
        with log.open("wb") as errors:
            self._process = process = await trio.lowlevel.open_process(
                self.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        try:
            assert process.stdout is not None
            rest = b""
            async for chunk in process.stdout:
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self._take(line)
        finally:
            self.has_ended.set()
            self.has_started.set()  # nobody shall wait for one that failed
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()

    async def stop(self) -> None:
        """Close its input, and give it time to finish its last send."""
        if self._process is not None and self._process.stdin is not None:
            await self._process.stdin.aclose()
        with trio.move_on_after(STOP_TIMEOUT_S):
            await self.has_ended.wait()

    def _take(self, text: bytes) -> None:
        try:
            line = msgspec.json.decode(text, type=Line)
        except msgspec.MsgspecError:
            return  # the library itself writes to stdout now and then
        queue = f"{self._broker_name}/{line.queue}"
        match line.event:
            case "started":
                self.has_started.set()
            case "send" | "unknown" | "ack":
                self._history.add(
                    line.event,
                    queue=queue,
                    producer=PRODUCER,
                    number=line.number,
                    offset=line.offset,
                    text=line.text,
                )
            case "receive":
                producer, number = read_body(line.body.encode())
                self._history.add(
                    "receive",
                    queue=queue,
                    producer=producer,
                    number=number,
                    offset=line.offset,
                    consumer=GROUP,
                )


def make_body(producer: str, queue_id: int, number: int) -> bytes:
    """Return the body of a numbered message."""
    return f"{producer}|{queue_id}|{number}".encode()


def read_body(body: bytes) -> tuple[str, int]:
    """Return producer and number of a body; what is none of ours becomes unexpected."""
    producer, _, rest = body.decode(errors="replace").partition("|")
    _, _, number = rest.partition("|")
    return producer, int(number) if number.isdigit() else -1
