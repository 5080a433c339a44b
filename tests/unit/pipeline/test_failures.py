"""The reason for a failure inside Spark: our own sentence, without the pages around it."""

from __future__ import annotations

import pytest

from pipeline.errors import DataLossError
from pipeline.spark.failures import is_passing, printed_first, reason_of


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            (
                "[PYTHON_DATA_SOURCE_ERROR] Failed to plan:\nTraceback (most recent call last):\n"
                '  File "history.py", line 3, in files\n'
                "pipeline.archive.manifests.ArchiveError: /a/b is missing,\nand a manifest lists it\n\n"
                " SQLSTATE: 38000"
            ),
            "/a/b is missing, and a manifest lists it",
        ),
        (
            "pipeline.scan.errors.DamagedLogError: a, byte 7: zeros SQLSTATE: 38000",
            "a, byte 7: zeros",
        ),
        ("pipeline.scan.columns.UnknownColumnError: there is no column x", "there is no column x"),
        (
            "Writing job failed.\ndledger_mq.client.errors.NoRouteError: no route for topic 'T'\n\tat org.a.X",
            "no route for topic 'T'",
        ),
        ("Job aborted.\n\tat org.apache.spark.X\n", "Job aborted."),
        ("Traceback:\nOSError: [Errno 28] No space left\n", "OSError: [Errno 28] No space left"),
    ],
)
def test_the_sentence_is_found(text: str, reason: str) -> None:
    assert reason_of(RuntimeError(text)) == reason


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("pipeline.errors.InconclusiveError: topic T cannot be asked about: nobody", True),
        ("pipeline.errors.PipelineError: rows 0 to 9 of x are not known to be stored: late", True),
        ("pipeline.errors.PipelineError: row 0 of x is not known to be stored: late", True),
        ("pipeline.errors.PipelineError: rows 0 to 9 of x are not stored: no permission", False),
        ("pipeline.errors.PipelineUsageError: topic T does not exist", False),
        ("pipeline.errors.DataLossError: T@b/0 begins at 7 InconclusiveError: no", False),
        ("org.apache.spark.SparkException: Python worker failed to connect back.", True),
        ("Python worker exited unexpectedly (crashed): Consider setting", True),
        ("ValueError: no such thing, said a function of the job", False),
        (
            "dledger_mq.client.errors.NoRouteError: none\n\npipeline.errors.InconclusiveError: nobody",
            True,
        ),
    ],
)
def test_what_may_be_over_when_it_is_tried_again(text: str, passes: bool) -> None:
    assert is_passing(RuntimeError(text)) is passes


def test_a_sentence_of_ours_is_printed_before_it_is_raised(
    capsys: pytest.CaptureFixture[str],
) -> None:
    @printed_first()
    def fail(error: Exception) -> None:
        raise error

    with pytest.raises(DataLossError):
        fail(DataLossError("T@b/0 begins at 7"))
    assert capsys.readouterr().err == "rocketmq: T@b/0 begins at 7\n"
    with pytest.raises(ValueError, match="of the job"):
        fail(ValueError("a mistake of the job"))
    assert capsys.readouterr().err == ""
