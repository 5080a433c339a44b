"""Which queues a member of a group owns just now: taking them on, giving them up, committing.

Runs when the broker says that the membership changed (notice 40), when a route changes, and every 20 s.
A queue that is given up is first left alone by the handler, then committed, then forgotten, so that its
next owner starts where we stopped.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Literal

import anyio
from anyio.abc import TaskGroup

from dledger_mq.client.errors import ClientError, RequestFailedError
from dledger_mq.client.group_requests import GroupRequests
from dledger_mq.client.local_offsets import LocalOffsets
from dledger_mq.client.messages import ReceivedMessage
from dledger_mq.client.process_queue import ProcessQueue
from dledger_mq.client.queue_locks import QueueLocks
from dledger_mq.client.queue_reader import PullSettings, QueueReader
from dledger_mq.client.queues import MessageQueue
from dledger_mq.client.rebalance import Strategy, allocate_average, changes
from dledger_mq.client.rebalance_listener import RebalanceListener
from dledger_mq.client.session import Session
from dledger_mq.client.subscriptions import TopicSubscription
from dledger_mq.message.names import is_retry_topic
from dledger_mq.message.numbers import QueueOffset
from dledger_mq.remoting.codes import ResponseCode

REBALANCE_S: Final = 20.0
REBALANCE_SOON_S: Final = 1.0  # while something could not be found out; doubles up to the other
HANDOVER_S: Final = 5.0  # how long running handlers may hold up the release of a queue

StartFrom = Literal["last", "first"] | int

log = logging.getLogger(__name__)


class Assignment:
    """The queues that one member of a consumer group owns.

    Attributes:
        readers: one per owned queue.
        locks: of the queues, for an ordered consumer; each is asked for before it is read.
        balanced: set once every topic that has a route was shared out without an error, and at the end in any case.
        is_closing: the member leaves: it takes on nothing more.
    """

    def __init__(
        self,
        session: Session,
        requests: GroupRequests,
        subscriptions: Mapping[str, TopicSubscription],
        *,
        start_from: StartFrom,
        pull: PullSettings,
        on_messages: Callable[[QueueReader, tuple[ReceivedMessage, ...]], None],
        allocation: Strategy = allocate_average,
        is_ordered: bool = False,
        local: LocalOffsets | None = None,
        listener: RebalanceListener | None = None,
    ) -> None:
        """Set up the assignment, which `run` keeps up to date. With `local` offsets the member reads all queues."""
        self.paused: set[MessageQueue] = set()
        self._listener = listener or RebalanceListener()
        self._lost_queues: list[MessageQueue] = []
        self.requests = requests
        self.readers: dict[MessageQueue, QueueReader] = {}
        self.balanced = anyio.Event()
        self.locks = QueueLocks(requests, self._lost) if is_ordered and not local else None
        self._session = session
        self._subscriptions = subscriptions
        self._start_from = start_from
        self._pull = pull
        self._on_messages = on_messages
        self._allocation = allocation
        self._local = local
        self._changing = anyio.Lock()
        self._leaving: dict[MessageQueue, QueueReader] = {}
        self._wake = anyio.Event()
        self._committing = anyio.Lock()
        self.is_closing = False

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Pull nothing of these, also when they leave us and come back."""
        for queue in queues:
            self.paused.add(queue)
            if queue in self.readers:
                self.readers[queue].pause(is_paused=True)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Pull from these queues again."""
        for queue in queues:
            self.paused.discard(queue)
            if queue in self.readers:
                self.readers[queue].pause(is_paused=False)

    async def subscriptions_changed(self) -> None:
        """Send the brokers the subscriptions that we have now, and share out anew."""
        for queue, reader in self.readers.items():
            reader.subscription = self._subscriptions.get(queue.topic, reader.subscription)
        await self._session.beat()
        self.rebalance_soon()

    def rebalance_soon(self) -> None:
        """Share out anew, now."""
        self._wake.set()

    async def run(self) -> None:
        """Own queues until cancelled."""
        self._session.routes.on_change = lambda topic: self.rebalance_soon()
        async with anyio.create_task_group() as nursery:
            await self._load_routes()
            await self._session.beat()
            pause_s = REBALANCE_SOON_S
            while not self.is_closing:
                self._wake = anyio.Event()
                async with self._changing:
                    missing = await self._rebalance(nursery)
                if all(is_retry_topic(topic) for topic in missing):
                    self.balanced.set()
                most_s = REBALANCE_S if self.balanced.is_set() else REBALANCE_SOON_S
                pause_s = min(pause_s * 2, most_s) if missing else REBALANCE_SOON_S
                with anyio.move_on_after(pause_s / 2 if missing else REBALANCE_S):
                    await self._wake.wait()

    async def _load_routes(self) -> None:
        for topic in list(self._subscriptions):
            try:
                await self._session.routes.refresh(topic)
            except ClientError as error:
                log.debug("no route of %s yet: %s", topic, error)

    async def _rebalance(self, nursery: TaskGroup) -> set[str]:
        """Share out every topic; return those about which something has to be asked again soon.

        A retry topic is created by the group's first heartbeat and has its route a moment later.
        """
        missing: set[str] = set()
        if self._lost_queues:
            lost, self._lost_queues = tuple(self._lost_queues), []
            await self._call_listener(self._listener.lost, lost)
        unwanted = [queue for queue in self.readers if queue.topic not in self._subscriptions]
        await self._release_all(unwanted)
        for topic in list(self._subscriptions):
            try:
                queues = await self._session.routes.read_queues(topic)
                wanted = list(queues) if self._local else await self._share(queues)
            except ClientError as error:
                log.debug("queues of %s stay as they are: %s", topic, error)
                missing.add(topic)
                continue
            owned = [queue for queue in self.readers if queue.topic == topic]
            todo = changes(owned, wanted)
            await self._release_all(todo.released)
            acquired = [queue for queue in todo.acquired if await self._acquire(queue, nursery)]
            foreign = {q for q in self.readers if q.topic == topic} - set(wanted)
            assert not foreign, f"{foreign} are read, and are not ours of {topic}"
            await self._call_listener(self._listener.acquired, acquired)
            if len(acquired) < len(todo.acquired):
                missing.add(topic)
        return missing

    async def _call_listener(
        self,
        listener: Callable[[tuple[MessageQueue, ...]], Awaitable[None]],
        queues: Iterable[MessageQueue],
    ) -> None:
        """Call the application's listener; what it raises is logged, since a queue must change hands in any case."""
        listed = tuple(queues)
        if not listed:
            return
        try:
            await listener(listed)
        except Exception:  # the application's own
            log.exception(
                "the rebalance listener failed on %d queues, such as %s", len(listed), listed[0]
            )

    async def _share(self, queues: tuple[MessageQueue, ...]) -> list[MessageQueue]:
        """Return our part of one topic's queues.

        A leader that has just been elected may not have heard of us yet. What it says then is no
        reason to give our queues up: we register there, ask again, and else leave everything as it is.

        Raises:
            ClientError: the members could not be found out.
        """
        me = self._session.client_id
        names = list(dict.fromkeys(queue.broker_name for queue in queues))
        if not names:
            return []
        try:
            members = await self._members(names)
        except RequestFailedError:
            members = []
        if me not in members:
            await self._session.beat()
            members = await self._members(names)
        if me not in members:
            raise RequestFailedError(
                ResponseCode.SYSTEM_ERROR, f"{me} is not among the {len(members)} members yet"
            )
        return self._allocation(queues, members, me)

    async def _members(self, broker_names: list[str]) -> list[str]:
        """Ask one broker group after the other for the members of our group."""
        for name in broker_names[:-1]:
            try:
                return await self.requests.members(name)
            except ClientError as error:
                log.debug("%s does not name the members: %s", name, error)
        return await self.requests.members(broker_names[-1])

    async def _acquire(self, queue: MessageQueue, nursery: TaskGroup) -> bool:
        """Take a queue over: lock, then offset, then reader; return False if it has to be tried again later."""
        assert self._changing.locked(), f"{queue} is taken on while others may be given up"
        leaving = self._leaving.get(queue)
        if leaving is not None and not await leaving.wait_handled(HANDOVER_S):
            return False  # we had it before, and our handler is not done yet
        self._leaving.pop(queue, None)
        try:
            if self.locks is not None and not await self.locks.take(queue):
                log.info("%s is still locked by another member", queue)
                return False
            committed = await self._committed(queue)
            offset = committed if committed is not None else await self._first_offset(queue)
        except ClientError as error:
            log.info("the start of %s could not be found out: %s", queue, error)
            return False
        if self.is_closing:
            return False
        assert queue not in self.readers, f"{queue} would have two readers"
        held = ProcessQueue(queue, offset)
        held.committed = committed
        reader = QueueReader(
            self._session,
            self.requests,
            self._subscriptions[queue.topic],
            held,
            pull=self._pull,
            on_messages=self._on_messages,
        )
        reader.is_paused = queue in self.paused
        self.readers[queue] = reader
        nursery.start_soon(reader.run, name=f"reader {queue}")
        return True

    async def _committed(self, queue: MessageQueue) -> QueueOffset | None:
        if self._local is not None:
            return self._local.committed(queue)
        return await self.requests.committed(queue)

    async def _first_offset(self, queue: MessageQueue) -> QueueOffset:
        """Return the offset at which a group without a stored one begins (rule I6).

        What a retry topic holds was given back by the group itself, so it is wanted from its start;
        only a group that begins at a time leaves out what it refused before (Java's rule).
        """
        requests, is_retry = self.requests, is_retry_topic(queue.topic)
        if self._start_from == "first" or (is_retry and self._start_from == "last"):
            return await requests.min_offset(queue)
        if self._start_from == "last" or is_retry:
            return await requests.max_offset(queue)
        return await requests.offset_at(queue, self._start_from)

    async def move(self, offsets: Mapping[MessageQueue, QueueOffset]) -> None:
        """Move to other offsets, as an operator wants it; what was read of these queues is dropped.

        What cannot be committed stays where it was, with a line in the log; queues that we do not
        own are left alone.
        """
        async with self._changing:
            moved = [reader for queue, reader in self.readers.items() if queue in offsets]
            for reader in moved:
                reader.release()
            for reader in moved:
                queue = reader.held.queue
                if not await reader.wait_handled(HANDOVER_S):
                    self._leaving[queue] = reader
                if self.readers.get(queue) is not reader:
                    continue  # its lock was lost meanwhile
                del self.readers[queue]
                async with self._committing:
                    pass  # a commit of the offset before that is on its way must not come last
                if not await self._store(queue, offsets[queue]):
                    log.warning("%s stays where it was, not at %d", queue, offsets[queue])
                log.info("%s goes on at %d", queue, offsets[queue])
        self.rebalance_soon()

    async def _release_all(self, queues: Sequence[MessageQueue]) -> None:
        """Release queues: first no new messages for any, then wait for the handlers, then commit and forget each."""
        assert self._changing.locked(), f"{queues} are given up while others may be taken on"
        readers = {queue: self.readers[queue] for queue in queues}
        for reader in readers.values():
            reader.release()
        handled = {}
        for queue, reader in readers.items():
            handled[queue] = await reader.wait_handled(HANDOVER_S)
            if not handled[queue]:
                log.warning("%s is given up while its handler still runs", queue)
                self._leaving[queue] = reader
        await self._call_listener(self._listener.released, queues)
        for queue, reader in readers.items():
            await self._release(queue, reader, is_handled=handled[queue])

    async def _release(self, queue: MessageQueue, reader: QueueReader, *, is_handled: bool) -> None:
        if self.readers.get(queue) is not reader:
            return  # its lock was lost meanwhile
        await self._commit(reader)
        self.readers.pop(queue, None)
        if self.locks is not None and is_handled:
            await self.locks.release([queue])
        elif self.locks is not None:
            self.locks.forget(queue)

    def _lost(self, queue: MessageQueue) -> None:
        """Drop a queue whose lock is lost: another member may have it, so our offset counts no more."""
        reader = self.readers.pop(queue, None)
        if reader is not None:
            reader.release()
            self._leaving[queue] = reader
            self._lost_queues.append(queue)
            self.rebalance_soon()

    async def commit_all(self) -> None:
        """Commit every owned queue whose offset moved; what fails is tried again next time."""
        if self._local is not None:
            await self._save({q: r.held.committable for q, r in self.readers.items()})
            return
        async with self._committing, anyio.create_task_group() as nursery:
            for reader in list(self.readers.values()):
                nursery.start_soon(self._commit, reader)

    async def _commit(self, reader: QueueReader) -> None:
        held = reader.held
        offset = held.committable
        if held.committed != offset and await self._store(held.queue, offset):
            held.committed = offset

    async def _store(self, queue: MessageQueue, offset: QueueOffset) -> bool:
        """Store one offset, where this member's offsets are kept; return whether that succeeded."""
        if self._local is not None:
            return await self._save({queue: offset})
        try:
            await self.requests.commit(queue, offset)
        except ClientError as error:
            log.info("offset %d of %s is not committed yet: %s", offset, queue, error)
            return False
        return True

    async def _save(self, offsets: Mapping[MessageQueue, QueueOffset]) -> bool:
        assert self._local is not None, f"the offsets of {len(offsets)} queues are not kept here"
        async with self._committing:
            if all(self._local.committed(queue) == offset for queue, offset in offsets.items()):
                return True
            try:
                await anyio.to_thread.run_sync(self._local.save, offsets)
            except OSError as error:
                log.warning("offsets are not stored at %s yet: %s", self._local.path, error)
                return False
        return True

    def close(self) -> None:
        """Take on nothing more, and let nobody wait for a share."""
        self.is_closing = True
        self._wake.set()
        self.balanced.set()

    async def stop(self, timeout_s: float) -> None:
        """Close, and begin nothing more; wait so long for the handlers that run."""
        self.close()
        readers = list(self.readers.values())
        for reader in readers:
            reader.release()
        async with anyio.create_task_group() as nursery:
            for reader in readers:
                nursery.start_soon(reader.wait_handled, timeout_s)
        await self._call_listener(self._listener.released, self.readers)
