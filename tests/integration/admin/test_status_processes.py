"""`dledger-admin status` against real processes that are killed, paused, stopped in order, and come back."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import shlex
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from broker.admin import survey
from broker.admin.cli import main as dledger_admin
from dledger_mq import Message
from dledger_mq.blocking import Producer
from jepsen.processes import Group, Process, poll, program
from tests.integration.commands import run_here

pytestmark = [pytest.mark.slow, pytest.mark.integration]

PATIENCE_S = 180.0
SETTINGS = "mappedFileSizeCommitLog=16777216\nstopForwardSec=50\n"
"""Stops as they are in production, with the longest time there is in which requests are passed on."""

HELD_UP_S = 45.0
"""A stop that a look holds up takes longer."""


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    folder = tmp_path_factory.mktemp("status")
    with Group(folder, name_servers=2, settings=SETTINGS) as running:
        running.start()
        running.wait_listening()
        yield running


@pytest.fixture(autouse=True)
def _patient_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is dead refuses at once, and the others are given the time that they need: a look is whole."""
    monkeypatch.setattr(survey, "ANSWER_S", PATIENCE_S)


@pytest.fixture(autouse=True)
def _all_is_well(group: Group, _patient_looks: None) -> None:
    """Begin each test with a group in which nothing is wrong."""
    for process in group.processes():
        process.resume()
        if process.pid is None:
            process.start()
    assert poll(lambda: status(group, "--strict")[0] == 0, PATIENCE_S), status(group)


def command(group: Group, *options: str) -> list[str]:
    return [program("dledger-admin"), "status", "-n", group.namesrv, *options]


def status(group: Group, *options: str) -> tuple[int, dict[str, Any]]:
    """Look once; returns the exit code and what is shown as JSON."""
    _, *words = command(group, "--json", *options)
    ended = run_here(dledger_admin, *words)
    assert "Traceback" not in ended.stderr
    return ended.returncode, json.loads(ended.stdout) if ended.stdout else {}


