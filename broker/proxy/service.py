"""The calls of RocketMQ 5's clients, each with an answer whatever happens. Who calls is said by metadata."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

from broker.proxy.checking import Checking
from broker.proxy.clients import ProxyClient, ProxyClients
from broker.proxy.consuming import Consuming, Write
from broker.proxy.facts import Facts, GroupFacts
from broker.proxy.producing import Producing
from broker.proxy.protocol import SERVICE, ReceiveMessageResponse, TelemetryCommand, message_class
from broker.proxy.protocol.numbers import Code
from broker.proxy.refusals import CallRefusedError, refusal_of, status
from broker.proxy.routing import Routing
from broker.proxy.settings import consumer_settings, producer_settings, read_settings
from dledger_mq.client.errors import ClientError
from dledger_mq.client.session import Session
from dledger_mq.remoting.codes import RequestCode

CLIENT_ID_CHARS_MAX: Final = 255

_log = logging.getLogger(__name__)

Context = Any
"""A call, as grpcio describes it (grpc.aio.ServicerContext)."""


def client_id_of(context: Context) -> str:
    """Return who calls.

    Raises:
        CallRefusedError: it does not say so.
    """
    found = dict(context.invocation_metadata() or ()).get("x-mq-client-id", "")
    if not isinstance(found, str) or not 0 < len(found) <= CLIENT_ID_CHARS_MAX:
        text = f"x-mq-client-id is missing, or has more than {CLIENT_ID_CHARS_MAX} characters"
        raise CallRefusedError(Code.CLIENT_ID_REQUIRED, text)
    return found


def host_of(context: Context) -> str:
    """Return the caller's address, of what grpcio calls it: `ipv4:127.0.0.1:40312`."""
    return str(context.peer()).partition(":")[2]


