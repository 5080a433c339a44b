"""The log clients on a member's port: one task reads a connection's calls, and answers are sent in batches.

Appends of all connections that are read before the next pass share one proposal; their answers are
collected during the pass and leave with one write per connection at its end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol, assert_never

import trio

from dledger.codec.client_rpc import (
    AppendAnswer,
    AppendCall,
    Call,
    EntriesAnswer,
    GetCall,
    MembersCall,
    SnapshotAnswer,
    SnapshotCall,
    StatusCall,
    TransferAnswer,
    TransferCall,
    decode_call,
    failure_of,
)
from dledger.codec.frame import Frame, encode_frames, join_frames
from dledger.codec.rpc import encode_entries
from dledger.codec.wire_types import Header, encode_header
from dledger.errors import (
    DLedgerError,
    EntryDamagedError,
    NotLeaderError,
    PeerProtocolError,
    TooManyPendingError,
    UnsupportedError,
)
from dledger.raft.configuration import ChangeKind, Configuration, MemberChange
from dledger.raft.effects import Committed, Failed
from dledger.raft.entry import Entry
from dledger.raft.ids import EntryId, Index, NodeId
from dledger.runtime.handshake import Remote
from dledger.runtime.log_appender import LogAppender
from dledger.runtime.log_reader import LogReader
from dledger.runtime.member_status import MemberStatus
from dledger.runtime.sockets import FrameStream
from dledger.runtime.task_group import TaskGroup, open_task_group

INFLIGHT_COUNT_MAX: Final = 4096
"""Unanswered calls of one connection; more are refused."""

QUEUED_BYTES_MAX: Final = 8 * 1024 * 1024
"""Answers that one client does not take; until it does, nothing more is read from it or made for it."""

GET_COUNT_MAX: Final = 4096
GET_BYTES_MAX: Final = 4 * 1024 * 1024
"""Entries and bytes of one answer (one entry may exceed the bytes)."""


class ClientService(Protocol):
    """The part of a member that clients may use (LogServer)."""

    @property
    def appender(self) -> LogAppender:
        """The appender of this member's log."""
        ...

    @property
    def reader(self) -> LogReader:
        """The reader of this member's log."""
        ...

    @property
    def status(self) -> MemberStatus:
        """The facts that it reports of itself."""
        ...

    async def transfer(self, target: NodeId | None, *, timeout_s: float) -> NodeId:
        """Hand leadership over."""
        ...

    async def change_members(
        self, change: MemberChange, *, timeout_s: float
    ) -> tuple[Configuration, Index]:
        """Change the members by one."""
        ...


READ_TIMEOUT_S: Final = 5.0
TRANSFER_TIMEOUT_S: Final = 5.0
MEMBERS_TIMEOUT_S: Final = 5.0
"""All end earlier by themselves: a leader without its majority steps down."""

MEND_TIMEOUT_S: Final = 1.5
"""The time for which a read waits for a damaged entry: less than clients wait, more than one silent member costs."""


class ClientConnection:
    """One client. Answers may be added at any time; `flush` sends them."""

    def __init__(self, stream: FrameStream) -> None:
        self.stream = stream
        self.making_part = trio.Lock()
        self.inflight_count = 0
        self.answers: list[bytes] = []

    def flush(self) -> None:
        """Send the queued answers in one write."""
        if self.answers:
            data = join_frames(self.answers)
            self.answers = []
            self.stream.send_soon(data)

    async def wait_room(self) -> None:
        """Wait until the client has read enough of its earlier answers for another large one to be queued."""
        while self.stream.queued_bytes > QUEUED_BYTES_MAX and not self.stream.is_closed:
            await self.stream.wait_drained()


