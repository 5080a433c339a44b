"""RocketMQ's own integration tests, as Maven Central has them compiled, against brokers that run here.

Of their own base, which starts RocketMQ's brokers in the virtual machine of the tests, `clients/rocketmq_test` has
another one with the same names. What reaches further into such a broker does not link here: it is not applicable, and
the error says what it needed.
"""

from __future__ import annotations

import json
import queue
import re
import shutil
import subprocess
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from jepsen.processes import SMALL_SEGMENTS, Group
from tests.certificates import write_files
from tests.interop.conftest import ROOT

FOLDER = ROOT / ".interop" / "rocketmq-test-5.5.0"
PACKAGE = "org.apache.rocketmq.test."
OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+DisplayVMOutputToStderr",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",  # a class that is missing is found missing by the tests that use it, not by all
    "-Xmx512m",
)
METHOD_LIMIT_S = 420.0
"""Theirs wait for up to 180 s, some twice."""
START_LIMIT_S = 240.0

AREAS = (
    ("filter", ("client.consumer.filter.", "client.consumer.tag.")),
    ("pop", ("client.consumer.pop.", "retry.")),
    ("order", ("client.producer.order.", "client.consumer.broadcast.order.")),
    ("delay", ("delay.", "recall.")),
    ("transaction", ("client.producer.transaction.",)),
    ("offset", ("offset.",)),
    ("smoke", ("smoke.",)),
    ("producer", ("client.producer.",)),
    ("consumer", ("client.consumer.",)),
    ("other", ("",)),
)
"""Each with the packages that belong to it; the first one that fits counts."""

_SERVER_SIDE = (
    *(f"org.apache.rocketmq.{each}." for each in ("broker", "store", "namesrv", "container")),
    *(f"org.apache.rocketmq.{each}." for each in ("controller", "proxy", "test.base")),
    *("io.grpc.", "apache.rocketmq.v2.", "io.openmessaging."),
)
_METHOD = re.compile(r"([\w.$]+)\.([\w$<>]+)\(")
_AGAIN = "Could not initialize class"


class Verdict(Enum):
    """What came of a test."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one test.

    Attributes:
        test: class and method, without the package that all have.
        sentence: why it did not pass.
        changed: settings of RocketMQ's brokers that it changed, which changes nothing here.
    """

    test: str
    verdict: Verdict
    sentence: str = ""
    changed: tuple[str, ...] = ()


def lacking() -> str | None:
    """Return what keeps this machine from running them; None when nothing does."""
    if shutil.which("java") is None:
        return "no Java on this machine"
    if not (FOLDER / ".ready").exists():
        return "RocketMQ's integration tests are not installed (make interop)"
    return None


def area(test: str) -> str:
    """Return the area that a test belongs to."""
    return next(name for name, packages in AREAS if test.startswith(packages))


def classes(folder: Path = FOLDER) -> list[str]:
    """Return the names of the classes with tests, without the package that all have."""
    (jar,) = (folder / "jars").glob("rocketmq-test-*-tests.jar")
    names = [name[: -len(".class")].replace("/", ".") for name in zipfile.ZipFile(jar).namelist()]
    return sorted(
        name[len(PACKAGE) :]
        for name in names
        if name.startswith(PACKAGE) and re.search(r"(IT|Test)$", name)
    )


@contextmanager
def three_groups(folder: Path, members: int = 3) -> Iterator[list[Group]]:
    """Run a cluster of three broker names, as the tests want it; the first one, which most use, has several members.

    Name server and brokers take TLS as well, as RocketMQ's do.
    """
    files = write_files(folder / "tls")
    tls = f"tls.server.certPath={files.certificate}\ntls.server.keyPath={files.key}\n"
    (folder / "namesrv.conf").write_text(tls)
    settings = SMALL_SEGMENTS + tls
    with ExitStack() as running:
        groups = [Group(folder / "broker-a", nodes=members, settings=settings)]
        running.enter_context(groups[0])
        groups[0].name_servers[0].command += ["-c", str(folder / "namesrv.conf")]
        for name in ("broker-b", "broker-c"):
            further = Group(
                folder / name,
                nodes=1,
                group=name,
                namesrv=groups[0].namesrv,
                settings=settings,
            )
            groups.append(running.enter_context(further))
        for each in groups:
            each.start()
        for each in groups:
            each.wait_listening()
        yield groups


def judge(line: dict[str, Any], before: Iterable[Outcome] = ()) -> Outcome:
    """Judge what the driver says of a test that has ended; `before` are the outcomes of the same class."""
    test = f"{line['class']}.{line['method']}".removeprefix(PACKAGE).rstrip(".")
    changed = tuple(line["changed"])
    if line["outcome"] == "passed":
        return Outcome(test, Verdict.PASSED, changed=changed)
    if line["outcome"] == "ignored":
        return Outcome(test, Verdict.NOT_APPLICABLE, "left out by RocketMQ itself (`@Ignore`)")
    if needed := _needed(line["errors"], before):
        return Outcome(test, Verdict.NOT_APPLICABLE, needed)
    name, message = line["errors"][-1]
    first = next(iter(message.strip().splitlines()), "")
    where = f" ({line['where']})" if line["where"] else ""
    said = f"{name.rpartition('.')[2]}: {first}{where}"
    return Outcome(test, Verdict.FAILED, said, changed=changed)


