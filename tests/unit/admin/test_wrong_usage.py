"""What the four commands say of wrong arguments and settings: one line, the true cause, and exit code 2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from broker.admin.cli import main as admin
from broker.namesrv.cli import main as namesrv
from broker.namesrv.config import read_config as read_namesrv_config
from broker.server.cli import main as broker
from dledger.cli import main as dledger

Main = Callable[[Sequence[str]], int]

NODE = ("--group", "g", "--id", "n0", "--store", "store")
PEERS = ("--peers", "n0-127.0.0.1:20911")
CONF = "dLegerGroup=g\ndLegerSelfId=n0\ndLegerPeers=n0-127.0.0.1:20911\nstorePathRootDir=store\n"


def run(main: Main, arguments: Sequence[str]) -> int:
    try:
        return main(arguments)
    except SystemExit as ended:  # from the parser
        return int(ended.code or 0)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bytes").write_bytes(b"a\xff")
    Path("bytes").chmod(0o600)
    Path("nothing").touch(0o600)
    Path("open").write_text("broker-a secret\n")
    Path("open").chmod(0o644)
    Path("name").write_text("broker-a\n")
    Path("name").chmod(0o600)
    Path("twice").write_text("b x\nb y\nb z\n")
    Path("twice").chmod(0o600)
    Path("password").write_text("correct horse battery")
    Path("password").chmod(0o600)
    Path("escape.conf").write_text("a=1\nb=\\u12\n")


def kv(listen: str, peers: str) -> list[str]:
    return [
        *("--kv-listen", listen, "--kv-peers", peers),
        *("--kv-password-file", "password", "--store", "kv"),
    ]


WRONG: list[tuple[Main, list[str], str]] = [
    (namesrv, ["--listen", "70000"], "--listen: '70000' is not [HOST:]PORT"),
    (namesrv, ["-c", "absent"], "-c absent cannot be read: No such file or directory"),
    (namesrv, ["-c", "bytes"], "-c bytes cannot be read: it is not text in UTF-8: byte 1 is 0xff"),
    (namesrv, ["-c", "escape.conf"], "-c escape.conf, line 2: "),
    (namesrv, ["--log-level", "Loud"], "'Loud' is not one of debug, info, warning, error"),
    (
        namesrv,
        ["--log-file", "absent/log"],
        "--log-file absent/log cannot be written: No such file",
    ),
    (namesrv, ["--secret-file", "open"], "--secret-file open can be read or changed by everybody"),
    (namesrv, ["--secret-file", "name"], "line 1: no secret stands after broker-a"),
    (namesrv, ["--secret-file", "twice"], "line 3: b is named more than twice"),
    (namesrv, ["--secret-file", "nothing"], "names no broker"),
    (namesrv, ["--secret-file", "absent"], "absent cannot be read: No such file or directory\n"),
    (namesrv, kv("0", "127.0.0.1:2"), "127.0.0.1:0: name servers reach each other at fixed ports"),
    (namesrv, kv("1", "127.0.0.1:0"), "127.0.0.1:0: name servers reach each other at fixed ports"),
    (namesrv, kv("1", "127.0.0.1:1"), "which is --kv-listen"),
    (namesrv, kv("1", ","), "--kv-peers names no other name server"),
    (broker, [], "dLegerGroup is missing: give --group"),
    (broker, [*NODE, "--peers", "n0"], "not of the form id-host:port"),
    (broker, [*NODE, "--peers", "n0-127.0.0.1:70000"], "with a port from 1 to 65535"),
    (broker, [*NODE, "--peers", "n1-127.0.0.1:1"], "--id n0 is not among the members n1"),
    (broker, [*NODE, *PEERS, "--listen", "abc"], "--listen: 'abc' is not [HOST:]PORT"),
    (broker, [*NODE, *PEERS, "--namesrv", "foo"], "namesrvAddr: 'foo' is not host:port"),
    (
        broker,
        [*NODE, *PEERS, "--secret-file", "absent"],
        "cannot be read: No such file or directory",
    ),
    (
        broker,
        [*NODE, *PEERS, "--log-level", "Loud"],
        "'Loud' is not one of debug, info, warning, error",
    ),
    (broker, ["-c", "absent"], "-c absent cannot be read: No such file or directory"),
    (broker, ["-c", "escape.conf"], "-c escape.conf, line 2: "),
    (broker, ["-c", "broker.conf"], "flushDiskType=MAYBE is not one of SYNC_FLUSH, ASYNC_FLUSH"),
    (broker, ["--dev", "--group", "g"], "--dev chooses --group itself"),
    (broker, ["--dev", "--port", "60000"], "--port 60000 is not from 1 to 55505"),
    (broker, ["--dev", "--port", "x"], "'x' is not a port from 1 to 65535"),
    (broker, ["--dev", "--namesrv-port", "99999"], "'99999' is not a port from 1 to 65535"),
    (broker, ["--dev", "--id", "n0"], "--dev chooses --id itself"),
    (
        broker,
        ["--dev", "--namesrv-port", "10921", "--store", "store"],
        "--namesrv-port 10921 is also the port of a broker",
    ),
    (
        broker,
        ["--dev", "--namesrv-port", "20931", "--store", "store"],
        "--namesrv-port 20931 is also the port of a member",
    ),
    (
        broker,
        ["--dev", "--metrics-port", "10910", "--store", "store"],
        "--metrics-port 10910: 10911 is the port of a broker",
    ),
    (broker, ["--dev", "--metrics", "5557"], "--dev chooses --metrics itself"),
    (broker, ["--metrics-port", "5557"], "--metrics-port goes with --dev"),
    (broker, [*NODE, *PEERS, "--metrics", "x"], "--metrics: 'x' is not [HOST:]PORT"),
    (
        admin,
        ["--credentials", "absent", "status", "-n", "127.0.0.1:1"],
        "credentials absent cannot be read: No such file or directory",
    ),
    (
        admin,
        ["--credentials", "name", "status", "-n", "127.0.0.1:1"],
        "credentials name: line 1 begins with none of accessKey:, secretKey:, securityToken:",
    ),
    (admin, ["verify", "-n", "foo"], "'foo' is not HOST:PORT with a port from 1 to 65535"),
    (admin, ["verify", "-b", ""], "argument -b/--brokers: no address is given"),
    (admin, ["lag", "-n", ";"], "argument -n/--namesrv: no address is given"),
    (admin, ["resend-dlq", "-n", "127.0.0.1:1", "a b"], "argument GROUP: 'a b': "),
    (admin, ["resend-dlq", "-n", "127.0.0.1:1", "g", "--limit", "0"], "--limit 0 is below 1"),
    (
        dledger,
        ["server", "-s", "s", "--secret-file", "absent"],
        "absent cannot be read: No such file",
    ),
    (dledger, ["append", "--timeout", "x"], "'x' is not a number of seconds above 0"),
    (dledger, ["append", "--count", "x"], "'x' is not a number from 1 on"),
    (dledger, ["get", "--index", "0"], "'0' is not a number from 1 on"),
    (dledger, ["restored", "-i", "n0", "-s", "s", ""], "NAME '' has 0 characters"),
    (dledger, ["restored", "-i", "n0", "-s", "s", "x"], "it has no file hard_state"),
]


@pytest.mark.parametrize(("main", "arguments", "text"), WRONG)
def test_wrong_usage_ends_with_the_true_cause(
    main: Main, arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("broker.conf").write_text(CONF + "flushDiskType=MAYBE\n")
    assert run(main, arguments) == 2
    errors = capsys.readouterr().err
    assert text in errors
    assert "Traceback" not in errors
    assert "Errno" not in errors
    assert not Path("store").exists(), "nothing was begun"


@pytest.mark.parametrize("level", ["debug", "DEBUG", "Debug"])
def test_a_log_level_may_be_written_in_any_case(level: str) -> None:
    assert read_namesrv_config(["--log-level", level]).log.level == "debug"


def test_nodes_that_do_not_answer_are_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(admin, ["verify", "-b", "127.0.0.1:1"]) == 3
    said = capsys.readouterr().out
    assert said.count("127.0.0.1:1") == 1
    assert "no node answered: nothing was compared" in said


@pytest.mark.parametrize("main", [namesrv, broker, dledger, admin])
def test_the_help_lists_the_exit_codes(main: Main, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(main, ["--help"]) == 0
    assert "exit codes:\n  0  " in capsys.readouterr().out


@pytest.mark.parametrize(("verb", "code"), [(["list"], 3), (["remove", "n1"], 1)])
def test_a_change_of_members_that_reaches_nobody_has_surely_not_happened(
    verb: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(admin, ["members", *verb, "-b", "127.0.0.1:1"]) == code
    said = capsys.readouterr().err
    assert "Connection refused" in said
    assert ("; nothing was changed" in said) == (code == 1)
