"""Configuration values kept consistent between several name servers, by PySyncObj.

RocketMQ's name servers drift apart when a tool reaches only some of them. Here a change is an entry of a
Raft log between the name servers: it is answered when a majority has it and this one has applied it.
Reads are local. The log runs in a thread of its own, with a journal on disk, and sends each change at
once instead of every 50 ms (`appendEntriesUseBatch=False`).

PySyncObj reads its peers' messages with pickle, which runs code that a message brings along. Its
password encryption authenticates every message before that, so a password is demanded, always.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import pysyncobj
import trio

from broker.namesrv.errors import KvUnavailableError, NameServerConfigError
from broker.namesrv.journal_check import journal_problem, last_term
from broker.namesrv.kv import check_limits
from broker.namesrv.vote_check import vote_problem
from dledger_mq.net.address import Address

_log = logging.getLogger(__name__)

_JOURNAL: Final = "kv.journal"
_VOTE: Final = "kv.journal.meta"  # the library's name for it

PASSWORD_CHARS_MIN: Final = 16
COMMIT_TIMEOUT_S: Final = 5.0
_RETRY_PAUSE_S: Final = 0.1
_LEADER_FALLBACK_S: Final = 5.0
_STOP_TIMEOUT_S: Final = 5.0

_SUCCESS: Final = pysyncobj.FAIL_REASON.SUCCESS
_SURELY_NOT_DONE: Final = {
    pysyncobj.FAIL_REASON.QUEUE_FULL: "too many changes wait",
    pysyncobj.FAIL_REASON.MISSING_LEADER: "no leader among the name servers",
    pysyncobj.FAIL_REASON.REQUEST_DENIED: "the change was denied",
}


@dataclass(frozen=True, slots=True)
class KvGroup:
    """The name servers that keep the values together.

    Attributes:
        listen: own address, as the others dial it.
        peers: addresses of the others.
        password: shared by all; encrypts and authenticates every message.
        folder: for the journal and its snapshot.
    """

    listen: Address
    peers: tuple[Address, ...]
    password: str
    folder: Path

    def check(self) -> None:
        """Refuse what is unsafe or cannot work.

        Raises:
            NameServerConfigError: names the values.
        """
        if len(self.password) < PASSWORD_CHARS_MIN:
            raise NameServerConfigError(
                f"--kv-password-file: the password between name servers has {len(self.password)} characters, at "
                f"least {PASSWORD_CHARS_MIN} are needed: it is all that keeps strangers from running code here"
            )
        if not self.peers:
            raise NameServerConfigError(
                "--kv-peers names no other name server; one that stands alone needs no --kv options"
            )
        for address in (self.listen, *self.peers):
            if not address.port:
                raise NameServerConfigError(
                    f"{address}: name servers reach each other at fixed ports; --kv-listen and --kv-peers need them "
                    "from 1 on"
                )
        if self.listen in self.peers:
            raise NameServerConfigError(
                f"--kv-peers names {self.listen}, which is --kv-listen: name the other name servers only"
            )


class _Values(pysyncobj.SyncObjConsumer):  # type: ignore[misc]  # the library has no types
    """The replicated table. Changed only by the log's thread; a dict lookup is atomic."""

    def __init__(self) -> None:
        super().__init__()
        self.table: dict[tuple[str, str], str] = {}

    @pysyncobj.replicated  # type: ignore[untyped-decorator]  # the library has no types
    def put(self, namespace: str, key: str, value: str) -> None:
        """Change the table; applied on every name server in the order of the log."""
        self.table[namespace, key] = value

    @pysyncobj.replicated  # type: ignore[untyped-decorator]  # the library has no types
    def delete(self, namespace: str, key: str) -> None:
        """Change the table; applied on every name server in the order of the log."""
        self.table.pop((namespace, key), None)


class _Change(Protocol):
    """A replicated method of `_Values`, as PySyncObj makes it: it calls back with a FAIL_REASON."""

    def __call__(self, *arguments: str, callback: Callable[[object, int], None]) -> None: ...


