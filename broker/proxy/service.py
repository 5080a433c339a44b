"""The calls of RocketMQ 5's clients, each with an answer whatever happens. Who calls is said by metadata."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, Final
from urllib.parse import unquote

import anyio
import grpc
from anyio.streams.memory import MemoryObjectReceiveStream

from broker.access.rules import AccessRules, Needs
from broker.proxy import checks
from broker.proxy.accounts import Accounts, CallSender, to_consume, to_send
from broker.proxy.checking import Checking
from broker.proxy.clients import FORGOTTEN, ProxyClient, ProxyClients
from broker.proxy.consuming import Consuming
from broker.proxy.facts import Facts, GroupFacts
from broker.proxy.producing import Producing
from broker.proxy.protocol import SERVICE, TelemetryCommand, message_class
from broker.proxy.protocol.numbers import Code
from broker.proxy.refusals import CallRefusedError, refusal_of, status
from broker.proxy.routing import Routing
from broker.proxy.settings import (
    consumer_settings,
    producer_settings,
    read_receiver,
    read_settings,
)
from dledger_mq.client.errors import ClientError
from dledger_mq.client.session import Session
from dledger_mq.remoting.codes import RequestCode

CLIENT_ID_CHARS_MAX: Final = 255
BEAT_PAUSE_S: Final = 0.05
"""In which changes come together that brokers are told of."""

FIRST_COMMAND_S: Final = 5.0
"""That a stranger has to tell what it opened a stream for."""

STRANGERS_MAX: Final = 100
"""Streams of theirs that are waited for at a time; they must not take up all calls that there may be."""

_log = logging.getLogger(__name__)

Context = Any
"""A call, as grpcio describes it (grpc.aio.ServicerContext)."""


def client_id_of(sender: CallSender, context: Context) -> str:
    """Return how the proxy knows who calls: by its account and its id, so that no account speaks for another's clients.

    Raises:
        CallRefusedError: it does not say so.
    """
    found = metadata_of(context).get("x-mq-client-id", "")
    if not isinstance(found, str) or not 0 < len(found) <= CLIENT_ID_CHARS_MAX:
        text = f"x-mq-client-id is missing, or has more than {CLIENT_ID_CHARS_MAX} characters"
        raise CallRefusedError(Code.CLIENT_ID_REQUIRED, text)
    return f"{sender.account}:{found}" if sender.account else found


def metadata_of(context: Context) -> dict[str, str | bytes]:
    """Return what a call says of itself beside its request."""
    return dict(context.invocation_metadata() or ())


def address_of(context: Context) -> str:
    """Return the caller's host:port, of what grpcio calls it: `ipv4:127.0.0.1:40312`, `ipv6:%5B::1%5D:40312`."""
    return unquote(str(context.peer()).partition(":")[2])