class Service:
    """Answers all calls.

    Args:
        session: carries requests to brokers; its heartbeats tell them of `clients`.
    """

    def __init__(self, session: Session, clients: ProxyClients) -> None:
        self._session = session
        self._clients = clients
        self._facts = Facts(session)
        self._routing = Routing(session, self._facts)
        self._producing = Producing(session)
        self._consuming = Consuming(session, self._facts)
        clients.on_gone = self._consuming.renewals.drop_client
        clients.on_change = self._changed
        session.handle(RequestCode.CHECK_TRANSACTION_STATE, Checking(clients).on_check)
        self._is_beating = False

    async def run(self) -> None:
        """Look after clients and what is kept for them, for ever."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._consuming.renewals.run)
            while True:
                await anyio.sleep(1.0)
                self._clients.forget_silent()
                self._consuming.forget_groups(self._clients.groups())

    def _changed(self) -> None:
        """Send brokers what has changed; changes that come together are sent at once."""
        if not self._is_beating:
            self._is_beating = True
            self._session.nursery.start_soon(self._beat)

    async def _beat(self) -> None:
        await anyio.lowlevel.checkpoint()
        self._is_beating = False
        await self._session.beat()

    # Calls, by their names. Each returns its answer, or raises what its status says.

    async def QueryRoute(self, request: Any, _context: Context) -> Any:
        return await self._routing.route(request)

    async def QueryAssignment(self, request: Any, _context: Context) -> Any:
        return await self._routing.assignment(request)

    async def SendMessage(self, request: Any, context: Context) -> Any:
        return await self._producing.send(request, host_of(context))

    async def EndTransaction(self, request: Any, _context: Context) -> Any:
        return await self._producing.end(request)

    async def RecallMessage(self, request: Any, _context: Context) -> Any:
        return await self._producing.recall(request)

    async def AckMessage(self, request: Any, _context: Context) -> Any:
        return await self._consuming.acknowledge(request)

    async def ChangeInvisibleDuration(self, request: Any, _context: Context) -> Any:
        return await self._consuming.change(request)

    async def ForwardMessageToDeadLetterQueue(self, request: Any, _context: Context) -> Any:
        return await self._consuming.forward_to_dead_letters(request)

    async def Heartbeat(self, _request: Any, context: Context) -> Any:
        self._clients.seen(client_id_of(context))
        return message_class("HeartbeatResponse")(status=status(Code.OK))

    async def NotifyClientTermination(self, _request: Any, context: Context) -> Any:
        self._clients.forget(client_id_of(context))
        return message_class("NotifyClientTerminationResponse")(status=status(Code.OK))

    async def ReceiveMessage(self, request: Any, context: Context) -> None:
        """Answer in parts, which are written as they come."""
        try:
            client = self._clients.seen(client_id_of(context))
            left_s = context.time_remaining()
            left_s = math.inf if left_s is None else left_s
            await self._consuming.receive(client, request, left_s, context.write)
        except (CallRefusedError, ClientError) as error:
            refusal = error if isinstance(error, CallRefusedError) else refusal_of(error)
            await context.write(ReceiveMessageResponse(status=status(refusal.code, str(refusal))))

    async def Telemetry(self, commands: AsyncIterator[Any], context: Context) -> None:
        """Take a client's settings, answer with ours, and send it what brokers ask, until it ends the stream."""
        async with anyio.create_task_group() as tasks:
            is_open = False
            async for command in commands:
                if command.WhichOneof("command") != "settings":
                    continue  # results of requests that this proxy does not make
                try:
                    client_id = client_id_of(context)
                    answer = await self._registered(client_id, command.settings)
                except (CallRefusedError, ClientError) as error:
                    refusal = error if isinstance(error, CallRefusedError) else refusal_of(error)
                    refused = TelemetryCommand(status=status(refusal.code, str(refusal)))
                    await context.write(refused)
                    continue
                await context.write(answer)
                if not is_open:
                    is_open = True
                    tasks.start_soon(_pass_on, self._clients.open_stream(client_id), context.write)
            tasks.cancel_scope.cancel()

    async def _registered(self, client_id: str, settings: Any) -> Any:
        """Register a client with its settings; return the command that tells it ours.

        Raises:
            CallRefusedError, ClientError: they cannot be served.
        """
        client = read_settings(client_id, settings, version=time.time_ns() // 1_000_000)
        answer = producer_settings(settings)
        if client.group:
            facts = await self._group_facts(client)
            answer = consumer_settings(
                settings, is_ordered=facts.is_ordered, retries_max=facts.retries_max
            )
        self._clients.register(client)
        return TelemetryCommand(status=status(Code.OK), settings=answer)

    async def _group_facts(self, client: ProxyClient) -> GroupFacts:
        """Return the settings of a client's group, at a broker group of one of its topics."""
        for topic in client.subscriptions:
            for queue in await self._session.routes.read_queues(topic):
                return await self._facts.group(client.group, queue.broker_name)
        return GroupFacts()


async def _pass_on(stream: MemoryObjectReceiveStream[Any], write: Write) -> None:
    async with stream:
        async for command in stream:
            await write(command)


def guarded(
    name: str, call: Callable[[Any, Context], Awaitable[Any]]
) -> Callable[..., Awaitable[Any]]:
    """Return a call that answers with a status whatever happens; only a cancellation leaves it."""
    answer_class = message_class(_output_of(name))

    async def answered(request: Any, context: Context) -> Any:
        try:
            return await call(request, context)
        except (CallRefusedError, ClientError) as error:
            refusal = error if isinstance(error, CallRefusedError) else refusal_of(error)
            return answer_class(status=status(refusal.code, str(refusal)))
        except Exception:  # a call must not be left without an answer
            _log.exception("%s failed, which is a defect", name)
            text = f"{name} failed for a reason that is in the proxy's log; it may have been done"
            return answer_class(status=status(Code.INTERNAL_SERVER_ERROR, text))

    return answered


def _output_of(name: str) -> str:
    return str(SERVICE.methods_by_name[name].output_type.name)