def members(shown: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {member["id"]: member for each in shown["groups"] for member in each["members"]}


def leader(group: Group) -> Process:
    """Return the node that leads, once there is one."""
    found: list[str] = []

    def is_led() -> bool:
        _, shown = status(group)
        found[:] = [each["leader"] for each in shown.get("groups", []) if each["leader"]]
        return bool(found)

    assert poll(is_led, PATIENCE_S)
    return group.node(found[0])


def other_than(group: Group, node: Process) -> Process:
    return next(each for each in group.nodes if each is not node)


def becomes(group: Group, node: Process, state: str, reason: str = "") -> bool:
    """Return whether a member is shown in a state, and with a reason."""

    def is_so() -> bool:
        _, shown = status(group)
        member = members(shown).get(node.name, {"state": "", "reason": ""})
        return bool(member["state"] == state and reason in member["reason"])

    return poll(is_so, PATIENCE_S)


def test_a_killed_leader_is_away_and_another_one_leads(group: Group) -> None:
    old = leader(group)
    before = status(group)[1]["groups"][0]["term"]
    old.kill()
    assert becomes(group, old, "away", "Connection refused")
    assert leader(group) is not old
    assert poll(lambda: status(group)[0] == 0, PATIENCE_S)
    (found,) = status(group)[1]["groups"]
    assert status(group, "--strict")[0] == 1
    assert found["term"] > before
    assert found["leads_ms"] < PATIENCE_S * 1000
    old.start()
    assert poll(lambda: status(group, "--strict")[0] == 0, PATIENCE_S)


def test_a_paused_follower_is_away_with_the_time_that_was_given(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "ANSWER_S", 2.0)
    paused = other_than(group, leader(group))
    paused.pause()
    assert becomes(group, paused, "away", "no answer within 2 s")
    assert poll(lambda: status(group)[0] == 0, PATIENCE_S)
    paused.resume()
    assert becomes(group, paused, "follower")


def test_a_group_without_a_majority_has_no_leader(group: Group) -> None:
    first = leader(group)
    second = other_than(group, first)
    first.kill()
    second.kill()
    seen: list[str] = []

    def is_shown() -> bool:
        """The last one may have begun to lead in between, and needs a moment to see that it is alone."""
        code, shown = status(group)
        seen[:] = sorted(member["state"] for member in members(shown).values())
        return code == 1 and seen in (["away", "away", "candidate"], ["away", "away", "follower"])

    assert poll(is_shown, PATIENCE_S), seen


def test_a_follower_that_was_down_is_one_again_when_it_has_everything(group: Group) -> None:
    late = other_than(group, leader(group))
    late.kill()
    body = os.urandom(100_000)
    with Producer(group.namesrv, "status", timeout_s=PATIENCE_S) as producer:
        assert all(producer.send(Message("Status", body)).queue for _ in range(50))
    late.start()
    found: dict[str, Any] = {}

    def has_everything() -> bool:
        """The group goes on by itself: a leader that is new, or digests, have entries, too."""
        found.update(members(status(group)[1]).get(late.name, {}))
        told = (found.get("state"), found.get("lag_entries"), found.get("lag_bytes"))
        return told == ("follower", 0, 0)

    assert poll(has_everything, PATIENCE_S), found
    assert found["log_bytes"] > 50 * len(body)


def test_a_stop_in_order_is_shown_while_requests_are_passed_on(group: Group) -> None:
    old = leader(group)
    with Producer(group.namesrv, "status", timeout_s=PATIENCE_S) as producer:
        producer.send(Message("Status", b"connected"))
        assert members(status(group)[1])[old.name]["clients"] >= 1
        old.send_signal(signal.SIGTERM)

        def is_shown() -> bool:
            found = members(status(group)[1]).get(old.name, {"state": "", "stopping": ""})
            return found["state"] == "follower" and "passes requests on to" in found["stopping"]

        assert poll(is_shown, PATIENCE_S)
        assert status(group, "--strict")[0] == 1

    def has_ended() -> bool:
        """Nobody but us looks now, and a look holds no stop up."""
        status(group)
        return old.pid is None

    assert poll(has_ended, HELD_UP_S), old.log_tail()
    assert old.exit_status == 0


def test_name_servers_that_are_away_are_named(group: Group) -> None:
    first, second = group.name_servers
    first.kill()
    expected = {first.address: "Connection refused", second.address: ""}

    def is_named() -> bool:
        code, shown = status(group)
        problems = {each["address"]: each["problem"] for each in shown["name_servers"]}
        assert problems == expected
        return code == 0  # unless an election is on

    assert poll(is_named, PATIENCE_S), status(group)
    assert status(group, "--strict")[0] == 1
    second.kill()
    ended = subprocess.run(
        command(group), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (ended.returncode, ended.stdout) == (3, "")
    assert ended.stderr == (
        f"dledger-admin: no name server answers: {first.address}: Connection refused; "
        f"{second.address}: Connection refused\n"
    )


def test_one_address_of_a_member_is_enough(group: Group) -> None:
    nodes = command(group)
    nodes[nodes.index("-n") :] = ["-b", group.nodes[2].address, "--json", "--strict"]
    shown: list[bytes] = []

    def is_whole() -> bool:
        ended = subprocess.run(nodes, capture_output=True, timeout=PATIENCE_S, check=False)
        shown[:] = [ended.stdout]
        return ended.returncode == 0

    assert poll(is_whole, PATIENCE_S), shown
    assert sorted(members(json.loads(shown[0]))) == ["n0", "n1", "n2"]


class Watch:
    """`status --watch` as a child, and the lines that it has printed."""

    def __init__(self, group: Group, *options: str) -> None:
        self.lines: list[str] = []
        self.child = subprocess.Popen(
            command(group, "--watch", "0.2", *options), stdout=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self.lines.append(line)

    def sees(self, condition: Callable[[dict[str, Any]], bool]) -> bool:
        """Return whether a look from now on is so, soon."""
        begun = len(self.lines)

        def is_seen() -> bool:
            return any(condition(json.loads(line)) for line in self.lines[begun:])

        return poll(is_seen, PATIENCE_S)

    def end(self, number: signal.Signals) -> int:
        self.child.send_signal(number)
        status = self.child.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return status

    def close(self) -> None:
        self.child.kill()
        self.child.wait()
        self._reader.join(PATIENCE_S)
        assert self.child.stdout is not None
        self.child.stdout.close()


@contextmanager
def watching(group: Group, *options: str) -> Iterator[Watch]:
    watch = Watch(group, *options)
    try:
        yield watch
    finally:
        watch.close()


def test_a_watch_goes_on_whoever_dies_and_comes_back_and_says_how_it_was_at_last(
    group: Group,
) -> None:
    with watching(group, "--json") as watch, watching(group, "--json") as ended:
        assert watch.sees(lambda look: look["whole"])
        assert ended.sees(lambda look: look["led"])
        for server in group.name_servers:
            server.kill()
        assert watch.sees(lambda look: "no name server answers" in look["remark"] and look["led"])
        for node in group.nodes:
            node.kill()
        assert watch.sees(
            lambda look: [each["state"] for each in members(look).values()] == ["away"] * 3
        )
        assert ended.sees(lambda look: not look["led"])
        assert ended.end(signal.SIGTERM) == 1
        for server in group.name_servers:
            server.start()
        with watching(group, "--json") as late:
            assert late.sees(lambda look: look["remark"] == "the name servers know no group")
            assert late.end(signal.SIGTERM) == 3
        for node in group.nodes:
            node.start()
        assert watch.sees(lambda look: look["whole"])
        code = watch.end(signal.SIGINT)
        assert code == (0 if json.loads(watch.lines[-1])["led"] else 1), "as the last look"


def test_tables_of_a_watch_follow_each_other_where_there_is_no_terminal(group: Group) -> None:
    with watching(group) as watch:
        assert poll(
            lambda: sum("groups have a leader" in each for each in watch.lines) > 2, PATIENCE_S
        )
        code = watch.end(signal.SIGINT)
        last = [each for each in watch.lines if "groups have a leader" in each][-1]
        assert code == (0 if "1 of 1" in last else 1), "as the last look"
        assert "\x1b" not in "".join(watch.lines)


def _resize(fd: int, columns: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))


class Terminal:
    """A pseudo terminal with a watch in it."""

    def __init__(self, group: Group, columns: int) -> None:
        self.pid, self._fd = pty.fork()
        if not self.pid:
            _resize(0, columns)
            arguments = command(group, "--watch", "3600")
            os.execve(arguments[0], arguments, {"TERM": "xterm", "PATH": os.environ["PATH"]})
        self.shown = ""

    def resize(self, columns: int) -> None:
        _resize(self._fd, columns)

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def read(self) -> str:
        """Read what there is, and return all that was shown; what is read from an ended one is an error."""
        os.set_blocking(self._fd, False)
        with suppress(OSError):
            self.shown += os.read(self._fd, 1 << 16).decode(errors="replace")
        return self.shown

    def close(self) -> None:
        os.close(self._fd)


def test_on_a_terminal_it_is_drawn_again_when_the_size_changes_and_ctrl_c_leaves_all_as_it_was(
    group: Group,
) -> None:
    terminal = Terminal(group, 120)
    try:
        assert poll(lambda: "leads for" in terminal.read(), PATIENCE_S)
        begun = len(terminal.shown)
        terminal.resize(60)
        assert poll(lambda: "leads for" in terminal.read()[begun:], PATIENCE_S)
        assert "version" in terminal.shown[:begun]
        assert "version" not in terminal.shown[begun:]
        terminal.type("\x03")
        assert poll(lambda: "\x1b[?1049l" in terminal.read(), PATIENCE_S)
        _, ended = os.waitpid(terminal.pid, 0)
        assert os.waitstatus_to_exitcode(ended) == 0
        assert terminal.read().rindex("\x1b[?25h") > terminal.shown.rindex("\x1b[?25l")
        assert "Traceback" not in terminal.shown
    finally:
        terminal.close()


def test_whoever_has_read_enough_may_hang_up(group: Group) -> None:
    line = shlex.join(command(group, "--json", "--watch", "0.2"))
    ended = subprocess.run(
        ["bash", "-c", f"{line} | head -n 2; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    *looks, code = ended.stdout.splitlines()
    assert (len(looks), code, ended.stderr) == (2, "0", "")
