"""A client of a proxy's gRPC port that is at work for some seconds: the other end of `bench.proxies`.

    python -m bench.grpc_load send|receive --endpoint HOST:PORT --topic T [--group G] [--in-flight 16] [--seconds 4]

It prints "begun" when what is measured begins, after --warm-up, and one line of JSON when it has ended. `send`: calls
with one message of 1 KiB each. `receive`: a call for up to 32 messages, and when they have come one that acknowledges
all of them. So many calls are in flight, each followed by the next. It is the same to any proxy, and must not know
whose it is. Exit codes: 0 done; 1 a call failed, or nothing was left to receive.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import grpc

from bench.options import positive, whole
from bench.real_group import BODY_BYTES, PULL_COUNT
from broker.proxy.protocol import SERVICE, message_class
from broker.proxy.protocol.numbers import ClientType, Code, MessageType

CALL_TIMEOUT_S: Final = 30.0
INVISIBLE_S: Final = 60
_IDENTITY: Final = 1
_TAG: Final = 1
_FILTER: Final = {"type": _TAG, "expression": "*"}


class CallFailedError(RuntimeError):
    """A call was answered with something else than success."""


class GrpcLoad:
    """The calls of one client, as many at a time as it is told.

    Attributes:
        message_count: of those that are done.
        times_s: how long each step took: a send, or a receipt with its acknowledgement.
    """

    def __init__(self, channel: grpc.aio.Channel, topic: str, group: str) -> None:
        self.message_count = 0
        self.times_s: list[float] = []
        self._topic = {"name": topic}
        self._group = {"name": group}
        self._metadata = [("x-mq-client-id", f"bench-{uuid.uuid4()}"), ("x-mq-language", "PYTHON")]
        self._is_over = False
        self._body = b"x" * BODY_BYTES
        self._send = self._call(channel.unary_unary, "SendMessage")
        self._receive = self._call(channel.unary_stream, "ReceiveMessage")
        self._acknowledge = self._call(channel.unary_unary, "AckMessage")
        self._telemetry = self._call(channel.stream_stream, "Telemetry")

    @staticmethod
    def _call(kind: Callable[..., Any], name: str) -> Any:
        method = SERVICE.methods_by_name[name]
        return kind(
            f"/{SERVICE.full_name}/{name}",
            request_serializer=message_class(method.input_type.name).SerializeToString,
            response_deserializer=message_class(method.output_type.name).FromString,
        )

    async def become_consumer(self) -> Any:
        """Tell that it receives; return the stream, which must stay open."""
        wanted = {"topic": self._topic, "expression": _FILTER}
        settings = message_class("Settings")(
            client_type=ClientType.SIMPLE_CONSUMER,
            subscription={"group": self._group, "subscriptions": [wanted]},
        )
        stream = self._telemetry(metadata=self._metadata)
        await stream.write(message_class("TelemetryCommand")(settings=settings))
        await stream.read()
        return stream

    async def send(self) -> int:
        """Send one message; return 1.

        Raises:
            CallFailedError: it was refused.
        """
        system = {
            "message_id": uuid.uuid4().hex.upper(),
            "message_type": MessageType.NORMAL,
            "body_encoding": _IDENTITY,
            "born_host": "127.0.0.1",
        }
        message = {"topic": self._topic, "body": self._body, "system_properties": system}
        request = message_class("SendMessageRequest")(messages=[message])
        answer = await self._send(request, metadata=self._metadata, timeout=CALL_TIMEOUT_S)
        _check(answer.status)
        return 1

    async def receive(self) -> int:
        """Receive messages and acknowledge them; return how many.

        Raises:
            CallFailedError: there are none, or one of them could not be acknowledged.
        """
        asked = message_class("ReceiveMessageRequest")(
            group=self._group,
            message_queue={"topic": self._topic, "id": -1},
            filter_expression=_FILTER,
            batch_size=PULL_COUNT,
            invisible_duration={"seconds": INVISIBLE_S},
            long_polling_timeout={"seconds": 5},
        )
        entries = []
        async for part in self._receive(asked, metadata=self._metadata, timeout=CALL_TIMEOUT_S):
            if part.HasField("status"):
                _check(part.status)
            elif part.HasField("message"):
                system = part.message.system_properties
                entries.append(
                    {"message_id": system.message_id, "receipt_handle": system.receipt_handle}
                )
        request = message_class("AckMessageRequest")(
            group=self._group, topic=self._topic, entries=entries
        )
        answer = await self._acknowledge(request, metadata=self._metadata, timeout=CALL_TIMEOUT_S)
        for each in answer.entries:
            _check(each.status)
        return len(entries)

    async def keep_on(self, step: Callable[[], Awaitable[int]]) -> None:
        """Take one step after the other until it is over."""
        while not self._is_over:
            begun_s = time.perf_counter()
            done = await step()
            self.message_count += done  # read behind the step: others have counted meanwhile
            self.times_s.append(time.perf_counter() - begun_s)

    def end(self) -> None:
        """Let what is in flight be the last."""
        self._is_over = True


def _check(status: Any) -> None:
    if status.code != Code.OK:
        raise CallFailedError(f"{status.code} {status.message}")


async def run(options: argparse.Namespace) -> dict[str, float]:
    """Be at work; return the messages, how long it was, and the median of the steps.

    Raises:
        ExceptionGroup: a call failed.
    """
    async with (
        grpc.aio.insecure_channel(options.endpoint) as channel,
        asyncio.TaskGroup() as tasks,
    ):
        load = GrpcLoad(channel, options.topic, options.group)
        stream = await load.become_consumer() if options.what == "receive" else None
        step = load.receive if options.what == "receive" else load.send
        for _ in range(options.in_flight):
            tasks.create_task(load.keep_on(step))
        await asyncio.sleep(options.warm_up)
        count, steps, begun_s = load.message_count, len(load.times_s), time.perf_counter()
        _print("begun")
        await asyncio.sleep(options.seconds)
        found = {
            "messages": load.message_count - count,
            "seconds": time.perf_counter() - begun_s,
            "p50_ms": 1000 * statistics.median(load.times_s[steps:] or [0.0]),
        }
        _print(json.dumps(found))
        load.end()
        if stream is not None:
            stream.cancel()
    return found


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Be at work; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="bench.grpc_load", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("what", choices=("send", "receive"))
    parser.add_argument("--endpoint", required=True, metavar="HOST:PORT")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", default="bench")
    parser.add_argument("--in-flight", type=whole, default=16)
    parser.add_argument("--warm-up", type=positive, default=1.0)
    parser.add_argument("--seconds", type=positive, default=4.0)
    try:
        asyncio.run(run(parser.parse_args(arguments)))
    except ExceptionGroup as errors:
        calls, others = errors.split((CallFailedError, grpc.RpcError))
        if calls is None or others is not None:
            raise
        sys.stderr.write(f"bench.grpc_load: {calls.exceptions[0]}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
