"""A planned stop of the leader fails no send of an unmodified client with its defaults.

They ask for routes every 30 s; until then they send to the node that led, which goes on for them.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from jepsen.processes import Group, poll
from tests.interop.conftest import (
    JAVAS,
    WAIT_S,
    ForeignClient,
    Listener,
    RunningGroup,
    lacking,
    sent,
    stored,
)

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SETTINGS = "mappedFileSizeCommitLog=16777216\n"
"""Stops as they are in production: jepsen's usual settings make them short."""

SEND_TIMEOUT_MS = "30000"
"""Not the libraries' 3 s, which a busy machine may take for a send: one that is refused or lost fails all the same."""

CLIENTS = ("cpp", "go", "node", "ours", *JAVAS)
STOP_S = WAIT_S


@pytest.fixture(scope="module")
def patient_group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGroup]:
    with Group(tmp_path_factory.mktemp("patient"), settings=SETTINGS) as processes:
        processes.start()
        processes.wait_listening()
        running = RunningGroup(processes)
        running.wait_leader()
        yield running


def test_no_client_sees_a_failed_send_when_the_leader_is_stopped_and_started(
    patient_group: RunningGroup, name: str
) -> None:
    kinds = [kind for kind in CLIENTS if lacking(kind) is None]
    if not kinds:
        pytest.skip("; ".join(str(lacking(kind)) for kind in CLIENTS))
    topic = patient_group.create_topic(name)
    with ExitStack() as running:
        said = {
            kind: running.enter_context(
                Listener(
                    ForeignClient(kind, patient_group.namesrv).start(
                        *("produce", "--topic", topic, "--count", "10000", "--interval-ms", "60"),
                        *("--keep-going", "--send-timeout-ms", SEND_TIMEOUT_MS),
                        *("--timeout", "800"),
                    )
                )
            )
            for kind in kinds
        }
        for listener in said.values():
            listener.wait_lines(30)
        leader = patient_group.wait_leader(topic=topic)
        begun = {kind: len(listener.lines) for kind, listener in said.items()}
        leader.send_signal(signal.SIGTERM)
        patient_group.wait_leader(other_than=leader, topic=topic)
        assert poll(lambda: leader.pid is None, STOP_S), "the node has not stopped"
        assert leader.exit_status == 0
        before = {kind: len(listener.lines) for kind, listener in said.items()}
        leader.start()
        assert poll(leader.is_listening, STOP_S)
        assert poll(
            lambda: all(len(said[kind].lines) >= before[kind] + 30 for kind in kinds), STOP_S
        ), "a client stands still"
        lines = {kind: list(listener.lines) for kind, listener in said.items()}
    # A client's first send may take longer than its timeout on a busy machine: that is not of the stop.
    failed = {
        kind: [line for line in lines[kind][begun[kind] :] if line.get("status") == "ERROR"]
        for kind in kinds
    }
    assert failed == {kind: [] for kind in kinds}
    there = set(stored(patient_group.namesrv, topic).values())
    assert [kind for kind in kinds if not set(sent(lines[kind])) <= there] == []
