"""Client: append to a group and read from it, wherever its leader is.

What a caller may conclude (errors.py): a return is done; `RefusedError` surely did not happen;
`OutcomeUnknownError` may have happened, or may yet. An append whose answer was lost is not sent
again behind the caller's back: it could then stand in the log twice. Who can live with that, or
recognises duplicates, asks for `retry_unknown`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final, TypeVar

import trio

from dledger.codec.client_rpc import (
    AppendAnswer,
    AppendCall,
    EntriesAnswer,
    GetCall,
    MembersAnswer,
    MembersCall,
    StatusAnswer,
    StatusCall,
    TransferAnswer,
    TransferCall,
)
from dledger.codec.log_members import decode_log_members
from dledger.codec.rpc import decode_entries
from dledger.config import Peer, parse_peers, peer_at
from dledger.errors import (
    DeadlineError,
    DLedgerError,
    HandshakeRefusedError,
    NotLeaderError,
    OutcomeUnknownError,
    OutOfRangeError,
    PeerProtocolError,
    RefusedError,
    StoppingError,
    TransferFailedError,
    UnreachableError,
    UsageError,
)
from dledger.group_secret import GroupSecret
from dledger.member_tls import MemberTls
from dledger.raft.configuration import MemberChange
from dledger.raft.entry import Entry
from dledger.raft.ids import EntryId, Index, NodeId, Term
from dledger.runtime.handshake import Identity
from dledger.runtime.leader_search import LeaderSearch
from dledger.runtime.member_connection import MemberConnection, open_member_connection

TIMEOUT_S: Final = 10.0
"""Ten elections: longer than any planned restart of a leader."""

ATTEMPT_TIMEOUT_S: Final = 2.0
"""For calls that may be repeated: how long one member may be silent before another is asked."""

ANSWER_BYTES_MAX: Final = 128 * 1024 * 1024
"""Largest answer: one entry of the largest configurable body."""

GET_BYTES_MAX: Final = 4 * 1024 * 1024

MEMBERS_TIMEOUT_S: Final = 6.0
"""A leader has answered by then, or leads no longer."""

MEMBERS_ATTEMPT_S: Final = 0.2
"""A request that would have less than this to be answered is not sent."""

KNOWN_MAX: Final = 16
"""Members that a client knows; of those that were not named to it, some that it does not use are forgotten."""

Answered = TypeVar("Answered")


class Client:
    """A client of a log group, used as `async with Client(...) as client`. Calls may run at the same time.

    Invariant: at most one connection to each member.
    """

    def __init__(
        self,
        peers: str | tuple[Peer, ...],
        *,
        group: str = "default",
        secret: GroupSecret | str | None = None,
        tls: MemberTls | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Set up a client without connections; each is opened at its first use.

        Args:
            peers: all members, such as `n0-127.0.0.1:20911;n1-127.0.0.1:20912`.
            group: name of the group.
            secret: the group's secret, if it has one.
            tls: encrypts its connections; None: they are plain text.
            timeout_s: for calls that name no other.

        Raises:
            ConfigError: the peers cannot be read.
        """
        self.peers = parse_peers(peers) if isinstance(peers, str) else peers
        self.group = group
        self.timeout_s = timeout_s
        self._by_id = {peer.node_id: peer for peer in self.peers}
        self._identity = Identity.of_client(group, frozenset(self._by_id), secret, tls)
        self._connections: dict[NodeId, MemberConnection] = {}
        self._given = frozenset(self._by_id)
        self._locks = {node_id: trio.Lock() for node_id in self._by_id}
        self._leader_id = self.peers[0].node_id
        self._nursery: trio.Nursery | None = None
        self._stack: AsyncExitStack | None = None

    async def __aenter__(self) -> Client:
        async with AsyncExitStack() as stack:
            self._nursery = await stack.enter_async_context(trio.open_nursery())
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Fail all waiting calls, then end the connections' tasks: no caller may be left waiting for an answer."""
        assert self._stack is not None, "the client is left and was not entered"
        assert self._nursery is not None, "the client is left twice"
        for connection in self._connections.values():
            connection.close("the client was closed")
        self._nursery.cancel_scope.cancel()
        self._nursery = None
        await self._stack.aclose()

    # Calls.

    async def append(
        self, body: bytes, *, timeout_s: float | None = None, retry_unknown: bool = False
    ) -> EntryId:
        """Append one entry; return when it is committed.

        Args:
            body: of the entry.
            timeout_s: until when to try; when it is over nothing more is sent.
            retry_unknown: after an unknown outcome send it again, though it may then stand twice.

        Raises:
            RefusedError: it surely did not happen.
            OutcomeUnknownError: it may have happened, or may yet. Cancelling means the same.
        """

        async def attempt(connection: MemberConnection, remaining_s: float) -> EntryId:
            timeout = min(remaining_s, ATTEMPT_TIMEOUT_S) if retry_unknown else remaining_s
            answer, _ = await connection.ask(
                AppendCall(connection.next_token()), body, timeout_s=timeout
            )
            if not isinstance(answer, AppendAnswer):
                raise OutcomeUnknownError(f"{connection.peer} answered an append with {answer}")
            return EntryId(Term(answer.term), Index(answer.index))

        return await self._at_leader(attempt, self._search(timeout_s), may_repeat=retry_unknown)

    async def get(
        self,
        index: int,
        count: int = 1,
        *,
        timeout_s: float | None = None,
        local: NodeId | None = None,
    ) -> list[Entry]:
        """Return committed entries from `index`: at least one, fewer than `count` only where the log ends.

        Without `local` this is a linearizable read: the leader confirms that it still leads, so an entry that was
        acknowledged to anybody before the call is there. A large range is read in parts, and ends where the log
        ended at the last part.

        Args:
            index: of the first entry, from 1.
            count: at most so many.
            timeout_s: until when to try, all parts together.
            local: ask this member what it has, instead of the leader; it may not have the newest.

        Raises:
            OutOfRangeError, CompactedError: the first entry is not there.
            RefusedError: not all of it could be read in time; what was read before is not returned, for it would
                look like the end of the log.
        """
        if index < 1 or count < 1:
            raise UsageError(f"index={index} and count={count} must be at least 1")
        if local is not None and local not in self._by_id:
            raise UsageError(f"{local} is none of the members {', '.join(self._by_id)}")
        entries: list[Entry] = []
        search = self._search(timeout_s)
        while len(entries) < count:
            first = Index(index + len(entries))
            wanted = count - len(entries)
            try:
                entries += await self._get_some(first, wanted, search, local)
            except OutOfRangeError:
                if entries:
                    break
                raise
        return entries

    async def _get_some(
        self, index: Index, count: int, search: LeaderSearch, local: NodeId | None
    ) -> list[Entry]:
        """Return at least one entry, from `index` on; a failed read is always a definite error."""

        async def attempt(connection: MemberConnection, remaining_s: float) -> list[Entry]:
            """Ask one member, and check that the answer begins at `index` and holds no more than was asked for."""
            call = GetCall(
                connection.next_token(),
                index=index,
                count=count,
                bytes_max=GET_BYTES_MAX,
                local=local is not None,
            )
            answer, blob = await connection.ask(call, timeout_s=min(remaining_s, ATTEMPT_TIMEOUT_S))
            if not isinstance(answer, EntriesAnswer):
                raise PeerProtocolError(f"{connection.peer} answered a get with {answer}")
            entries = decode_entries((blob,), answer.count)
            if not 1 <= len(entries) <= count or entries[0].index != index:
                raise PeerProtocolError(f"{connection.peer} answered with other entries")
            return list(entries)

        try:
            if local is None:
                return await self._at_leader(attempt, search, may_repeat=True)
            connection = await self._connect_in_time(local, search)
            return await attempt(connection, search.remaining_s)
        except OutcomeUnknownError as error:
            # A read changes nothing, so its outcome is never in doubt.
            raise RefusedError(f"nothing was read: {error}") from error

    async def status(
        self, *, timeout_s: float | None = None, asks_all: bool = False
    ) -> Mapping[NodeId, StatusAnswer | DLedgerError]:
        """Return each member's status, or the error of asking it, in the order of the peers.

        Args:
            timeout_s: until when to try.
            asks_all: ask those, too, whom these name as members of the log.
        """
        found: dict[NodeId, StatusAnswer | DLedgerError] = {}
        search = self._search(timeout_s)

        async def ask(node_id: NodeId) -> None:
            try:
                found[node_id] = await self._status_of(node_id, search)
            except DLedgerError as error:
                found[node_id] = error

        async with trio.open_nursery() as nursery:
            for node_id in self._by_id:
                nursery.start_soon(ask, node_id)
        for answer in [*found.values()] if asks_all else []:
            if isinstance(answer, StatusAnswer):
                for member in decode_log_members(answer.attributes).members:
                    self.know(peer_at(NodeId(member.id), member.address))
        async with trio.open_nursery() as nursery:
            for node_id in self._by_id.keys() - found.keys():
                nursery.start_soon(ask, node_id)
        return {node_id: found[node_id] for node_id in self._by_id}

    def address_of(self, node_id: NodeId) -> str:
        """Return the `host:port` at which this client looks for a member that it knows."""
        return self._by_id[node_id].address

    async def _status_of(self, node_id: NodeId, search: LeaderSearch) -> StatusAnswer:
        connection = await self._connect_in_time(node_id, search)
        answer, _ = await connection.ask(
            StatusCall(connection.next_token()),
            timeout_s=min(search.remaining_s, ATTEMPT_TIMEOUT_S),
        )
        if not isinstance(answer, StatusAnswer):
            raise PeerProtocolError(f"{connection.peer} answered a status call with {answer}")
        return answer

    async def transfer(
        self, target: NodeId | None = None, *, timeout_s: float | None = None
    ) -> NodeId:
        """Hand leadership to `target`, or to the best follower; return who was asked to lead.

        Raises:
            RefusedError: it was not handed over.
            OutcomeUnknownError: it may have been; `status` shows it.
        """

        # Whether the target is a member the leader knows: others may have been added since this client was set up.
        async def attempt(connection: MemberConnection, remaining_s: float) -> NodeId:
            answer, _ = await connection.ask(
                TransferCall(connection.next_token(), target or ""), timeout_s=remaining_s
            )
            if not isinstance(answer, TransferAnswer):
                raise OutcomeUnknownError(f"{connection.peer} answered a transfer with {answer}")
            return NodeId(answer.target)

        return await self._at_leader(attempt, self._search(timeout_s), may_repeat=False)

    async def members(self, *, timeout_s: float | None = None) -> MembersAnswer:
        """Return who the members are, as the leader knows after a read point.

        Raises:
            RefusedError: it could not be found out in time.
        """
        try:
            return await self._at_members(lambda token: MembersCall(token), timeout_s)
        except OutcomeUnknownError as error:
            # A read changes nothing, so its outcome is never in doubt.
            raise RefusedError(f"nothing was read: {error}") from error

    async def change_members(
        self, change: MemberChange, *, timeout_s: float | None = None
    ) -> MembersAnswer:
        """Change the members by one; return who they are once that is committed.

        It is asked for again where an answer is lost, or where it cannot be granted yet: a change that was made already
        is granted, and nothing is changed then.

        Raises:
            UsageError, RefusedError: nothing was changed; the error says why.
            OutcomeUnknownError: they may have been changed, or may yet; `members` shows it.
        """
        return await self._at_members(
            lambda token: MembersCall(
                token,
                change.kind.value,
                change.node_id,
                change.addresses.get(change.node_id, ""),
                change.is_joining,
            ),
            timeout_s,
        )

    async def _at_members(
        self, call_with: Callable[[int], MembersCall], timeout_s: float | None
    ) -> MembersAnswer:
        """Ask the leader with what `call_with` makes of a token."""

        async def attempt(connection: MemberConnection, remaining_s: float) -> MembersAnswer:
            if remaining_s < MEMBERS_ATTEMPT_S:
                # What is sent and not answered would be of unknown outcome, for nothing.
                raise DeadlineError(f"{remaining_s:.3g} s are not enough to ask {connection.peer}")
            timeout = min(remaining_s, MEMBERS_TIMEOUT_S)
            answer, _ = await connection.ask(call_with(connection.next_token()), timeout_s=timeout)
            if not isinstance(answer, MembersAnswer):
                raise OutcomeUnknownError(f"{connection.peer} answered {type(answer).__name__}")
            return answer

        return await self._at_leader(attempt, self._search(timeout_s), may_repeat=True)

    # Finding the leader.

    def know(self, peer: Peer | None, *, is_sure: bool = False) -> None:
        """Ask this member, too, from now on, at this address once no connection to an earlier one is open.

        Args:
            peer: a member; None: nobody.
            is_sure: its address goes before the one that this client was started with.
        """
        if peer is None:
            return
        if peer.node_id in self._by_id:
            if is_sure or peer.node_id not in self._given:
                self._by_id[peer.node_id] = peer
            return
        while len(self._by_id) >= KNOWN_MAX:
            unused = next(filter(self._is_unused, self._by_id), None)
            if unused is None:
                return
            del self._by_id[unused]
        self._by_id[peer.node_id] = peer
        self._locks[peer.node_id] = trio.Lock()

    def _is_unused(self, node_id: NodeId) -> bool:
        """Return whether a member may be forgotten: nobody named it to this client, and no call is on its way there."""
        if node_id in self._given or node_id == self._leader_id or self._locks[node_id].locked():
            return False
        connection = self._connections.get(node_id)
        return connection is None or connection.is_over

    def _search(self, timeout_s: float | None) -> LeaderSearch:
        return LeaderSearch(self.timeout_s if timeout_s is None else timeout_s)

    async def _at_leader(
        self,
        attempt: Callable[[MemberConnection, float], Awaitable[Answered]],
        search: LeaderSearch,
        *,
        may_repeat: bool,
    ) -> Answered:
        """Retry at the leader until the call succeeds, is refused for good, has an unknown outcome, or time is up."""
        try:
            return await self._try_leaders(attempt, search, may_repeat=may_repeat)
        except DLedgerError as error:
            if error.definite and search.is_unknown:
                raise search.failure() from error
            raise

    async def _try_leaders(
        self,
        attempt: Callable[[MemberConnection, float], Awaitable[Answered]],
        search: LeaderSearch,
        *,
        may_repeat: bool,
    ) -> Answered:
        """Try as `_at_leader` does; what is raised is true of the last attempt only."""
        while search.remaining_s > 0:
            node_id = self._leader_id
            try:
                connection = await self._connect_in_time(node_id, search)
                return await attempt(connection, search.remaining_s)
            except DeadlineError as error:
                search.too_late(error)
                break
            except OutcomeUnknownError as error:
                search.unknown(error)
                self._try_next(node_id)
                if not may_repeat:
                    raise
            except NotLeaderError as error:
                search.refused(error)
                if self._follow(node_id, error) and search.may_follow_at_once():
                    continue
            except RefusedError as error:
                search.refused(error)
                if not error.retriable or isinstance(error, TransferFailedError):
                    raise
                if isinstance(error, StoppingError):
                    self._try_next(node_id)
                if isinstance(error, UnreachableError | HandshakeRefusedError):
                    search.not_connected(node_id, error)
                    if search.is_turned_away_by_all(self._by_id):
                        raise search.failure() from error
                    self._try_next(node_id)
            await search.pause()
        raise search.failure()

    def _follow(self, node_id: NodeId, error: NotLeaderError) -> bool:
        """Go on at the leader that a member named; return False when it knows no other."""
        leader_id = NodeId(error.leader_id or "")
        if leader_id and leader_id not in self._by_id:
            self.know(peer_at(leader_id, error.leader_address))
        if leader_id not in self._by_id or leader_id == node_id:
            self._try_next(node_id)
            return False
        self._leader_id = leader_id
        return True

    def _try_next(self, node_id: NodeId) -> None:
        """Try another member from now on, unless a concurrent call has already switched."""
        if self._leader_id == node_id:
            names = list(self._by_id)
            self._leader_id = names[(names.index(node_id) + 1) % len(names)]

    async def _connect_in_time(self, node_id: NodeId, search: LeaderSearch) -> MemberConnection:
        """Return the connection to a member.

        Raises:
            DeadlineError: not before the time is over.
            RefusedError: there is none to be had.
        """
        remaining_s = search.remaining_s
        if remaining_s > 0:
            with trio.move_on_after(remaining_s):
                return await self._connect(node_id)
        raise DeadlineError(f"no connection to {self._by_id[node_id]} before the time was over")

    async def _connect(self, node_id: NodeId) -> MemberConnection:
        """Return the connection to a member, opened when there is none.

        Raises:
            RefusedError: there is none to be had.
        """
        nursery = self._nursery
        if nursery is None:
            raise UsageError("the client is used outside `async with`")
        async with self._locks[node_id]:
            connection = self._connections.get(node_id)
            if connection is None or connection.is_over:
                connection = await open_member_connection(
                    self._by_id[node_id], self._identity, blob_bytes_max=ANSWER_BYTES_MAX
                )
                self._connections[node_id] = connection
                nursery.start_soon(connection.run, name=f"connection to {node_id}")
            return connection