class ReplicatedKv:
    """The values, as this name server sees them."""

    def __init__(self, group: KvGroup) -> None:
        """Join the group; the thread runs from here on.

        Raises:
            NameServerConfigError: unsafe settings, or the own address is taken.
        """
        group.check()
        _check_free(group.listen)
        self._values = _Values()
        self._coming: list[tuple[str, str, str]] = []
        try:
            group.folder.mkdir(parents=True, exist_ok=True)
            _check_journal(group.folder / _JOURNAL)
            self._log = _open_log(group, self._values)
        except (OSError, ValueError) as error:
            # The library's own: an empty journal cannot be mapped, for one.
            raise NameServerConfigError(
                f"--store {group.folder}: the journal between name servers cannot be used: {error}"
            ) from error

    @property
    def is_ready(self) -> bool:
        """True while a leader is known and the journal was applied."""
        return bool(self._log.isReady())

    def get(self, namespace: str, key: str) -> str | None:
        """Return one value, as applied here, or None."""
        return self._values.table.get((namespace, key))

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """Return all values of a namespace as applied here; None when it has none."""
        # list() of a dict's items is one step of the interpreter: the log's thread cannot come between.
        found = {
            key: value
            for (name, key), value in list(self._values.table.items())
            if name == namespace
        }
        return found or None

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value; a majority has it when this returns.

        Raises:
            KvLimitError: over a bound.
            KvUnavailableError: no majority within COMMIT_TIMEOUT_S.
        """
        # list() as in `namespace`. Those on their way count, too: many could come before the first is applied.
        kept = [(*at, text) for at, text in list(self._values.table.items())]
        check_limits(namespace, key, value, [*kept, *self._coming])
        change = (namespace, key, value)
        self._coming.append(change)
        try:
            await self._commit(self._values.put, change)
        finally:
            self._coming.remove(change)

    async def delete(self, namespace: str, key: str) -> None:
        """Delete a value; a majority has it when this returns.

        Raises:
            KvUnavailableError: no majority within COMMIT_TIMEOUT_S.
        """
        await self._commit(self._values.delete, (namespace, key))

    async def _commit(self, change: _Change, arguments: Sequence[str]) -> None:
        """Propose until it is committed or the time is over; changes may be made twice without harm."""
        reason = "no majority of the name servers answered"
        attempts = doubtful = 0
        with trio.move_on_after(COMMIT_TIMEOUT_S):
            while True:
                attempts += 1
                doubtful += 1  # until it is known: the time may be over while it is not
                assert 0 < doubtful <= attempts, f"{doubtful} of {attempts} attempts are in doubt"
                failure = await self._propose(change, arguments)
                if failure == _SUCCESS:
                    return
                doubtful -= failure in _SURELY_NOT_DONE
                reason = _SURELY_NOT_DONE.get(failure, "the leader of the name servers changed")
                await trio.sleep(_RETRY_PAUSE_S)
        doubt = "; the change may still be made" if doubtful else ""
        raise KvUnavailableError(
            f"not committed within {COMMIT_TIMEOUT_S:.0f} s ({attempts} attempts): {reason}{doubt}",
            definite=not doubtful,
        )

    async def _propose(self, change: _Change, arguments: Sequence[str]) -> int:
        """Propose a change and wait for its failure code.

        The callback runs in PySyncObj's thread, so it only wakes trio.
        """
        token = trio.lowlevel.current_trio_token()
        decided = trio.Event()
        outcome: list[int] = []

        def on_decided(_: object, failure: int) -> None:
            outcome.append(failure)
            try:
                token.run_sync_soon(decided.set)
            except trio.RunFinishedError:
                _log.debug("a change was decided after the name server stopped")

        change(*arguments, callback=on_decided)
        await decided.wait()
        return outcome[0]

    async def close(self) -> None:
        """Stop the thread, within bounded time."""
        with trio.move_on_after(_STOP_TIMEOUT_S):
            await trio.to_thread.run_sync(self._log.destroy_synchronous, abandon_on_cancel=True)


def _open_log(group: KvGroup, values: _Values) -> pysyncobj.SyncObj:
    """Open the journal and start the thread; raises what the library raises."""
    return pysyncobj.SyncObj(
        str(group.listen),
        [str(peer) for peer in group.peers],
        pysyncobj.SyncObjConf(
            password=group.password,
            journalFile=str(group.folder / _JOURNAL),
            fullDumpFile=str(group.folder / "kv.snapshot"),
            appendEntriesUseBatch=False,
            dynamicMembershipChange=False,
            commandsWaitLeader=False,
            leaderFallbackTimeout=_LEADER_FALLBACK_S,
            useFork=False,
        ),
        consumers=[values],
    )


def _check_journal(path: Path) -> None:
    """Refuse a damaged journal, or a damaged vote: the library might begin an empty one in its place.

    Raises:
        NameServerConfigError: says what is wrong, and what to do.
        OSError: it cannot be read.
    """
    problem = journal_problem(path)
    if problem is None:
        path = path.with_name(_VOTE)
        problem = vote_problem(path, last_term(path.with_name(_JOURNAL)))
    if problem is not None:
        raise NameServerConfigError(
            f"{path} is damaged: {problem}. Nothing was changed. If a majority of the other name servers is whole, "
            "move all that begins with kv. out of this folder: this one gets the values from them"
        )


def _check_free(address: Address) -> None:
    """Refuse an address that is taken: the library would retry forever and log nothing.

    Raises:
        NameServerConfigError: it cannot be bound.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            raise NameServerConfigError(
                f"--kv-listen {address}: this name server cannot listen there: {error.strerror or error}"
            ) from error
