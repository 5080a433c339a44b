"""SyncClient: the calls of `Client` as blocking functions, for programs without trio.

The connections live in a thread of their own, so they outlast single calls. Any thread may call.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import TypeVar

import trio

from dledger.codec.client_rpc import StatusAnswer
from dledger.config import Peer
from dledger.errors import DLedgerError, OutcomeUnknownError, UsageError
from dledger.group_secret import GroupSecret
from dledger.member_tls import MemberTls
from dledger.raft.entry import Entry
from dledger.raft.ids import EntryId, NodeId
from dledger.runtime.client import TIMEOUT_S, Client

Answer = TypeVar("Answer")


class SyncClient:
    """A client for programs without trio: `with SyncClient(...) as client`. Errors are those of `Client`."""

    def __init__(
        self,
        peers: str | tuple[Peer, ...],
        *,
        group: str = "default",
        secret: GroupSecret | str | None = None,
        tls: MemberTls | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Set up the client; the arguments are those of `Client`."""
        self._client = Client(peers, group=group, secret=secret, tls=tls, timeout_s=timeout_s)
        self._thread: threading.Thread | None = None
        self._is_open = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._end: trio.Event | None = None

    def __enter__(self) -> SyncClient:
        self._thread = threading.Thread(target=trio.run, args=(self._run,), daemon=True)
        self._thread.start()
        self._is_open.wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._thread is not None, "the client is left and was not entered"
        assert self._token is not None, "the client is left twice"
        assert self._end is not None, "the client's loop has not begun"
        trio.from_thread.run_sync(self._end.set, trio_token=self._token)
        self._thread.join()
        self._token = None

    async def _run(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._end = trio.Event()
        async with self._client:
            self._is_open.set()
            await self._end.wait()

    def _call(self, call: Callable[[], Awaitable[Answer]]) -> Answer:
        if self._token is None:
            raise UsageError("the client is used outside `with`")
        try:
            return trio.from_thread.run(call, trio_token=self._token)
        except trio.RunFinishedError:
            raise UsageError("the client is closed") from None
        except trio.Cancelled:
            raise OutcomeUnknownError("the client was closed during the call") from None

    def append(
        self, body: bytes, *, timeout_s: float | None = None, retry_unknown: bool = False
    ) -> EntryId:
        """Append as `Client.append` does."""
        return self._call(
            lambda: self._client.append(body, timeout_s=timeout_s, retry_unknown=retry_unknown)
        )

    def get(
        self,
        index: int,
        count: int = 1,
        *,
        timeout_s: float | None = None,
        local: NodeId | None = None,
    ) -> list[Entry]:
        """Read as `Client.get` does."""
        return self._call(lambda: self._client.get(index, count, timeout_s=timeout_s, local=local))

    def status(
        self, *, timeout_s: float | None = None
    ) -> Mapping[NodeId, StatusAnswer | DLedgerError]:
        """Ask as `Client.status` does."""
        return self._call(lambda: self._client.status(timeout_s=timeout_s))

    def transfer(self, target: NodeId | None = None, *, timeout_s: float | None = None) -> NodeId:
        """Hand over as `Client.transfer` does."""
        return self._call(lambda: self._client.transfer(target, timeout_s=timeout_s))
