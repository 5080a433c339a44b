"""A real group, and the foreign clients as processes. What the machine lacks is skipped, by name."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import pytest

from dledger_mq.blocking import PullConsumer
from dledger_mq.client.messages import ReceivedMessage
from jepsen.processes import Group, Process, poll
from tests.conftest import TOLD

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = Path(__file__).parent / "clients"
CPP_PYTHON = ROOT / ".interop/cpp/bin/python"
GRPC_PYTHON = ROOT / ".interop/grpc/bin/python"
NODE_MODULES = ROOT / ".interop/node/node_modules"
GRPC_NODE_MODULES = ROOT / ".interop/grpc-node/node_modules"
TOOLS_4 = ROOT / ".interop/tools-4.9.8/jars"
SIGNING_JARS = ("rocketmq-acl", "commons-codec", "snakeyaml")
"""Among mqadmin's: those that a client needs beside its own to sign."""

GO_CLIENTS = {
    "go": ROOT / ".interop/go/go_client",
    "grpc-go": ROOT / ".interop/grpc-go/grpc_go_client",
}
JAVAS = ("java-4.9.8", "java-5.3.3")
GRPC_JAVA = "grpc-java-5.0.8"
JAVA_TIMEOUTS = ("--api-timeout-ms", "30000", "--send-timeout-ms", "30000")
"""On a busy machine the library's own 3 s can be over before its virtual machine is warm. What a test says counts."""
JAVA_CONNECT_TIMEOUT = "-Dcom.rocketmq.remoting.client.connect.timeout=30000"
"""For its first connection, to the name server: 3 s else, after which it knows no route and ends."""
SEND_TIMEOUTS = ("--send-timeout-ms", "30000")
"""The same for those who give up a send after 3 s, and may store it twice as they make it again."""
PRODUCE_TIMEOUT = ("--timeout", "200")
"""When a producer that hangs ends itself: there it is 120 s else, and dozens of syncs of a busy disk may take those."""
WAIT_S = 240.0
"""Nothing takes that long, on whatever machine; a test that waits for more has failed."""

T = TypeVar("T")

JAVA_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xmx192m",
)  # short runs beside a group


def request(
    address: str, code: int, ext: dict[str, str], body: bytes = b""
) -> tuple[dict[str, Any], bytes]:
    """One remoting request over a connection of its own, written by hand: no code of ours."""
    host, port = address.rsplit(":", 1)
    header = json.dumps(
        {"code": code, "extFields": ext, "flag": 0, "language": "JAVA", "opaque": 1, "version": 409}
    ).encode()
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as sock:
        sock.sendall(struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body)
        with sock.makefile("rb") as stream:
            head = stream.read(8)
            if len(head) < 8:
                raise ConnectionResetError(f"{address} has closed the connection")
            size, header_size = struct.unpack(">ii", head)
            return json.loads(stream.read(header_size)), stream.read(size - 4 - header_size)


class RunningGroup:
    """A group that serves, with the few questions that tests ask."""

    def __init__(self, processes: Group) -> None:
        self.processes = processes
        self.namesrv = processes.namesrv

    def leader(self, topic: str = "TBW102") -> Process:
        """The node that the route names as brokerId 0; LookupError while it does not lead.

        Between two leaders a follower has that id.
        """
        with contextlib.suppress(OSError, KeyError):
            header, body = request(
                self.namesrv, 105, {"topic": topic, "acceptStandardJsonOnly": "true"}
            )
            if header["code"] == 0:
                address = json.loads(body)["brokerDatas"][0]["brokerAddrs"]["0"]
                _, body = request(address, 28, {})
                if json.loads(body)["table"]["raftRole"] == "leader":
                    return self.processes.by_address[address]
        raise LookupError(f"no leader in the route of {topic}")

    def wait_leader(self, *, other_than: Process | None = None, topic: str = "TBW102") -> Process:
        """Wait until the route names a leader, another one if asked."""
        found: list[Process] = []

        def has_leader() -> bool:
            with contextlib.suppress(LookupError):
                found[:] = [self.leader(topic)]
            return bool(found) and found[0] is not other_than

        assert poll(has_leader, WAIT_S), f"no leader in the route after {WAIT_S} s"
        return found[0]

    def create_topic(self, name: str, queues: int = 4) -> str:
        """Create a topic and wait until the name server knows it."""
        ext = {
            "topic": name,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        }
        said: list[dict[str, Any]] = []

        def is_created() -> bool:
            """Ordered again where another one began to lead meanwhile."""
            said[:] = [request(self.wait_leader().address, 17, ext)[0]]
            return bool(said[0]["code"] == 0)

        assert poll(is_created, WAIT_S), said
        self.wait_leader(topic=name)
        return name

    def ask(
        self, code: int, ext: dict[str, str], body: bytes = b"", *, topic: str = "TBW102"
    ) -> tuple[dict[str, Any], bytes]:
        """What the leader answers to a request that may be made again: another one may begin to lead meanwhile."""
        said: list[tuple[dict[str, Any], bytes]] = []

        def is_answered() -> bool:
            said[:] = [request(self.wait_leader(topic=topic).address, code, ext, body)]
            return bool(said[0][0]["code"] == 0)

        assert poll(is_answered, WAIT_S), said
        return said[0]


