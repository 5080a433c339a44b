"""Requests for locks while too much waits for its commit."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.server.handlers.locks import Locks
from broker.server.requests.request import PendingRequest
from dledger_mq.remoting.frame import FrameDecoder
from dledger_mq.remoting.header import RemotingCommand, decode_command
from tests.unit.server.lone_leader import Asker, LoneLeader
from tests.unit.server.pending import pending

BODY = (
    b'{"consumerGroup":"G","clientId":"c","mqSet":'
    b'[{"topic":"T","brokerName":"broker-a","queueId":0}]}'
)


@pytest.mark.parametrize(("code", "name"), [(41, "lock"), (42, "unlock")])
def test_more_than_may_wait_is_turned_away(
    code: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = LoneLeader()
    locks = Locks(
        leader.commits,
        leader.router,
        leader.state,
        cast("Any", SimpleNamespace(has_locked=lambda *_, **__: None)),
    )
    ask: Callable[[PendingRequest, RemotingCommand], None] = getattr(locks, name)

    def asked() -> list[RemotingCommand]:
        asker = Asker()
        command = RemotingCommand(code=code, opaque=9, body=BODY, version=409)
        ask(pending(asker, code, body=BODY), command)
        leader.commit()
        decoder = FrameDecoder()
        decoder.feed(b"".join(asker.frames))
        return [decode_command(frame) for frame in decoder.frames()]

    assert [answer.code for answer in asked()] == [0]
    monkeypatch.setattr(type(leader.commits), "is_full", True)
    (refused,) = asked()
    assert refused.code == 2
    assert "nothing was done" in (refused.remark or "")
