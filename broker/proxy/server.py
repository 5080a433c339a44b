"""The port: grpcio's asynchronous server, whose calls are the service's.

A call that is not served (pulls, offsets, lite topics) is answered by a status that says so.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio
import grpc
from google.protobuf import message_factory

from broker.access.rule_files import RuleFiles
from broker.proxy.accounts import Accounts
from broker.proxy.clients import ProxyClients
from broker.proxy.protocol import SERVICE
from broker.proxy.protocol.numbers import Code
from broker.proxy.refusals import CallRefusedError
from broker.proxy.service import Context, Service, ended_quietly, guarded, guarded_stream
from dledger_mq.client.credentials import Credentials
from dledger_mq.client.service import open_service_nursery
from dledger_mq.client.session import Session

MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of one call; a body has 4 MiB at most, a call several messages."""

CALLS_MAX: Final = 10_000
"""At the same time; each consumer waits in one for each of its topics and broker groups."""

CONNECTION_CALLS_MAX: Final = 1_000
"""Of one connection at the same time; more wait at the client."""

KEEPALIVE_MS: Final = 20_000
"""After so long without a sign of life a connection is asked for one, and ended so much later."""

STOP_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """The settings of the proxy.

    Attributes:
        listen: host and port.
        name_servers: "host:port" each.
        certificate, key: PEM, of the port; None: it takes plain text.
        tls: encrypts connections to brokers and name servers.
        credentials: the account by which it asks them.
        acl_file: plain_acl.yml of those that may call; None: everybody may.
    """

    listen: str
    name_servers: tuple[str, ...]
    certificate: tuple[bytes, bytes] | None = None
    tls: ssl.SSLContext | None = None
    credentials: Credentials | None = None
    acl_file: Path | None = None


class PortTakenError(Exception):
    """The port cannot be listened at."""


@asynccontextmanager
async def open_proxy(config: ProxyConfig) -> AsyncIterator[int]:
    """Serve while the block runs; yield the port.

    Raises:
        PortTakenError: somebody else has it, or there is no such address.
        AccessRulesError: the accounts cannot be read.
    """
    files = None if config.acl_file is None else RuleFiles(config.acl_file)
    accounts = Accounts(None if files is None else files.read())
    async with open_service_nursery() as nursery:
        clients: ProxyClients
        session = Session(
            config.name_servers,
            nursery,
            heartbeat=lambda: clients.heartbeat(session.client_id),
            tls=config.tls,
            credentials=config.credentials,
        )
        clients = ProxyClients(session.loop.now)
        session.start()
        service = Service(session, clients, accounts)
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
                ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
                ("grpc.so_reuseport", 0),
                ("grpc.max_concurrent_streams", CONNECTION_CALLS_MAX),
                # Java's client looks after its connection every 30 s, and more than that would be ended.
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
                ("grpc.keepalive_time_ms", KEEPALIVE_MS),
                ("grpc.keepalive_timeout_ms", KEEPALIVE_MS),
            ],
            maximum_concurrent_rpcs=CALLS_MAX,
        )
        server.add_generic_rpc_handlers((_handlers(service),))
        port = _listen(server, config)
        await server.start()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(service.run)
                if files is not None:
                    tasks.start_soon(files.watch, service.rules_changed)
                yield port
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await server.stop(STOP_S)


def _listen(server: Any, config: ProxyConfig) -> int:
    try:
        if config.certificate is None:
            return int(server.add_insecure_port(config.listen))
        certificate, key = config.certificate
        credentials = grpc.ssl_server_credentials([(key, certificate)])
        return int(server.add_secure_port(config.listen, credentials))
    except RuntimeError as error:
        raise PortTakenError(f"cannot listen at {config.listen}: {error}") from error


def _handlers(service: Service) -> grpc.GenericRpcHandler:
    """Return all calls of the wire's service, by name."""
    return grpc.method_handlers_generic_handler(
        SERVICE.full_name, {method.name: _handler(service, method) for method in SERVICE.methods}
    )


def _handler(service: Service, method: Any) -> grpc.RpcMethodHandler:
    """Return one call; what is not served says so."""
    coders = {
        "request_deserializer": message_factory.GetMessageClass(method.input_type).FromString,
        "response_serializer": message_factory.GetMessageClass(
            method.output_type
        ).SerializeToString,
    }
    if method.name == "Telemetry":
        return grpc.stream_stream_rpc_method_handler(ended_quietly(service.Telemetry), **coders)
    if method.name == "ReceiveMessage":
        receive = guarded_stream(method.name, service.ReceiveMessage)
        return grpc.unary_stream_rpc_method_handler(receive, **coders)
    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(_not_served_stream(method), **coders)
    call = getattr(service, method.name, None) or _not_served(method.name)
    return grpc.unary_unary_rpc_method_handler(guarded(method.name, call), **coders)


def _not_served(name: str) -> Callable[[Any, Context], Awaitable[Any]]:
    async def refuse(_request: Any, _context: Context) -> Any:
        raise CallRefusedError(Code.NOT_IMPLEMENTED, f"{name} is not served here (docs/proxy.md)")

    return refuse


def _not_served_stream(method: Any) -> Callable[[Any, Context], Awaitable[None]]:
    refuse = guarded(method.name, _not_served(method.name))

    async def answered(request: Any, context: Context) -> None:
        await context.write(await refuse(request, context))

    return answered
