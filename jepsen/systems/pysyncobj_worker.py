"""A member of a PySyncObj group that keeps a list: `python -m jepsen.systems.pysyncobj_worker`.

It answers JSON lines on a port of its own:

    {"f": "append", "record": [key, element]}   {"type": "ok"}, or "fail"/"info" with an "error"
    {"f": "read"}                               {"type": "ok", "records": [...]} from its own state, at the leader only,
                                                and once PySyncObj says that it is ready
    {"f": "status"}                             {"is_leader", "leader", "term", "count", "digest"}

An append is answered once PySyncObj says that it is committed and applied. A read is what the member that believes to
lead has applied: PySyncObj offers no other.
"""

from __future__ import annotations

import argparse
import sys
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import pysyncobj
import trio

from jepsen.clients.json_lines import JsonLines, LineError

ANSWER_TIMEOUT_S: Final = 4.0

_SURELY_NOT_DONE: Final = {
    pysyncobj.FAIL_REASON.QUEUE_FULL: "the queue is full",
    pysyncobj.FAIL_REASON.MISSING_LEADER: "no leader",
    pysyncobj.FAIL_REASON.REQUEST_DENIED: "denied",
}


class WorkerRequest(msgspec.Struct):
    """One question of a client; `record` is (key, element), for an append."""

    f: str
    record: tuple[str, int] | None = None


class Records(pysyncobj.SyncObjConsumer):  # type: ignore[misc]  # the library has no types
    """The replicated list; changed by the library's thread alone.

    Attributes:
        state: the records and the checksum over them, replaced together so that a reader finds them equal.
    """

    def __init__(self) -> None:
        super().__init__()
        self.state: tuple[list[tuple[str, int]], int] = ([], 0)

    @pysyncobj.replicated  # type: ignore[untyped-decorator]  # the library has no types
    def append(self, key: str, element: int) -> None:
        """Append an element; applied on every member, in the order of the log."""
        records, digest = self.state
        records.append((key, element))
        self.state = (records, zlib.crc32(f"{key} {element}".encode(), digest))


class PySyncObjMember:
    """One member and its port for clients."""

    def __init__(self, own: str, others: Sequence[str], folder: Path, password: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._records = Records()
        self._log = pysyncobj.SyncObj(
            own,
            list(others),
            pysyncobj.SyncObjConf(
                password=password,
                journalFile=str(folder / "journal"),
                appendEntriesUseBatch=False,
                dynamicMembershipChange=False,
                commandsWaitLeader=False,
                useFork=False,
            ),
            consumers=[self._records],
        )

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one client until it disconnects."""
        lines = JsonLines(stream)
        async with lines:
            try:
                while True:
                    await lines.send(await self._answer(await lines.receive()))
            except (LineError, trio.BrokenResourceError):
                return

    async def _answer(self, question: object) -> dict[str, object]:
        """Answer one question; a read is refused by a follower, whose state may be old."""
        asked = msgspec.convert(question, WorkerRequest)
        match asked.f:
            case "append" if asked.record is not None:
                return await self._append(*asked.record)
            case "read":
                # `_isLeader` is what the library's own documents call.
                if not (self._log._isLeader() and self._log.isReady()):  # noqa: SLF001 - as said
                    return {"type": "fail", "error": "not the leader", "leader": self._leader()}
                return {"type": "ok", "records": self._records.state[0]}
            case _:
                records, digest = self._records.state
                return {
                    "is_leader": self._log._isLeader(),  # noqa: SLF001 - as above
                    "leader": self._leader(),
                    "term": self._log._getTerm(),  # noqa: SLF001 - as above
                    "count": len(records),
                    "digest": f"{digest:08x}",
                }

    def _leader(self) -> str:
        return str(self._log._getLeader() or "")  # noqa: SLF001 - as above

    async def _append(self, key: str, element: int) -> dict[str, object]:
        """Append through the library, which calls back from its own thread; a timeout is an unknown outcome."""
        token = trio.lowlevel.current_trio_token()
        decided = trio.Event()
        outcome: list[int] = []

        def on_decided(_: object, failure: int) -> None:
            outcome.append(failure)
            token.run_sync_soon(decided.set)

        self._records.append(key, element, callback=on_decided)
        with trio.move_on_after(ANSWER_TIMEOUT_S):
            await decided.wait()
        if not outcome:
            return {"type": "info", "error": f"not decided within {ANSWER_TIMEOUT_S} s"}
        (failure,) = outcome
        if failure == pysyncobj.FAIL_REASON.SUCCESS:
            return {"type": "ok"}
        if failure in _SURELY_NOT_DONE:
            return {"type": "fail", "error": _SURELY_NOT_DONE[failure], "leader": self._leader()}
        return {"type": "info", "error": f"PySyncObj says {failure}"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until killed."""
    parser = argparse.ArgumentParser(prog="python -m jepsen.systems.pysyncobj_worker")
    parser.add_argument("--own", required=True, metavar="HOST:PORT")
    parser.add_argument("--other", action="append", default=[], metavar="HOST:PORT")
    parser.add_argument("--listen", required=True, type=int, metavar="PORT")
    parser.add_argument("--store", required=True, type=Path)
    parser.add_argument("--password", required=True, help="between members of this test only")
    options = parser.parse_args(arguments)
    member = PySyncObjMember(options.own, options.other, options.store, options.password)
    trio.run(partial(trio.serve_tcp, member.serve, options.listen, host="127.0.0.1"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