class Service:
    """Answers all calls.

    Args:
        session: carries requests to brokers; its heartbeats tell them of `clients`.
        accounts: decide who may call.
    """

    def __init__(self, session: Session, clients: ProxyClients, accounts: Accounts) -> None:
        self._session = session
        self._clients = clients
        self._accounts = accounts
        self._facts = Facts(session)
        self._routing = Routing(session, self._facts)
        self._producing = Producing(session, self._facts)
        self._consuming = Consuming(session, self._facts)
        clients.on_gone = self._consuming.renewals.drop_client
        clients.on_change = self._changed
        session.handle(RequestCode.CHECK_TRANSACTION_STATE, Checking(clients).on_check)
        self._is_changed = self._is_beating = False
        self._strangers = 0

    async def run(self) -> None:
        """Look after clients and what is kept for them, for ever."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._consuming.renewals.run)
            while True:
                await anyio.sleep(1.0)
                self._clients.forget_silent()
                self._consuming.forget_groups(self._clients.groups())

    def rules_changed(self, rules: AccessRules) -> None:
        """Go by other rules; clients that may not be there any more are forgotten."""
        self._accounts.rules = rules
        why_not = self._accounts.why_not
        self._clients.forget_where(lambda one: why_not(one.sender, one.needs) is not None)

    def _changed(self) -> None:
        """Send brokers what has changed; changes that come together are sent at once."""
        self._is_changed = True
        if not self._is_beating:
            self._is_beating = True
            self._session.nursery.start_soon(self._beat)

    async def _beat(self) -> None:
        try:
            while self._is_changed:
                await anyio.sleep(BEAT_PAUSE_S)
                self._is_changed = False
                await self._session.beat()
        finally:
            self._is_beating = False

    def _sender(self, call: str, context: Context) -> CallSender:
        """Return who makes a call; raises CallRefusedError if that is not proved."""
        if self._accounts.is_open:  # without reading what nobody looks at
            return CallSender("", address_of(context))
        return self._accounts.sender(call, metadata_of(context), address_of(context))

    def _check(self, call: str, context: Context, needs: Needs) -> CallSender:
        """Return who makes a call that it may make; raises CallRefusedError if it may not."""
        sender = self._sender(call, context)
        self._accounts.check(call, sender, needs)
        return sender

    def _check_consumer(self, call: str, context: Context, request: Any) -> None:
        topic, group = checks.topic_of(request.topic), checks.group_of(request.group)
        self._check(call, context, to_consume(group, [topic]))

    def _check_producer(self, call: str, context: Context, topics: Iterable[Any]) -> None:
        names = [checks.topic_of(topic) for topic in topics]
        if not self._accounts.is_open:
            self._check(call, context, to_send(names))

    # Calls, by their names. Each returns its answer, or raises what its status says.

    async def QueryRoute(self, request: Any, context: Context) -> Any:
        self._sender("QueryRoute", context)
        return await self._routing.route(request)

    async def QueryAssignment(self, request: Any, context: Context) -> Any:
        self._check_consumer("QueryAssignment", context, request)
        return await self._routing.assignment(request)

    async def SendMessage(self, request: Any, context: Context) -> Any:
        self._check_producer("SendMessage", context, (one.topic for one in request.messages))
        return await self._producing.send(request, address_of(context))

    async def EndTransaction(self, request: Any, context: Context) -> Any:
        self._check_producer("EndTransaction", context, [request.topic])
        return await self._producing.end(request)

    async def RecallMessage(self, request: Any, context: Context) -> Any:
        self._check_producer("RecallMessage", context, [request.topic])
        return await self._producing.recall(request)

    async def AckMessage(self, request: Any, context: Context) -> Any:
        self._check_consumer("AckMessage", context, request)
        return await self._consuming.acknowledge(request)

    async def ChangeInvisibleDuration(self, request: Any, context: Context) -> Any:
        self._check_consumer("ChangeInvisibleDuration", context, request)
        return await self._consuming.change(request)

    async def ForwardMessageToDeadLetterQueue(self, request: Any, context: Context) -> Any:
        self._check_consumer("ForwardMessageToDeadLetterQueue", context, request)
        return await self._consuming.forward_to_dead_letters(request)

    async def Heartbeat(self, _request: Any, context: Context) -> Any:
        self._clients.seen(client_id_of(self._sender("Heartbeat", context), context))
        return message_class("HeartbeatResponse")(status=status(Code.OK))

    async def NotifyClientTermination(self, _request: Any, context: Context) -> Any:
        sender = self._sender("NotifyClientTermination", context)
        self._clients.forget(client_id_of(sender, context))
        return message_class("NotifyClientTerminationResponse")(status=status(Code.OK))

    async def ReceiveMessage(self, request: Any, context: Context) -> None:
        """Answer in parts, which are written as they come."""
        call = "ReceiveMessage"
        sender = self._sender(call, context)
        told, wanted = read_receiver(
            client_id_of(sender, context), sender, request, version=time.time_ns() // 1_000_000
        )
        self._accounts.check(call, sender, told.needs)
        client = self._clients.receives(told)
        left_s = context.time_remaining()
        left_s = math.inf if left_s is None else left_s
        await self._consuming.receive(client, wanted, request, left_s=left_s, write=context.write)

    async def Telemetry(self, commands: AsyncIterator[Any], context: Context) -> None:
        """Take a client's settings, answer with ours, and send it what brokers ask, until it ends the stream.

        A client that is forgotten is told so by an error of its stream: it opens another one, and tells its settings.
        One that has left gets no error, by which Node's client would end its process.
        """
        try:
            sender = self._sender("Telemetry", context)
            client_id = client_id_of(sender, context)
        except CallRefusedError as error:
            await self._drop_first(commands)
            await context.write(TelemetryCommand(status=status(error.code, str(error))))
            return
        is_forgotten = is_open = False

        async def pass_on(stream: MemoryObjectReceiveStream[Any]) -> None:
            nonlocal is_forgotten
            async with stream:
                async for command in stream:
                    if command is FORGOTTEN:
                        is_forgotten = True
                    else:
                        await context.write(command)
            if not self._clients.knows(client_id):
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            async for command in commands:
                if command.WhichOneof("command") != "settings":
                    continue  # results of requests that this proxy does not make
                try:
                    answer = await self._registered(client_id, sender, command.settings)
                except (CallRefusedError, ClientError) as error:
                    await context.write(TelemetryCommand(status=_status_of("Telemetry", error)))
                    continue
                if is_open:
                    await context.write(answer)
                else:
                    is_open = True
                    tasks.start_soon(pass_on, await self._open(client_id, context, answer))
            tasks.cancel_scope.cancel()
        if is_forgotten:
            text = f"client {client_id} was not heard of, or may not be here, and is forgotten"
            await context.abort(grpc.StatusCode.UNAVAILABLE, text)

    async def _open(
        self, client_id: str, context: Context, answer: Any
    ) -> MemoryObjectReceiveStream[Any]:
        """Open the stream of a client that is registered, and answer its settings: it may go while that is written."""
        stream = self._clients.open_stream(client_id)
        try:
            await context.write(answer)
        except BaseException:
            stream.close()
            raise
        return stream

    async def _drop_first(self, commands: AsyncIterator[Any]) -> None:
        """Receive and drop one command of a client that is refused.

        A stream that ends while its client writes gives that an error of gRPC's own, in place of the reason.
        """
        if self._strangers >= STRANGERS_MAX:
            return
        self._strangers += 1
        try:
            with anyio.move_on_after(FIRST_COMMAND_S):
                await anext(commands, None)
        finally:
            self._strangers -= 1

    async def _registered(self, client_id: str, sender: CallSender, settings: Any) -> Any:
        """Register a client with its settings; return the command that tells it ours.

        Raises:
            CallRefusedError, ClientError: they cannot be served.
        """
        version = time.time_ns() // 1_000_000
        client = read_settings(client_id, sender, settings, version=version)
        self._accounts.check("Telemetry", sender, client.needs)
        answer = producer_settings(settings)
        if client.group:
            facts = await self._group_facts(client)
            answer = consumer_settings(
                settings, is_ordered=facts.is_ordered, retries_max=facts.retries_max
            )
        self._clients.register(client)
        return TelemetryCommand(status=status(Code.OK), settings=answer)

    async def _group_facts(self, client: ProxyClient) -> GroupFacts:
        """Return the settings of a client's group, at the broker groups of one of its topics."""
        for topic in client.subscriptions:
            queues = await self._session.routes.read_queues(topic)
            if queues:
                brokers = sorted({queue.broker_name for queue in queues})
                return await self._facts.group(client.group, brokers)
        return GroupFacts()


