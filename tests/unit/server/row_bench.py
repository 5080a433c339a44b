"""Sends of rows to the leader of `test_repeated_sends.Bench`."""

from __future__ import annotations

from typing import cast

from dledger import LeadershipLostError
from dledger.raft.entry import EntryKind
from dledger_mq.message.batch import BatchItem, encode_batch
from dledger_mq.message.properties import encode_properties
from dledger_mq.message.record import decode_records
from dledger_mq.remoting.frame import Frame
from dledger_mq.remoting.header import RemotingCommand, encode_command
from dledger_mq.remoting.requests import SendRequest, decode_request
from tests.unit.server.pending import pending
from tests.unit.server.test_repeated_sends import Bench, Origin


def mark(key: int, sink: str) -> str:
    return f"{key:016x} {sink}"


def row_frame(sink: str, keys: list[int], *, topic: str = "T", **named: str) -> Frame:
    """The request frame of a send of rows; the body of each is its key."""
    items = [(b"%d" % key, {"SINK_ROW": mark(key, sink)} | named) for key in keys]
    ext = {"a": "P", "b": topic, "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1", "h": "0"}
    ext["dledgerSinkBatch"] = sink
    if len(items) == 1:
        body = items[0][0]
        ext["i"] = encode_properties(items[0][1]).decode()
    else:
        body = encode_batch(BatchItem(0, one, encode_properties(some)) for one, some in items)
        ext["m"] = "true"
    whole = encode_command(RemotingCommand(code=310, opaque=7, ext=ext, body=body))
    header_length = int.from_bytes(whole[4:8], "big") & 0xFFFFFF
    return Frame(0, whole[8 : 8 + header_length], whole[8 + header_length :])


class RowBench(Bench):
    """A leader to which rows are sent; `answer` gives what was told."""

    def rows(self, sink: str, *keys: int, topic: str = "T", **named: str) -> Origin:
        origin = Origin()
        self.serve(origin, row_frame(sink, list(keys), topic=topic, **named))
        return origin

    def serve(self, origin: Origin, frame: Frame) -> None:
        request = decode_request(frame)
        assert isinstance(request, SendRequest)
        self.sends.send(pending(origin, 310, body=frame.body, command=request, opaque=7), request)

    def bring_held(self) -> None:
        """What was parked goes to the leader again."""
        held, self.router.held = self.router.held, []
        for request in held:
            self.sends.send(request, cast("SendRequest", request.command))

    def fail_over(self, survives: int = 0) -> None:
        """The leader dies: of what was proposed the first entries survive."""
        proposed = [entry for entry, _ in self.log._open]
        kept = proposed[:survives]
        del self.log.entries[len(self.log.entries) - len(proposed) + len(kept) :]
        self.commits.lost(LeadershipLostError("gone"))  # type: ignore[arg-type]  # told as unknown
        self.log.lose(LeadershipLostError("gone"))
        self.state.apply(kept)
        self.new_term()

    def bodies(self) -> list[bytes]:  # type: ignore[override]  # of all, not of one request
        """Of all committed messages of topic T, in the order of the log."""
        return [
            record.body
            for entry in self.log.entries
            if entry.kind is EntryKind.NORMAL and entry.index <= self.state.applied_index
            for record in decode_records(entry.body)
            if record.topic == "T"
        ]


def result_of(origin: Origin) -> str:
    """Which rows were stored; the refusal's text if it was refused."""
    (answer,) = origin.answers()
    return answer.ext["dledgerRowsStored"] if answer.code == 0 else str(answer.remark)
