"""What the connections' turn staged is proposed with it; what others stage is proposed soon."""

from __future__ import annotations

import pytest

from broker.server.watches.digest_watch import DigestWatch
from dledger.raft.ids import EntryId
from dledger.runtime.callers import Done
from dledger.runtime.log_appender import LogAppender
from tests.integration.broker.conftest import ClusterMaker, send_ext

pytestmark = pytest.mark.slow

BODY = b"sent in the same turn"


async def test_sends_of_one_turn_are_proposed_in_it_together(
    make_cluster: ClusterMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A mark may fall due at any time, and is staged by nobody's turn.
    monkeypatch.setattr(DigestWatch, "mark", lambda _: None)
    cluster = await make_cluster(1)
    broker = await cluster.leader()
    calls: list[str] = []
    for name in ("gather_soon", "gather_now"):
        original = getattr(LogAppender, name)

        def count(self: LogAppender, name: str = name, original: object = original) -> None:
            calls.append(name)
            original(self)  # type: ignore[operator]  # a method of LogAppender

        monkeypatch.setattr(LogAppender, name, count)
    proposed: list[bytes] = []
    propose = LogAppender.propose

    def note(self: LogAppender, body: bytes, done: Done) -> EntryId:
        proposed.append(body)
        return propose(self, body, done)

    monkeypatch.setattr(LogAppender, "propose", note)
    async with cluster.wire(broker) as wire:
        assert (await wire.send("T")).code == 0
        await cluster.wait(lambda: not broker.log.appender.pending_count)
        calls.clear()
        opaques = [wire.send_request(310, send_ext("T", 0), BODY) for _ in range(8)]
        for opaque in opaques:
            assert (await wire.answer(opaque)).code == 0
        assert calls[0] == "gather_now"
        with_sends = [body for body in proposed if BODY in body]
        assert sum(body.count(BODY) for body in with_sends) == len(opaques)
        assert len(with_sends) <= calls.count("gather_now")
        calls.clear()
        offset = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "1"}
        assert (await wire.ask(15, offset)).code == 0
        assert set(calls) == {"gather_soon"}, (
            "offsets gather for a while, whose end is nobody's turn"
        )