def guarded(
    name: str, call: Callable[[Any, Context], Awaitable[Any]]
) -> Callable[..., Awaitable[Any]]:
    """Return a call that answers with a status whatever happens; only a cancellation leaves it."""
    answer_class = message_class(_output_of(name))

    async def answered(request: Any, context: Context) -> Any:
        try:
            return await call(request, context)
        except Exception as error:  # a call must not be left without an answer
            return answer_class(status=_status_of(name, error))

    return answered


def guarded_stream(
    name: str, call: Callable[[Any, Context], Awaitable[None]]
) -> Callable[..., Awaitable[None]]:
    """Return a call with an answer in parts whose last part is a status when it fails."""
    answer_class = message_class(_output_of(name))

    async def answered(request: Any, context: Context) -> None:
        try:
            await call(request, context)
        except Exception as error:  # as above
            if context.done():
                return  # nobody reads any more, and a write that fails for it is no defect
            await context.write(answer_class(status=_status_of(name, error)))

    return answered


def ended_quietly(
    call: Callable[[Any, Context], Awaitable[None]],
) -> Callable[..., Awaitable[None]]:
    """Return a call that ends without a word in the log when its client hangs up while it is written to."""

    async def served(request: Any, context: Context) -> None:
        try:
            await call(request, context)
        except grpc.aio.AbortError:
            raise
        except Exception:
            if not context.done():
                raise

    return served


def _status_of(name: str, error: Exception) -> Any:
    if isinstance(error, ClientError):
        error = refusal_of(error)
    if isinstance(error, CallRefusedError):
        return status(error.code, str(error))
    _log.error("%s failed, which is a defect", name, exc_info=error)
    text = f"{name} failed for a reason that is in the proxy's log; it may have been done"
    return status(Code.INTERNAL_SERVER_ERROR, text)


def _output_of(name: str) -> str:
    return str(SERVICE.methods_by_name[name].output_type.name)
