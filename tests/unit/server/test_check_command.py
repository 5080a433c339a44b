"""dledger-broker --check, and how a start is refused: what a user sees."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker.server import broker, cli
from broker.server.cli import main
from dledger_mq.net.tls_contexts import TlsFiles
from tests.certificates import write_files
from tests.unit.server.stock_files import MASTER

LONE = "brokerName=broker-a\nstorePathRootDir=/data\n"


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object) -> None:
        raise AssertionError("a broker was started")

    monkeypatch.setattr(cli, "_serve", start)
    monkeypatch.setattr(broker, "_bind", start)


def conf(folder: Path, text: str) -> str:
    path = folder / "broker.conf"
    path.write_text(text)
    return str(path)


def test_check_shows_a_table_and_touches_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["--check", "-c", conf(tmp_path, MASTER)]) == 0
    shown = capsys.readouterr().out
    assert "what would hold" in shown
    assert "brokerClusterName" in shown
    assert "no mistakes" in shown
    assert [each.name for each in tmp_path.iterdir()] == ["broker.conf"]


def test_check_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = conf(tmp_path, MASTER + "fileReservdTime=3\nlistenPort=x\nlistenPort=y\n")
    assert main(["--check", "--json", "-c", path]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is False
    assert answer["mistakes"] == [
        "line 8: fileReservdTime is unknown and cannot be used: is fileReservedTime meant?",
        "line 10: listenPort=y is not a number from 0 to 65535",
    ]
    assert "line 9: listenPort stands again in line 10, which wins" in answer["warnings"]
    by_key = {each["key"]: each for each in answer["settings"]}
    assert by_key["flushDiskType"]["value"] == "ASYNC_FLUSH"
    assert by_key["flushDiskType"]["origin"] == "line 7"
    assert by_key["brokerId"]["effect"].startswith("not used: ")
    assert by_key["fileReservedTime"]["value"] == "48"


@pytest.mark.parametrize(
    ("more", "lines"),
    [
        ("tlsEnable=true\n", [", line 8: tlsEnable=true: no such key is known: "]),
        (
            "listenPort=x\nauthenticationEnabled=true\n",
            [" has 2 mistakes:", "  line 8: listen", "  line 9: auth"],
        ),
    ],
)
def test_a_refused_start_names_the_file_and_its_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: str, lines: list[str]
) -> None:
    path = conf(tmp_path, MASTER + more)
    assert main(["-c", path]) == 2
    shown = capsys.readouterr().err.splitlines()
    assert shown[0].startswith(f"dledger-broker: -c {path}{lines[0]}")
    assert len(shown) == len(lines)
    assert all(seen.startswith(want) for seen, want in zip(shown[1:], lines[1:], strict=True))


@pytest.mark.parametrize("arguments", [["--json"], ["--dev", "--check"], ["--dev", "--lenient"]])
def test_options_that_do_not_go_together(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert "--check" in capsys.readouterr().err


def test_an_address_that_cannot_be_announced_is_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = conf(tmp_path, MASTER + "brokerIP1=::1\n")
    assert main(["--check", "--json", "-c", path]) == 2
    (mistake,) = json.loads(capsys.readouterr().out)["mistakes"]
    assert "is not an IPv4 address" in mistake


@pytest.mark.slow
def test_whoever_stops_reading_the_table_gets_no_error(tmp_path: Path) -> None:
    """`--check | head` is what people type."""
    path = conf(tmp_path, MASTER)
    ours, theirs = os.pipe()
    os.close(ours)
    command = [sys.executable, "-m", "broker.server.cli", "--check", "-c", path]
    try:
        ended = subprocess.run(
            command, stdout=theirs, stderr=subprocess.PIPE, timeout=120, check=False
        )
    finally:
        os.close(theirs)
    assert ended.returncode == 1
    assert ended.stderr == b""


def with_tls(tmp_path: Path) -> tuple[TlsFiles, str]:
    """Files, and a broker.conf that names a file of its own for TLS."""
    files = write_files(tmp_path / "tls")
    properties = tmp_path / "tls.properties"
    properties.write_text(
        f"tls.server.certPath={files.certificate}\ntls.server.keyPath={files.key}\ntls.server.mode=enforcing\n"
        f"tls.client.trustCertPath={files.trust}\n"
    )
    return files, conf(tmp_path, f"{LONE}tls.config.file={properties}\n")


def test_what_would_hold_of_tls_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, path = with_tls(tmp_path)
    assert main(["--check", "--json", "-c", path]) == 0
    answer = json.loads(capsys.readouterr().out)
    by_key = {each["key"]: each["value"] for each in answer["settings"]}
    assert by_key["tls.server.mode"] == "enforcing"
    assert by_key["tls.enable"] == "true"
    assert by_key["tls.server.certPath"] == files.certificate
    assert len(answer["warnings"]) == 1  # that it is a group of one node


def test_a_key_that_everybody_can_read_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, path = with_tls(tmp_path)
    Path(files.key).chmod(0o644)
    assert main(["--check", "--json", "-c", path]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["warnings"][1:] == [
        f"{files.key}, a key, can be read by everybody on this machine: run chmod o-rwx {files.key}"
    ]


def test_a_certificate_that_cannot_be_used_is_a_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files, path = with_tls(tmp_path)
    Path(files.key).unlink()
    assert main(["--check", "--json", "-c", path]) == 2
    assert json.loads(capsys.readouterr().out)["mistakes"] == [
        f"TLS: {files.key} cannot be read: No such file or directory"
    ]


def test_only_keys_of_tls_stand_in_the_file_of_tls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, path = with_tls(tmp_path)
    properties = tmp_path / "tls.properties"
    properties.write_text("tls.server.mode=disabled\nsecret=hush\n")
    assert main(["-c", path]) == 2
    shown = capsys.readouterr().err
    assert f"tls.config.file={properties}, line 2: secret is no key of TLS" in shown
    assert "hush" not in shown
