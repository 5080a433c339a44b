"""The reason for a failure inside Spark: our own sentence, without the pages around it."""

from __future__ import annotations

import pytest

from pipeline.spark.failures import reason_of


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
