"""Parts of a Spark job are found among the processes of its session, and none is left when it is killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from bench.pipeline.spark_process import SparkProcess
from jepsen.processes import poll

PATIENCE_S: Final = 60.0

DAEMON: Final = """
import os, sys, time
os.setpgid(0, 0)  # as Spark's does
if os.fork() == 0:
    os.execv(sys.executable, [sys.executable, "-S", "-c", "import time; time.sleep(600)", "pyspark.daemon"])
time.sleep(600)
"""

JOB: Final = """
import subprocess, sys, time
children = [
    subprocess.Popen([sys.executable, "-S", *program, word], process_group=group)
    for program, word, group in (
        ([sys.argv[1]], "pyspark.daemon", -1),
        (["-c", "import time; time.sleep(600)"], "org.apache.spark.executor.CoarseGrainedExecutorBackend", 0),
    )
]
print(*(child.pid for child in children), flush=True)
time.sleep(600)
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[SparkProcess]:
    """What looks like a job: a daemon of workers with one worker, and an executor, in process groups of their own."""
    programs = [tmp_path / "job.py", tmp_path / "daemon.py"]
    for file, text in zip(programs, (JOB, DAEMON), strict=True):
        file.write_text(text)
    with SparkProcess(["-S", *map(str, programs)], tmp_path / "log", {}) as process:
        process.start()
        assert poll(lambda: bool(process.workers() and process.executors()), PATIENCE_S), (
            process.log_tail()
        )
        assert poll(lambda: len(process.log_tail().split()) == 2, PATIENCE_S), process.log_tail()
        yield process


def test_workers_and_executors_are_found_by_what_they_are(job: SparkProcess) -> None:
    daemon, executor = map(int, job.log_tail().split())
    assert job.executors() == [executor]
    (worker,) = job.workers()
    assert worker not in {daemon, executor}


def test_nothing_of_a_killed_job_is_left(job: SparkProcess) -> None:
    pids = [*job.workers(), *job.executors()]
    job.kill()
    assert poll(lambda: not any(_runs(pid) for pid in pids), PATIENCE_S), pids
    assert not job.workers() + job.executors()


def _runs(pid: int) -> bool:
    """Whether it runs; one that has ended and was not waited for by anybody yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
