"""The frame of `dledger-pipeline`: errors are sentences, exit codes say what to conclude."""

from __future__ import annotations

import argparse
import json

import pytest
from rich.text import Text

from pipeline import cli
from pipeline.errors import DataLossError, PipelineError, UsageError
from pipeline.jobs.context import JobContext


class FakeJob:
    """A job that ends as it is told."""

    name = "fake"
    summary = "for tests"

    def __init__(self, end: int | Exception) -> None:
        self.end = end

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--number", type=int, default=7)

    def run(self, context: JobContext) -> int:
        if isinstance(self.end, Exception):
            raise self.end
        context.report({"number": context.options.number}, lambda: Text("as text"))
        return self.end


def run(monkeypatch: pytest.MonkeyPatch, end: int | Exception, *arguments: str) -> int:
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
    [(PipelineError("a"), 1), (DataLossError("a"), 1), (UsageError("a"), 2)],
)
def test_errors_are_one_sentence_with_the_exit_code_of_their_kind(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    code: int,
) -> None:
    assert run(monkeypatch, error) == code
    assert capsys.readouterr().err == "dledger-pipeline fake: a\n"


def test_unknown_jobs_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["no-such-job"])
    assert caught.value.code == 2
    assert "no-such-job" in capsys.readouterr().err
