"""Log lines of servers: JSON whose names stay, text as before, and files that are rotated."""

from __future__ import annotations

import argparse
import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker import log_output
from broker.log_output import JsonLogLines, LogOutput, add_log_options
from dledger.raft.effects import Role
from dledger.runtime.events_log import LOGGER, log_event


@pytest.fixture
def start() -> Iterator[Callable[..., None]]:
    """Start to log as a program does that has no handlers yet."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level

    def begin(*words: str) -> None:
        root.handlers.clear()  # those of pytest, which come after the fixtures
        output_of(*words).start()

    yield begin
    for handler in root.handlers:
        if handler not in before:
            handler.close()
    root.handlers[:] = before
    root.setLevel(level)


def output_of(*words: str) -> LogOutput:
    parser = argparse.ArgumentParser()
    add_log_options(parser, level="warning")
    return LogOutput.of(parser.parse_args(words))


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_an_event_is_a_line_of_json_with_its_fields(
    tmp_path: Path, start: Callable[..., None]
) -> None:
    path = tmp_path / "log"
    start("--log-format", "json", "--log-file", str(path), "--log-level", "INFO")
    log_event(logging.INFO, "role-changed", node="n0", term=3, leader=None, role=Role.LEADER)
    (line,) = lines_of(path)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(line.pop("time")))
    assert line == {
        "level": "info",
        "logger": "dledger",
        "message": "role-changed node=n0 term=3 leader=None role=Role.LEADER",
        "event": "role-changed",
        "fields": {"node": "n0", "term": 3, "leader": None, "role": "Role.LEADER"},
    }


def test_other_lines_have_no_event_and_what_was_raised_is_in_the_same_line(
    tmp_path: Path, start: Callable[..., None]
) -> None:
    path = tmp_path / "log"
    start("--log-format", "json", "--log-file", str(path))
    logger = logging.getLogger("broker.x")
    logger.warning('a "quoted" name\nover two lines: %s', "ö\ud800")
    try:
        _ = 1 // 0
    except ZeroDivisionError:
        logger.exception("it failed")
    first, second = lines_of(path)
    assert first["message"] == 'a "quoted" name\nover two lines: ö\ud800'
    assert "event" not in first
    assert str(second["exception"]).endswith(
        "ZeroDivisionError: integer division or modulo by zero"
    )


def test_text_is_as_it_was(tmp_path: Path, start: Callable[..., None]) -> None:
    path = tmp_path / "log"
    start("--log-file", str(path))
    log_event(logging.WARNING, "disk-full", node="n0", reason="no space left")
    text = path.read_text()
    assert (
        re.sub(r"^[\d,: -]+", "", text)
        == "WARNING dledger: disk-full node=n0 reason='no space left'\n"
    )


def test_files_are_rotated_and_few_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Callable[..., None]
) -> None:
    monkeypatch.setattr(log_output, "FILE_BYTES_MAX", 2000)
    path = tmp_path / "log"
    start("--log-file", str(path))
    for number in range(1000):
        LOGGER.warning("line %d", number)
    names = sorted(each.name for each in tmp_path.iterdir())
    assert names == ["log", "log.1", "log.2", "log.3", "log.4"]
    assert all(each.stat().st_size <= 2000 for each in tmp_path.iterdir())
    assert "line 999\n" in path.read_text()


def test_without_a_file_lines_go_to_standard_error(
    capsys: pytest.CaptureFixture[str], start: Callable[..., None]
) -> None:
    start("--log-format", "json")
    LOGGER.warning("here")
    out, errors = capsys.readouterr()
    assert (out, json.loads(errors)["message"]) == ("", "here")


def test_a_value_of_any_kind_is_written() -> None:
    record = logging.makeLogRecord(
        {"msg": "m", "event": "e", "fields": {"a": object, "b": 1.5, "c": True}}
    )
    assert json.loads(JsonLogLines().format(record))["fields"] == {
        "a": "<class 'object'>",
        "b": 1.5,
        "c": True,
    }


def test_a_file_that_nobody_logs_to_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    output_of("--log-file", str(path)).start()
    LOGGER.warning("somewhere else")
    assert path.read_text() == ""


def test_what_a_stranger_is_called_begins_no_line_of_its_own(
    tmp_path: Path, start: Callable[..., None]
) -> None:
    path = tmp_path / "log"
    start("--log-file", str(path))
    name = "x\n2026-01-01 00:00:00,000 ERROR broker: all is lost\r\x1b[2J\u2028ü"
    logging.getLogger("broker").warning("broker %s is silent", name)
    try:
        int("x")
    except ValueError:
        logging.getLogger("broker").exception("internal error")
    first, second, *traceback = path.read_text(encoding="utf-8").split("\n")
    assert first.endswith(
        "WARNING broker: broker x\\n2026-01-01 00:00:00,000 ERROR broker: all is lost\\r\\x1b[2J\\u2028ü is silent"
    )
    assert second.endswith("ERROR broker: internal error")
    assert traceback[0].startswith("Traceback")
    assert traceback[-2].startswith("ValueError: ")