def _needed(errors: list[list[str]], before: Iterable[Outcome]) -> str:
    """Return what a test needed of a broker in its own virtual machine; empty where that is not why it failed."""
    for name, message in errors:
        if message.startswith(_AGAIN):
            return next((one.sentence for one in before if one.sentence.startswith("needs ")), "")
        if missing := _missing(name.rpartition(".")[2], message):
            return f"needs {missing} in its own virtual machine"
    return ""


def _missing(name: str, message: str) -> str:
    """Return what of a broker's or name server's code an error of linking misses; empty where it is none of that."""
    if name == "NoSuchFieldError" and re.match(r"(namesrv|broker)Controller", message):
        return f"the field {message}"
    if name == "NoClassDefFoundError" and message.replace("/", ".").startswith(_SERVER_SIDE):
        return f"the class {message.rpartition('/')[2]}"
    method = (
        _METHOD.search(message) if name in ("NoSuchMethodError", "AbstractMethodError") else None
    )
    if method and f"{method[1]}.".startswith(_SERVER_SIDE):
        return f"`{method[1].rpartition('.')[2]}.{method[2]}()`"
    return ""


class Runner:
    """Runs classes of tests, each in a virtual machine of its own, which is ended when one of its tests does not end.

    Args:
        namesrv: where the brokers are registered.
        brokers: their names; the first one is what most tests use.
        home: for what the clients write.
        notify: is called with each outcome as it is there.
    """

    def __init__(
        self,
        namesrv: str,
        brokers: Iterable[str],
        home: Path,
        notify: Callable[[Outcome], None] = lambda _: None,
    ) -> None:
        properties = (
            f"-Dit.namesrv={namesrv}",
            f"-Dit.brokers={','.join(brokers)}",
            "-Dit.cluster=DefaultCluster",
            f"-Duser.home={home}",
            f"-Drocketmq.client.logRoot={home}",
        )
        path = f"{FOLDER}/classes:{FOLDER}/jars/*"
        self._command = ["java", *OPTIONS, *properties, "-cp", path, "RunTests"]
        self._home = home
        self._notify = notify

    def run(self, name: str, methods: Iterable[str] = ()) -> list[Outcome]:
        """Run the tests of a class, or some of them; one that does not end is a failure, and the others go on."""
        found: list[Outcome] = []
        chosen, left_out = list(methods), set[str]()
        while True:
            choice = [*chosen, *(f"-{each}" for each in sorted(left_out))]
            hanging = self._run(name, [_word(name, choice)], found)
            if hanging is None:
                return found
            if not hanging:
                self._note(found, Outcome(name, Verdict.FAILED, "its virtual machine has ended"))
                return found
            said = f"no end within {METHOD_LIMIT_S:.0f} s"
            self._note(found, Outcome(f"{name}.{hanging}", Verdict.FAILED, said))
            done = {each.test.removeprefix(f"{name}.") for each in found}
            if chosen:
                chosen = [each for each in chosen if each not in done]
                if not chosen:
                    return found
            else:
                left_out = done

    def run_together(self, some: Iterable[tuple[str, str]]) -> list[Outcome]:
        """Run a few tests, class and method each, in one virtual machine; one that does not end is the last one."""
        found: list[Outcome] = []
        self._run("some", [_word(name, [method]) for name, method in some], found)
        return found

    def _note(self, found: list[Outcome], one: Outcome) -> None:
        found.append(one)
        self._notify(one)

    def _run(self, name: str, words: list[str], found: list[Outcome]) -> str | None:
        """Run once; returns None at the end of all tests, else the test that hung, or "" where there was none."""
        errors = self._home / f"{name}.stderr"
        with (
            errors.open("a") as stderr,
            subprocess.Popen(
                [*self._command, *words],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                cwd=self._home,
            ) as process,
        ):
            try:
                return self._listen(process, found)
            finally:
                process.kill()

    def _listen(self, process: subprocess.Popen[str], found: list[Outcome]) -> str | None:
        lines: queue.Queue[str | None] = queue.Queue()
        thread = threading.Thread(target=_read, args=(process, lines), daemon=True)
        thread.start()
        running, deadline = "", time.monotonic() + START_LIMIT_S
        while True:
            try:
                text = lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return running
            if text is None:
                return None if process.wait(START_LIMIT_S) == 0 else running
            if not text.startswith("{"):
                continue
            line = json.loads(text)
            deadline = time.monotonic() + METHOD_LIMIT_S
            running = line["method"] if line["event"] == "started" else ""
            if line["event"] == "finished" and not _says_nothing(line):
                self._note(found, judge(line, found))


def _word(name: str, choice: list[str]) -> str:
    """Return what the driver is to run of a class."""
    return f"{PACKAGE}{name}" + (f"#{','.join(choice)}" if choice else "")


def _read(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


def _says_nothing(line: dict[str, Any]) -> bool:
    """Return whether a line is about a class in which there is nothing to be run."""
    return any(
        message.startswith(("No tests found matching", "No runnable methods"))
        or "should have a public" in message
        for _, message in line["errors"]
    )