class ClientPort:
    """All clients of one member.

    Invariant: every call gets exactly one answer, unless its connection ends before.
    """

    def __init__(self, member: ClientService, *, accepts_appends: bool) -> None:
        self._member = member
        self._accepts_appends = accepts_appends
        self._dirty: dict[ClientConnection, None] = {}

    def flush(self) -> None:
        """Send the queued answers of all connections."""
        if self._dirty:
            dirty, self._dirty = self._dirty, {}
            for connection in dirty:
                connection.flush()

    async def serve(self, stream: FrameStream, remote: Remote) -> None:
        """Serve one client until it disconnects.

        Raises:
            PeerProtocolError: it broke the protocol.
        """
        assert remote.node_id is None, "members are served by the transport"
        connection = ClientConnection(stream)
        try:
            async with open_task_group() as tasks:
                tasks.start(stream.run_writer, name="client writer")
                tasks.start(self._read_calls, connection, tasks, name="client reader")
        finally:
            self._dirty.pop(connection, None)

    async def _read_calls(self, connection: ClientConnection, tasks: TaskGroup) -> None:
        """Take calls until the connection ends; answers leave once per batch, and a slow client is not read further."""
        stream = connection.stream
        while True:
            try:
                frames = await stream.receive()
            except OSError:
                frames = []
            if not frames:
                tasks.stop()
                return
            for frame in frames:
                self._take(connection, frame, tasks)
            connection.flush()
            await connection.wait_room()

    def _take(self, connection: ClientConnection, frame: Frame, tasks: TaskGroup) -> None:
        """Start the work of one call; a connection with too many unanswered calls gets a definite refusal."""
        call = decode_call(frame.header)
        if not isinstance(call, AppendCall) and len(frame.blob):
            raise PeerProtocolError(f"{len(frame.blob)} bytes after a call that has no blob")
        connection.inflight_count += 1
        if connection.inflight_count > INFLIGHT_COUNT_MAX:
            error = TooManyPendingError(f"{INFLIGHT_COUNT_MAX} calls of this connection wait")
            self._answer_error(connection, call.token, error)
            return
        match call:
            case AppendCall():
                self._append(connection, call, bytes(frame.blob))
            case StatusCall():
                self._answer(connection, self._member.status.answer(call.token))
            case GetCall():
                self._start(connection, call, partial(self._get, connection, call), tasks)
            case SnapshotCall():
                self._start(connection, call, partial(self._snapshot, connection, call), tasks)
            case TransferCall():
                self._start(connection, call, partial(self._transfer, connection, call), tasks)
            case MembersCall():
                self._start(connection, call, partial(self._members, connection, call), tasks)
            case _:
                assert_never(call)

    def _start(
        self,
        connection: ClientConnection,
        call: Call,
        work: Callable[[], Awaitable[None]],
        tasks: TaskGroup,
    ) -> None:
        """Start work that waits: in a task of the connection, which ends with it."""

        async def run() -> None:
            try:
                await work()
            except DLedgerError as error:
                self._answer_error(connection, call.token, error)
            connection.flush()

        tasks.start(run, name=type(call).__name__)

    def _append(self, connection: ClientConnection, call: AppendCall, body: bytes) -> None:
        """Propose the body; it is answered from a later pass of the driver, or here if it is refused at once."""

        def done(outcome: Committed | Failed) -> None:
            if isinstance(outcome, Failed):
                self._answer_error(connection, call.token, outcome.error)
            else:
                self._answer(connection, self._appended(call.token, outcome.last))

        if not self._accepts_appends:
            error = UnsupportedError("this group takes messages from its broker only")
            self._answer_error(connection, call.token, error)
            return
        try:
            self._member.appender.append_soon(body, done)
        except DLedgerError as refused:
            self._answer_error(connection, call.token, refused)

    def _appended(self, token: int, entry_id: EntryId) -> AppendAnswer:
        position = self._member.reader.position_of(entry_id.index)
        return AppendAnswer(token, entry_id.term, entry_id.index, position)

    async def _get(self, connection: ClientConnection, call: GetCall) -> None:
        if not call.local:
            await self._member.reader.barrier(timeout_s=READ_TIMEOUT_S)
        # Many calls fit one packet; between this and the flush of the answer nothing waits.
        await connection.wait_room()
        entries = await self._read(call)
        answer = EntriesAnswer(call.token, len(entries))
        self._answer(connection, answer, encode_entries(entries))

    async def _read(self, call: GetCall) -> list[Entry]:
        """Return committed entries; wait a little for a damaged one."""
        damaged: EntryDamagedError | None = None
        with trio.move_on_after(MEND_TIMEOUT_S):
            while True:
                try:
                    return self._member.reader.get_range(
                        Index(call.index),
                        count_max=min(call.count, GET_COUNT_MAX),
                        bytes_max=min(call.bytes_max, GET_BYTES_MAX),
                    )
                except EntryDamagedError as error:
                    damaged = error
                await self._member.reader.wait_mended()
        assert damaged is not None, "only a damaged entry is waited for"
        raise damaged

    async def _snapshot(self, connection: ClientConnection, call: SnapshotCall) -> None:
        async with connection.making_part:
            await connection.wait_room()
            part = await self._member.reader.snapshot_part(Index(call.index), call.offset)
            answer = SnapshotAnswer(call.token, part.index, part.offset, part.size_bytes)
            self._answer(connection, answer, part.data)
            connection.flush()

    async def _transfer(self, connection: ClientConnection, call: TransferCall) -> None:
        target = NodeId(call.target) if call.target else None
        reached = await self._member.transfer(target, timeout_s=TRANSFER_TIMEOUT_S)
        self._answer(connection, TransferAnswer(call.token, reached))

    async def _members(self, connection: ClientConnection, call: MembersCall) -> None:
        """Change the members, or see to it that this node still leads; answer who they are."""
        if call.kind:
            node_id = NodeId(call.node_id)
            change = MemberChange(
                ChangeKind(call.kind),
                node_id,
                is_joining=call.joins,
                addresses={node_id: call.address} if call.address else {},
            )
            await self._member.change_members(change, timeout_s=MEMBERS_TIMEOUT_S)
        else:
            await self._member.reader.barrier(timeout_s=READ_TIMEOUT_S)
        self._answer(connection, self._member.status.members_answer(call.token))

    def _answer_error(self, connection: ClientConnection, token: int, error: DLedgerError) -> None:
        address = ""
        if isinstance(error, NotLeaderError) and error.leader_id:
            address = self._member.status.address_of(error.leader_id)
        self._answer(connection, failure_of(token, error, leader_address=address))

    def _answer(self, connection: ClientConnection, answer: Header, blob: bytes = b"") -> None:
        assert connection.inflight_count > 0, "a call is answered twice"
        connection.inflight_count -= 1
        connection.answers += encode_frames(encode_header(answer), blob)
        self._dirty[connection] = None
