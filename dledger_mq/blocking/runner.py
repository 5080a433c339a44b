"""An async client in a thread of its own, and methods that are carried there.

It knows nothing of what the client does. `blocking` and `in_loop` make the method of a blocking class from that
of the async class, with its signature and its docstring, so that neither is written twice.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from functools import wraps
from types import TracebackType
from typing import Concatenate, Generic, ParamSpec, Self, TypeVar

import trio

from dledger_mq.client.credentials import chosen_credentials, credentials_for_all
from dledger_mq.client.errors import ClientClosedError, ClientUsageError, ClosedMeanwhileError
from dledger_mq.client.tls import chosen_tls, tls_for_all

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Client_co = TypeVar(
    "_Client_co", bound=AbstractAsyncContextManager[object, bool | None], covariant=True
)


class Runner(Generic[_Client_co]):
    """Keeps an async client open in a trio thread and carries calls there."""

    def __init__(self, client: _Client_co) -> None:
        self._client = client
        # A thread begins without what was chosen for all clients where this one is made.
        self._chosen = chosen_tls(), chosen_credentials()
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop: trio.Event | None = None
        self._opened = threading.Event()
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0  # of the process in which the thread runs

    def open(self) -> Self:
        """Start the thread and wait until the client is open; raise what opening raised.

        A client that was closed, or could not be opened, may be opened again.

        Raises:
            ClientUsageError: it is open already, or was when this process was forked.
            What opening raises.
        """
        if self._is_inherited:
            raise ClientUsageError(f"{self._whose()}; make another one in this process")
        if self._thread is not None:
            raise ClientUsageError("it is open already")
        self._forget_last_run()
        thread = threading.Thread(target=self._run, name=type(self._client).__name__, daemon=True)
        self._thread, self._pid = thread, os.getpid()
        thread.start()
        self._opened.wait()
        if self._failure is not None:
            thread.join()
            self._thread = self._token = None
            raise self._failure
        assert self._token is not None, f"{thread.name} is open without a loop to call into"
        assert self._stop is not None, f"{thread.name} is open with nothing that would end it"
        return self

    def _forget_last_run(self) -> None:
        """Drop what an earlier `open` left, also one that failed: its event is set, its failure was raised."""
        self._token, self._stop, self._failure = None, None, None
        self._opened = threading.Event()

    def close(self) -> None:
        """Leave the client in order and end the thread; raise what leaving raised.

        In a process that was forked meanwhile it does nothing: the client goes on in the one that opened it.
        """
        if self._is_inherited or self._thread is None or self._token is None or self._stop is None:
            return
        thread, self._thread = self._thread, None
        with suppress(trio.RunFinishedError):  # it ended by itself; why, is raised below
            trio.from_thread.run_sync(self._stop.set, trio_token=self._token)
        thread.join()
        self._token = None
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:  # noqa: BLE001 - the root of this thread; raised in the caller's
            self._failure = error
        finally:
            self._opened.set()

    async def _main(self) -> None:
        tls, credentials = self._chosen
        with tls_for_all(tls), credentials_for_all(credentials):
            await self._keep_open()

    async def _keep_open(self) -> None:
        async with self._client:
            await self._work(trio.Event())

    async def _work(self, stop: trio.Event) -> None:
        """Let calls in, and keep the client open; end soon after `stop`."""
        self._token, self._stop = trio.lowlevel.current_trio_token(), stop
        self._opened.set()
        await stop.wait()

    @property
    def is_open(self) -> bool:
        """True between `open` and `close`, in the process that opened it."""
        return self._token is not None and self._thread is not None and not self._is_inherited

    @property
    def _is_inherited(self) -> bool:
        """True if the client was open when this process was forked: its thread is not here, and would never answer."""
        return self._thread is not None and self._pid != os.getpid()

    def _whose(self) -> str:
        return f"it was opened in process {self._pid}, from which this one was forked"

    def check_open(self) -> None:
        """Raise ClientClosedError unless the client is open here."""
        self._live_token()

    def _live_token(self) -> trio.lowlevel.TrioToken:
        """Return the token of the client's loop, read once: another thread may close it meanwhile.

        Raises:
            ClientClosedError: the client is not open here.
        """
        token = self._token
        if self._is_inherited:
            raise ClientClosedError(f"{self._whose()}; make another one in this process")
        if token is None or self._thread is None:
            raise ClientClosedError("not open; use it in a `with` block")
        return token

    def call(
        self, function: Callable[_P, Awaitable[_R]], *args: _P.args, **kwargs: _P.kwargs
    ) -> _R:
        """Run an async function in the client's thread and return its result.

        Raises:
            ClientClosedError: the client is not open, or was opened before this process was forked.
            ClosedMeanwhileError: it ended during the call.
            What the function raises.
        """
        token = self._live_token()

        async def run() -> _R:
            return await function(*args, **kwargs)

        try:
            return trio.from_thread.run(run, trio_token=token)
        except trio.RunFinishedError as error:
            raise ClientClosedError("the client has ended") from error
        except trio.Cancelled as error:
            raise ClosedMeanwhileError("the client ended during the call") from error

    def call_now(self, function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Run a function without `async` in the client's thread and return its result. Raises as `call`."""

        async def run() -> _R:
            return function(*args, **kwargs)

        return self.call(run)

    @property
    def client(self) -> _Client_co:
        """The async client; to be used in its thread only."""
        return self._client

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def blocking(
    method: Callable[Concatenate[_Client_co, _P], Awaitable[_R]],
) -> Callable[Concatenate[Runner[_Client_co], _P], _R]:
    """Make the blocking method of an async one."""

    @wraps(method)
    def wait(runner: Runner[_Client_co], /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return runner.call(method, runner.client, *args, **kwargs)

    return wait


def in_loop(
    method: Callable[Concatenate[_Client_co, _P], _R],
) -> Callable[Concatenate[Runner[_Client_co], _P], _R]:
    """Make the blocking method of one without `async`, which must not be called from other threads."""

    @wraps(method)
    def wait(runner: Runner[_Client_co], /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return runner.call_now(method, runner.client, *args, **kwargs)

    return wait