_SHARED: Final = pytest.StashKey[tuple[RunningGroup, ExitStack]]()
"""The group of the files that are run one after the other and have none of their own, and what ends it."""


@pytest.fixture(scope="module")
def group(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunningGroup:
    """A group that is whole, whatever an earlier file has left; each test has topics of its own."""
    stash = request.config.stash
    if _SHARED not in stash:
        made, ending = Group(tmp_path_factory.mktemp("group")), ExitStack()
        stash[_SHARED] = (RunningGroup(ending.enter_context(made)), ending)
    running, _ = stash[_SHARED]
    for process in running.processes.processes():
        process.resume()
        if process.pid is None:
            process.start()
    running.processes.wait_listening()
    running.wait_leader()
    return running


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the group with the last of its files: one that is idle takes a twentieth of a core."""
    if nextitem is not None and (nextitem.path == item.path or _is_of_the_group(nextitem)):
        return
    if _SHARED in item.config.stash:
        item.config.stash[_SHARED][1].close()
        del item.config.stash[_SHARED]


def _is_of_the_group(item: pytest.Item) -> bool:
    """Whether a test is one of here that takes the group, and not one that its file makes."""
    return (
        item.path.parent == Path(__file__).parent
        and "group" in getattr(item, "fixturenames", ())
        and not hasattr(getattr(item, "module", None), "group")
    )


@pytest.fixture
def name() -> str:
    """A name that no other test uses, for topics and groups."""
    return f"T{uuid.uuid4().hex[:10]}"


def name_of(name: str, kind: str) -> str:
    """A client's own name for its topic or group, in a test of several; names have no dots."""
    return f"{name}-{kind.replace('.', '-')}"


def kill_and_restart(group: RunningGroup, topic: str) -> None:
    """kill -9 the leader, wait for the next, start the dead one again."""
    leader = group.wait_leader(topic=topic)
    leader.kill()
    group.wait_leader(other_than=leader, topic=topic)
    leader.start()
    assert poll(leader.is_listening, WAIT_S)


class ForeignClient:
    """Starts one of the foreign clients, or ours; its output is JSON lines.

    Args:
        has_patience: with timeouts for a busy machine, where a library's own are short.
        more: options of each of its runs.
    """

    def __init__(
        self, kind: str, namesrv: str, *, has_patience: bool = True, more: Sequence[str] = ()
    ) -> None:
        self.kind = kind
        self._namesrv = namesrv
        self._more = tuple(more)
        self._has_patience = has_patience

    def start(self, operation: str, *options: str) -> subprocess.Popen[str]:
        """Start it in the background."""
        environment = dict(os.environ)
        environment["NODE_PATH"] = f"{NODE_MODULES}{os.pathsep}{GRPC_NODE_MODULES}"
        return subprocess.Popen(
            [
                *self._command(),
                *(operation, "--namesrv", self._namesrv),
                *self._patience(operation),
                *self._more,
                *options,
            ],
            stdin=subprocess.PIPE if "--steered" in options else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def _command(self) -> list[str]:
        program, *rest = command(self.kind)
        if self._has_patience and self.kind in JAVAS:
            rest.insert(0, JAVA_CONNECT_TIMEOUT)
        return [program, *rest]

    def _patience(self, operation: str) -> tuple[str, ...]:
        """Timeouts for a busy machine; those of a test stand behind them, and count."""
        if not self._has_patience:
            return ()
        found: tuple[str, ...] = JAVA_TIMEOUTS if self.kind in JAVAS else ()
        if operation == "produce" and self.kind in ("cpp", "node"):
            found = SEND_TIMEOUTS
        if self.kind == "ours":
            found = SEND_TIMEOUTS
        if operation == "produce" and self.kind in (*JAVAS, "cpp", "go", "node", "ours"):
            found += PRODUCE_TIMEOUT
        return found

    def finish(
        self, child: subprocess.Popen[str], timeout_s: float = WAIT_S
    ) -> list[dict[str, Any]]:
        """Wait for its end; its lines. A failure shows what it said."""
        try:
            out, err = child.communicate(timeout=timeout_s)
        finally:
            child.kill()
        assert child.returncode == 0, (
            f"{child.args!r} ended with {child.returncode}\n{out[-3000:]}\n{err[-3000:]}"
        )
        return [json.loads(line) for line in out.splitlines()]

    def run(self, operation: str, *options: str) -> list[dict[str, Any]]:
        """Start it and wait for its end."""
        return self.finish(self.start(operation, *options))


class Listener:
    """What a client says, read as it comes: a full pipe would hold it up."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self.lines: list[dict[str, Any]] = []
        self._child = child
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End the client, if it still runs."""
        self._child.kill()
        self._thread.join()
        self._child.communicate()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if line.endswith("\n"):
                self.lines.append(json.loads(line))

    def wait_lines(self, count: int) -> None:
        assert poll(lambda: len(self.lines) >= count, WAIT_S), self.lines

    def wait_summary(self) -> list[dict[str, Any]]:
        """Wait until it has said what it did, and may stay for more; all its lines."""
        assert poll(lambda: any(line.get("summary") for line in list(self.lines)), WAIT_S), (
            self.lines
        )
        return list(self.lines)

    def wait_end(self, timeout_s: float = 1.5 * WAIT_S) -> list[dict[str, Any]]:
        """Wait until the client has ended by itself; all its lines."""
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), "it still runs"
        return self.lines


def java_folder(kind: str) -> Path:
    return ROOT / ".interop" / kind


def java_words(kind: str, program: str) -> list[str]:
    """What starts a program of ours around one of Java's clients, with the archive of its classes where there is one.

    A third of a short run's processor time goes into loading them otherwise. What the virtual machine
    tells of an archive that it cannot use would stand among the client's lines.
    """
    folder = java_folder(kind).resolve()
    archive = folder / "classes.jsa"
    if archive.exists():
        shared = [f"-XX:SharedArchiveFile={archive}", "-Xlog:disable"]
        path = [f"{folder}/classes.jar", f"{folder}/jars/*"]
    else:
        shared, path = [], [f"{folder}/classes", f"{folder}/jars/*"]
    if kind == "java-4.9.8":
        path += [str(jar) for name in SIGNING_JARS for jar in TOOLS_4.glob(f"{name}-*.jar")]
    return ["java", *JAVA_OPTIONS, *shared, "-cp", ":".join(path), program]


def command(kind: str) -> list[str]:
    """What starts a client's program."""
    if kind in JAVAS:
        return java_words(kind, "JavaClient")
    if kind == GRPC_JAVA:
        return java_words(kind, "GrpcJavaClient")
    return {
        "cpp": [str(CPP_PYTHON), str(CLIENTS / "cpp_client.py")],
        "grpc": [str(GRPC_PYTHON), str(CLIENTS / "grpc_client.py")],
        "grpc-node": ["node", str(CLIENTS / "grpc_node_client.mjs")],
        **{name: [str(program)] for name, program in GO_CLIENTS.items()},
        "node": ["node", str(CLIENTS / "node_client.mjs")],
        "ours": [sys.executable, "-m", "tests.interop.own_client"],
    }[kind]


def lacking(kind: str) -> str | None:
    """What keeps this machine from running a foreign client; None when nothing does."""
    if kind == "cpp":
        return None if CPP_PYTHON.exists() else "the C++ client is not installed (make interop)"
    if kind in (*JAVAS, GRPC_JAVA):
        ready = java_folder(kind) / ".ready"
        return None if ready.exists() else f"{kind} is not installed (make interop)"
    if kind in GO_CLIENTS:
        return None if GO_CLIENTS[kind].exists() else f"{kind} is not built (make interop)"
    if kind == "grpc":
        return None if GRPC_PYTHON.exists() else "the gRPC client is not installed (make interop)"
    if kind == "ours":
        return None
    if shutil.which("node") is None:
        return "no node on this machine"
    if kind == "grpc-node":
        there = GRPC_NODE_MODULES.exists()
        return None if there else "rocketmq-client-nodejs is not installed (make interop)"
    return None if NODE_MODULES.exists() else "ali-ons is not installed (make interop)"


def client_or_skip(kind: str, group: RunningGroup) -> ForeignClient:
    if reason := lacking(kind):
        pytest.skip(reason)
    return ForeignClient(kind, group.namesrv)


def present(request: pytest.FixtureRequest, kinds: Iterable[str]) -> list[str]:
    """Those of the clients that this machine has, for a test of all at once; what it lacks is told, or skipped for."""
    reasons = {kind: lacking(kind) for kind in kinds}
    told = [reason for reason in reasons.values() if reason is not None]
    if len(told) == len(reasons):
        pytest.skip("; ".join(told))
    request.node.user_properties += [(TOLD, f"{request.node.name}: {reason}") for reason in told]
    return [kind for kind, reason in reasons.items() if reason is None]


def at_once(story: Callable[[T], None], all_of: Sequence[T]) -> None:
    """Run a story for each at the same time, and raise what any of them has raised.

    A group and a proxy that wait for one client after the other take more processor time than the clients themselves.
    """
    with ThreadPoolExecutor(len(all_of)) as pool:
        errors = [pool.submit(story, one).exception for one in all_of]
        found = [(one, error()) for one, error in zip(all_of, errors, strict=True)]
    failed = [error for _, error in found if error is not None]
    for one, error in found:
        if error is not None:
            error.add_note(f"with {getattr(one, 'kind', one)}")
    if failed:
        raise BaseExceptionGroup(f"{len(failed)} of {len(all_of)} failed", failed)


@pytest.fixture
def cpp(group: RunningGroup) -> ForeignClient:
    return client_or_skip("cpp", group)


@pytest.fixture
def node(group: RunningGroup) -> ForeignClient:
    return client_or_skip("node", group)


@pytest.fixture(params=JAVAS)
def java(request: pytest.FixtureRequest, group: RunningGroup) -> ForeignClient:
    return client_or_skip(request.param, group)


@pytest.fixture(params=["cpp", "go", "node"])
def client(request: pytest.FixtureRequest, group: RunningGroup) -> ForeignClient:
    return client_or_skip(request.param, group)


def sent(lines: list[dict[str, Any]]) -> list[str]:
    """Digests of the bodies that a producer saw acknowledged."""
    return [
        line["body_sha1"] for line in lines if "body_sha1" in line and line.get("status") != "ERROR"
    ]


def received(lines: list[dict[str, Any]]) -> list[str]:
    """Digests of the bodies that a consumer accepted."""
    return [line["body_sha1"] for line in lines if line.get("action") == "ok"]


def messages_in(namesrv: str, topic: str) -> list[ReceivedMessage]:
    """All that stands in a topic, queue by queue."""
    found: list[ReceivedMessage] = []
    with PullConsumer(namesrv, "reader-of-all", timeout_s=WAIT_S) as reader:
        for queue in reader.queues(topic):
            offset, end = reader.min_offset(queue), reader.max_offset(queue)
            while offset < end:
                answer = reader.pull(queue, offset)
                found += answer.messages
                offset = answer.next_offset
    return found


def stored(namesrv: str, topic: str) -> dict[tuple[int, int], str]:
    """What stands in a topic: queue id and queue offset -> digest of the body."""
    return {
        (message.queue.queue_id, message.queue_offset): hashlib.sha1(message.body).hexdigest()
        for message in messages_in(namesrv, topic)
    }
