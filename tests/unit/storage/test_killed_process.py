"""A process that is killed while it writes: what it had reported durable is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dledger.raft.ids import Index
from dledger.storage.posix import PosixDisk
from dledger.storage.segmented_log import SegmentedLog

SEGMENT_BYTES = 50_000
WRITER = f"""
import random, sys
from dledger.storage.posix import PosixDisk
from dledger.storage.segmented_log import SegmentedLog
from dledger.testing.check_log_store import flush, new_entries
log = SegmentedLog.open(PosixDisk(sys.argv[1]), segment_size_bytes={SEGMENT_BYTES})
chance = random.Random(log.last_id.index)
while True:
    sizes = [chance.randrange(9000) for _ in range(chance.randrange(1, 8))]
    log.append(new_entries(log, log.last_id.term + 1, sizes))
    flush(log)
    print(log.durable_id, flush=True)
"""


@pytest.mark.slow
@pytest.mark.integration
def test_reported_entries_survive_a_kill(tmp_path: Path) -> None:
    survived = 0
    for round_number in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(15 + 11 * round_number)]
        finally:
            process.kill()
            rest, _ = process.communicate(timeout=60)
        lines += rest.split("\n")[:-1]
        log = SegmentedLog.open(PosixDisk(tmp_path), segment_size_bytes=SEGMENT_BYTES)
        found = log.entries(Index(1), Index(log.last_id.index + 1))
        log.close()
        index = int(lines[-1].partition("@")[0])
        assert index > survived
        assert str(found[index - 1].id) == lines[-1].strip()
        survived = index
