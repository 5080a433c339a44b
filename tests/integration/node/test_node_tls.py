"""dledger-node hands TLS, the group's secret and the form of logs on to all that it runs."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest

from dledger_mq import ClientError, Message, make_tls_context
from dledger_mq.blocking import Producer
from jepsen.processes import poll
from tests.certificates import HOST, write_files
from tests.integration.node.test_node import WAIT_S, Cluster, running
from tests.tls_group import peer_settings, settings

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_a_machine_that_takes_tls_only_and_logs_as_it_is_told(tmp_path: Path) -> None:
    files = write_files(tmp_path / "tls")
    (tmp_path / "tls.properties").write_text(
        settings(files, "enforcing") + peer_settings(files, "enforcing")
    )
    (tmp_path / "secret").write_text("known to both processes\n")
    head = (
        'secret_file = "secret"\ntls_config_file = "tls.properties"\n'
        'log_level = "info"\nlog_format = "json"\nlog_folder = "logs"\n'
    )
    tls = make_tls_context(trust=files.trust)
    cluster = Cluster(tmp_path, machines={"alpha": HOST}, head=head)
    with (
        running(cluster),
        Producer(cluster.name_servers, "p", tls=tls, timeout_s=20.0) as producer,
        Producer(cluster.name_servers, "p", timeout_s=1.0) as in_plain_text,
    ):

        def is_sent() -> bool:
            with suppress(ClientError):
                return cluster.send(producer, 1) == {"broker-a"}
            return False

        assert poll(is_sent, WAIT_S)
        with pytest.raises(ClientError):
            in_plain_text.send(Message("Orders", b"x"))
    for name in ("namesrv", "broker-a"):
        lines = (tmp_path / "logs" / f"alpha-{name}.log").read_text().splitlines()
        assert {"time", "level", "logger", "message"} <= json.loads(lines[0]).keys()
        assert "known to both" not in "".join(lines)
