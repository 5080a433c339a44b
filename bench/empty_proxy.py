"""The floor of `bench.proxies`: grpcio's server as our proxy has it, which answers each send at once, and asks nobody.

    python -m bench.empty_proxy HOST:PORT

What a send costs there is what grpcio's asynchronous server takes for a call with these messages.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Final

import grpc

from broker.proxy.protocol import SERVICE, SendMessageResponse, SendResultEntry, message_class
from broker.proxy.protocol.numbers import Code
from broker.proxy.refusals import status

_CALL: Final = "SendMessage"


async def answer(request: Any, _context: Any) -> Any:
    """Say that all messages are stored."""
    done = status(Code.OK)
    entries = [
        SendResultEntry(status=done, message_id=one.system_properties.message_id)
        for one in request.messages
    ]
    return SendMessageResponse(status=done, entries=entries)


async def serve(address: str) -> None:
    """Serve until the process ends."""
    handler = grpc.unary_unary_rpc_method_handler(
        answer,
        request_deserializer=message_class("SendMessageRequest").FromString,
        response_serializer=SendMessageResponse.SerializeToString,
    )
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE.full_name, {_CALL: handler}),)
    )
    server.add_insecure_port(address)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
