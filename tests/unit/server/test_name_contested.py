"""What a node makes of rivals that name servers tell of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from broker.server.watches.name_contested import NameContested
from dledger import LogServer
from dledger_mq.net.address import Address

ONE, TWO = Address("10.0.0.8", 9876), Address("10.0.0.9", 9876)


def test_one_line_when_it_begins_and_one_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="dledger")
    shown: dict[str, str] = {}
    status = SimpleNamespace(show=shown.__setitem__)
    log = SimpleNamespace(node_id="n0", config=SimpleNamespace(group="g"), status=status)
    contested = NameContested(cast("LogServer", log), "broker-a")
    contested.take_answer(ONE, "")
    contested.take_answer(ONE, "10.0.0.1:10911")
    contested.take_answer(TWO, "10.0.0.1:10911")
    contested.take_answer(ONE, "10.0.0.2:10911")
    assert shown == {
        "name_contested": "by 10.0.0.2:10911 at 10.0.0.8:9876; by 10.0.0.1:10911 at 10.0.0.9:9876"
    }
    contested.take_answer(ONE, "")
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "rival=10.0.0.1:10911" in caplog.messages[0]
    contested.take_answer(TWO, "")
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
    assert shown == {"name_contested": ""}
    contested.take_answer(ONE, "x" * 1000)
    assert len(shown["name_contested"]) < 100
