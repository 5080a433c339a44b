"""The frame of `dledger-pipeline`: errors are sentences, exit codes say what to conclude."""

from __future__ import annotations

import argparse
import json

import pytest
from rich.table import Table
from rich.text import Text

from dledger.errors import DLedgerError
from dledger_mq.client.errors import ClientError
from dledger_mq.client.trace_reader import ClientTrace
from pipeline import cli
from pipeline.errors import DataLossError, PipelineError, PipelineUsageError
from pipeline.jobs.context import JobContext
from pipeline.jobs.tables import alarming, new_table
from pipeline.jobs.trace import _tree
from pipeline.trace import GroupProgress, MessageTrace, Step


class FakeJob:
    """A job that ends as it is told."""

    name = "fake"
    summary = "for tests"

    def __init__(self, end: int | BaseException) -> None:
        self.end = end

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--number", type=int, default=7)

    def run(self, context: JobContext) -> int:
        if isinstance(self.end, BaseException):
            raise self.end
        context.report({"number": context.options.number}, lambda: Text("as text"))
        return self.end


def run(monkeypatch: pytest.MonkeyPatch, end: int | BaseException, *arguments: str) -> int:
    monkeypatch.setattr(cli, "JOBS", ("fake",))
    monkeypatch.setattr(cli, "load", lambda _: FakeJob(end))
    return cli.main(["fake", *arguments])


def test_results_are_text_or_one_json_object(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, 0, "--json", "--number", "8") == 0
    assert json.loads(capsys.readouterr().out) == {"number": 8}
    assert run(monkeypatch, 1) == 1
    assert capsys.readouterr().out.strip() == "as text"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PipelineError("a"), 1),
        (DataLossError("a"), 1),
        (PipelineUsageError("a"), 2),
        (OSError("a"), 1),
        (DLedgerError("a"), 1),
        (ClientError("a"), 1),
        (ExceptionGroup("of a nursery", [PipelineUsageError("a")]), 2),
    ],
)
def test_errors_are_one_sentence_with_the_exit_code_of_their_kind(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    code: int,
) -> None:
    assert run(monkeypatch, error) == code
    assert capsys.readouterr().err == "dledger-pipeline fake: a\n"


@pytest.mark.parametrize(
    "interrupt",
    [KeyboardInterrupt(), BaseExceptionGroup("of a nursery", [KeyboardInterrupt()])],
    ids=["plain", "in a group"],
)
def test_ctrl_c_is_told_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], interrupt: BaseException
) -> None:
    assert run(monkeypatch, interrupt) == 130
    assert capsys.readouterr().err == "dledger-pipeline fake: interrupted\n"


def test_a_mistake_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="a bug"):
        run(monkeypatch, AssertionError("a bug"))


@pytest.mark.parametrize("module", ["numpy", "pyarrow.parquet"])
def test_a_package_of_the_extra_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], module: str
) -> None:
    missing = ModuleNotFoundError(f"No module named {module!r}", name=module)
    assert run(monkeypatch, missing) == 2
    package = module.partition(".")[0]
    said = f"dledger-pipeline fake: {package} is not installed: the extra `spark` brings it"
    assert capsys.readouterr().err.startswith(said)


def test_a_module_of_ours_that_is_missing_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModuleNotFoundError):
        run(monkeypatch, ModuleNotFoundError("No module named 'pipeline.x'", name="pipeline.x"))


def test_tables_cut_nothing_off_and_take_no_text_for_markup(
    capsys: pytest.CaptureFixture[str],
) -> None:
    context = JobContext(argparse.Namespace(json=False))
    long = "/a/long/path/" + "x" * 200

    def show() -> Table:
        table = new_table(f"[red]{long}", "what", "where")
        table.add_row(alarming("[/bold] :smile:"), long)
        return table

    context.report({}, show)
    out = capsys.readouterr().out
    assert "[/bold] :smile:" in out
    assert "[red]" in out
    assert out.count("x") == 400


def test_a_key_that_looks_like_markup_is_traced(capsys: pytest.CaptureFixture[str]) -> None:
    step = Step(0, "stored", "broker-a", "T", 0, 7, 100, "ID", "", 0)
    standing = GroupProgress("g", "T", "broker-a", 0, 7, 5)
    JobContext(argparse.Namespace(json=False)).report(
        {}, lambda: _tree(MessageTrace("[/x] :key:", "T", ClientTrace(""), [step], [standing]))
    )
    out = capsys.readouterr().out
    assert "T [/x] :key:" in out
    assert "g has 2 before it" in out


def test_unknown_jobs_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["no-such-job"])
    assert caught.value.code == 2
    assert "no-such-job" in capsys.readouterr().err
