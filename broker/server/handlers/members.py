"""Live clients: heartbeats, member lists, and the notices by which clients learn of each other (34, 35, 38, 40, 46)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

import trio

from broker.server.handlers.client_exchange import CREATE_TIMEOUT_S, ClientExchange
from broker.server.handlers.followers import Followers
from broker.server.links.link import LeaderLink
from broker.server.links.private_codes import PrivateCode
from broker.server.mistakes import Mistakes
from broker.server.requests.commit_tasks import AwaitCommit
from broker.server.requests.commits import Commits
from broker.server.requests.origin import ClientOrigin, Outputs
from broker.server.requests.questions import Question
from broker.server.requests.request import Handler, PendingRequest, Where
from broker.server.requests.short_waits import ShortWaits
from broker.service.catalog import NOTHING_NEW, Catalog, Creation, group_for_use, special_topic
from broker.service.clients import (
    ConsumerClient,
    LocalClients,
    consumers_of,
    newest_of_each,
    producers_of,
)
from broker.service.conclusions import RequestKind
from broker.service.refusal import Refusal
from broker.store.groups import SubscriptionGroupConfig
from broker.store.topics import TopicConfig
from dledger import DLedgerError, LogServer
from dledger_mq.message.names import retry_topic
from dledger_mq.remoting import fields
from dledger_mq.remoting.codes import RequestCode, ResponseCode
from dledger_mq.remoting.group_bodies import encode_consumer_list
from dledger_mq.remoting.header import RemotingCommand, encode_command, make_request
from dledger_mq.remoting.heartbeat import Subscription, decode_client_config, decode_heartbeat

_log = logging.getLogger(__name__)

NOTICE_MS: Final = 500
"""Pause between a change of a group's members and the notice of it. A client that comes sends its heartbeat to one node
after the other, and each broker group notifies for itself: whoever asked another group at once would find the earlier
members there, take back queues that it has just left, and leave them again."""


class Members:
    """Keeps the live clients of all nodes, and answers requests about them.

    Args:
        log: who leads.
        commits: groups that are created are staged here.
        catalog: the groups that there are.
        link: to the leader, for clients that are connected here.
        followers: takes what other nodes report of themselves beside their clients.
        outputs: what is sent without a request is flushed with it.
        nursery: of the tasks that wait.
        beaten: is called with each heartbeat's connection and client id.
        auto_create_groups: whether a heartbeat creates its group.
        judge: returns why a subscription cannot be used, or None.
        tasks_max: requests that may wait at a time.
        now_ms: a clock that never goes back.
        mistakes: what becomes of errors that nobody expects; None: they go up.
    """

    def __init__(
        self,
        log: LogServer,
        commits: Commits,
        catalog: Catalog,
        link: LeaderLink,
        *,
        followers: Followers,
        outputs: Outputs,
        nursery: trio.Nursery,
        beaten: Callable[[ClientOrigin, str], None],
        auto_create_groups: bool,
        judge: Callable[[Subscription], Refusal | None],
        tasks_max: int,
        now_ms: Callable[[], int],
        mistakes: Mistakes | None = None,
    ) -> None:
        self._mistakes = mistakes or Mistakes()
        self._log = log
        self._commits = commits
        self._catalog = catalog
        self._outputs = outputs
        self._nursery = nursery
        self._beaten = beaten
        self.auto_create_groups = auto_create_groups
        self._judge = judge
        self._waiting = ShortWaits("with a heartbeat", tasks_max)
        self._turn = 0
        self._now_ms = now_ms
        self._origins: dict[int, ClientOrigin] = {}
        self._notice_ms: dict[str, int] = {}
        """When the members of each group that changed are to be notified."""
        self.local = LocalClients()
        self.exchange = ClientExchange(
            log,
            link,
            self.local,
            followers=followers,
            outputs=outputs,
            nursery=nursery,
            push=self._changed,
            creation_for=self.creation_for,
            create=self.create,
            now_ms=now_ms,
            mistakes=self._mistakes,
        )
        link.register(
            PrivateCode.ASK_PRODUCER,
            lambda command: self.ask_producer_here(command.ext.get("group", ""), command.body),
        )

    def handlers(self) -> tuple[Handler[RemotingCommand], ...]:
        """Return the handlers of its codes."""
        code = RequestCode
        return (
            Handler(code.HEART_BEAT, self.heartbeat, RequestKind.UPDATE, Where.HERE),
            Handler(code.UNREGISTER_CLIENT, self.unregister, RequestKind.UPDATE, Where.HERE),
            Handler(code.CHECK_CLIENT_CONFIG, self.check_config, RequestKind.READ, Where.HERE),
            Handler(
                code.GET_CONSUMER_LIST_BY_GROUP,
                self.consumer_list,
                RequestKind.QUESTION,
                is_confirmed=True,
                request_type=Question,
            ),
        )

    def heartbeat(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out HEART_BEAT: answered when the group and its retry topic exist and the leader knows the client.

        Its connection is kept, to notify the client of changes later; so it is not taken from another node.

        Raises:
            BodyError: the body is no heartbeat.
        """
        origin = request.origin
        if not isinstance(origin, ClientOrigin):
            request.refuse_as_unknown()
            return
        beat = decode_heartbeat(command.body)
        who = {"language": command.language, "version": command.version, "address": origin.address}
        consumers = [
            client
            for client in consumers_of(beat, **who)  # type: ignore[arg-type]  # who mixes str and int
            if not isinstance(self._group(client.group), Refusal)
        ]
        producers = producers_of(beat, **who)  # type: ignore[arg-type]  # who mixes str and int
        if not self.local.has_room(origin.number, consumers, producers):
            remark = (
                "[OVERLOAD]system busy: the clients of this connection, or of all, keep too much"
            )
            request.refuse(ResponseCode.SYSTEM_BUSY, f"{remark}; the heartbeat is not taken in")
            return
        self._origins[origin.number] = origin
        self._beaten(origin, beat.client_id)
        changed = self.local.heartbeat(origin.number, consumers, producers, self._now_ms())
        self.exchange.local_changed(changed)
        creation = self.creation_for(consumers)
        if self._commits.is_full:
            creation = NOTHING_NEW  # the next heartbeat creates them
        must_wait = creation or (changed and not self._log.is_serving)
        if must_wait and self._waiting.enter(request):
            self._nursery.start_soon(self._finish_heartbeat, request, creation)
        else:
            request.answer(ResponseCode.SUCCESS)

    async def _finish_heartbeat(self, request: PendingRequest, creation: Creation) -> None:
        """Create groups, or wait until the leader knows the client; answer SUCCESS even if that fails."""
        try:
            with trio.move_on_after(CREATE_TIMEOUT_S):
                if self._log.is_serving:
                    await self.create(creation)
                else:
                    await self.exchange.wait_synced()
        except DLedgerError as error:
            # The next heartbeat tries again; the client is registered in any case.
            at = request.origin.address
            _log.info("the groups of a client at %s are not created yet: %s", at, error)
        except Exception as error:
            if not self._mistakes.answer(error, request):
                raise
        finally:
            self._waiting.leave(request)
        request.answer(ResponseCode.SUCCESS)
        self._outputs.flush()

    def _group(self, name: str) -> object:
        return group_for_use(self._catalog, name, auto_create=self.auto_create_groups)

    def creation_for(self, consumers: Iterable[ConsumerClient]) -> Creation:
        """Return the groups and retry topics that these consumers lack (Q3)."""
        topics: list[TopicConfig] = []
        groups: list[SubscriptionGroupConfig] = []
        for name in dict.fromkeys(client.group for client in consumers):
            found = group_for_use(self._catalog, name, auto_create=self.auto_create_groups)
            if isinstance(found, Refusal):
                continue
            group, created = found
            groups += created.groups
            if group.retry_queue_count > 0:
                created = special_topic(
                    self._catalog, retry_topic(name), queue_count=group.retry_queue_count
                )[1]
                topics += created.topics
        return Creation(tuple(topics), tuple(groups))

    async def create(self, creation: Creation) -> None:
        """Create groups and topics on this node, which leads.

        Raises:
            DLedgerError: it was refused, or leadership was lost.
        """
        if creation:
            waiter = AwaitCommit()
            self._commits.wait(self._commits.create(creation), waiter)
            await waiter.wait()

    def unregister(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out UNREGISTER_CLIENT.

        Raises:
            FieldError: the client id is missing.
        """
        gone = self.local.unregister(
            fields.text(command.ext, "clientID"),
            consumer_group=command.ext.get("consumerGroup", ""),
            producer_group=command.ext.get("producerGroup", ""),
        )
        self.exchange.local_changed(gone)
        request.answer(ResponseCode.SUCCESS)

    def consumer_list(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Answer GET_CONSUMER_LIST_BY_GROUP: all members, whatever node they are connected to.

        Raises:
            FieldError: the group is missing.
        """
        group = fields.text(command.ext, "consumerGroup")
        ids = list(self.members(group))
        if ids:
            body = encode_consumer_list(ids)
            request.answer(ResponseCode.SUCCESS, body=body)
        else:
            text = f"no consumer for this group, {group[:255]}"
            request.answer(ResponseCode.SYSTEM_ERROR, text)

    def check_config(self, request: PendingRequest, command: RemotingCommand) -> None:
        """Carry out CHECK_CLIENT_CONFIG.

        Raises:
            BodyError: the body is no client configuration.
        """
        refusal = self._judge(decode_client_config(command.body)[2])
        if refusal is None:
            request.answer(ResponseCode.SUCCESS)
        else:
            request.answer(refusal.code, refusal.remark)

    def members(self, group: str) -> dict[str, ConsumerClient]:
        """Return the live members of a group on all nodes, as far as this node knows, by client id."""
        known = self.exchange.union.members(group)
        if self._log.is_serving:
            return dict(known)
        return newest_of_each((*known.values(), *self.local.consumers(group)))

    def consumer_origin(self, group: str, client_id: str) -> ClientOrigin | None:
        """Return the open connection of a consumer to this node, or None."""
        number = self.local.consumer_connection(group, client_id)
        origin = None if number is None else self._origins.get(number)
        return None if origin is None or origin.is_closed else origin

    def consumer_origins(self, group: str) -> list[tuple[ConsumerClient, ClientOrigin]]:
        """Return the consumers of a group that are connected to this node, with their connections."""
        return [
            (client, self._origins[number])
            for client, number in self.local.consumers_located(group)
            if number in self._origins
        ]

    def ask_producer_here(self, group: str, frame: bytes) -> bool:
        """Send a frame to one producer of a group that is connected to this node; False if none is.

        Any of them can answer for the group (O19); they take turns.
        """
        numbers = self.local.producer_connections(group)
        origins = [self._origins[number] for number in numbers if number in self._origins]
        live = [origin for origin in origins if not origin.is_closed]
        if not live:
            return False
        self._turn += 1
        live[self._turn % len(live)].send(frame)
        return True

    def ask_producer(self, group: str, frame: bytes) -> None:
        """Send a frame to a producer of a group, behind another node if none is here; the leader does.

        Nodes do not know each other's producers, so all nodes are asked to pass it on. Should
        two producers get it, both answers find the same verdict.
        """
        if not self.ask_producer_here(group, frame):
            self.exchange.notify_nodes(PrivateCode.ASK_PRODUCER, {"group": group}, frame)

    def connection_closed(self, number: int) -> None:
        """Forget the clients of a connection that ended."""
        self._origins.pop(number, None)
        self.exchange.local_changed(self.local.connection_closed(number))

    def expire(self, now_ms: int) -> None:
        """Forget clients and nodes that are silent."""
        self.exchange.local_changed(self.local.expire(now_ms))
        self.exchange.expire(now_ms)

    def _changed(self, groups: list[str]) -> None:
        """Note groups whose members changed; changes that come together are one notice."""
        due_ms = self._now_ms() + NOTICE_MS
        for name in groups:
            self._notice_ms.setdefault(name, due_ms)

    def tick(self, now_ms: int) -> None:
        """Notify the clients of groups that changed a while ago (40): they need not wait for their own look."""
        if self._notice_ms:
            due = [name for name, due_ms in self._notice_ms.items() if due_ms <= now_ms]
            self._notify(due)

    def _notify(self, groups: list[str]) -> None:
        """Notify the clients here."""
        for name in groups:
            del self._notice_ms[name]
            group = self._catalog.group(name)
            if group is not None and not group.notify_consumer_ids_changed:
                continue
            for number in self.local.connections_of(name):
                origin = self._origins.get(number)
                if origin is not None:
                    request = make_request(
                        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
                        0,
                        {"consumerGroup": name},
                        is_oneway=True,
                    )
                    origin.send(encode_command(request))
        self._outputs.flush()
