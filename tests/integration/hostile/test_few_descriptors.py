"""Clients that open connections until a broker has no descriptors left: it turns them away, and its store goes on."""

from __future__ import annotations

import os
import resource
import socket
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random

import pytest

from dledger_mq import Message
from dledger_mq.blocking import Producer
from jepsen.processes import Group, poll

pytestmark = [pytest.mark.slow, pytest.mark.integration]

DESCRIPTORS = 160
BODY = Random(1).randbytes(100_000)  # which no client compresses
SEGMENT_BYTES = 1 << 20
PATIENCE_S = 180.0


def test_segments_are_begun_and_sends_go_on(tmp_path: Path) -> None:
    settings = f"mappedFileSizeCommitLog={SEGMENT_BYTES}\n"
    with Group(tmp_path, nodes=1, settings=settings) as group, ExitStack() as stack:
        group.start()
        group.wait_listening()
        (node,) = group.nodes
        assert node.pid is not None
        _, hard = resource.prlimit(node.pid, resource.RLIMIT_NOFILE)
        with Producer(group.namesrv, "few", timeout_s=PATIENCE_S) as producer:
            producer.send(Message("Few", b"first"))
            resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))
            for _ in range(2 * DESCRIPTORS):
                with suppress(OSError):
                    crowd = socket.create_connection(("127.0.0.1", node.port), timeout=1.0)
                    stack.enter_context(crowd)
            assert poll(lambda: "the last ones are kept" in node.log.read_text(), PATIENCE_S)
            for _ in range(4 * SEGMENT_BYTES // len(BODY)):
                producer.send(Message("Few", BODY))
        assert len(list((tmp_path / node.name / "data").iterdir())) >= 4
        assert len(os.listdir(f"/proc/{node.pid}/fd")) < DESCRIPTORS  # noqa: PTH208  # a count
        group.check_alive()
