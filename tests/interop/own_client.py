"""Our blocking client behind the command line of the foreign ones, so that tests and measurements can compare them.

    python -m tests.interop.own_client produce --namesrv H:P --topic T --count N [...]
    python -m tests.interop.own_client consume --namesrv H:P --topic T --group G --count N --timeout S [...]

One JSON object per line on stdout; exactly one has "summary": true. Exit status: 0 all done, 1 short or failed.
Everything that no option sets is the client's default. It must know nothing of the servers it speaks to.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from dledger_mq import Message, ReceivedMessage
from dledger_mq.blocking import Producer, PushConsumer
from dledger_mq.client.errors import ClientError, NoReplyError, SendError

CLIENT = "ours"
GRACE_S = 20.0


def emit(row: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()


def digest(body: bytes) -> str:
    return hashlib.sha1(body).hexdigest()


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    operations = parser.add_subparsers(dest="operation", required=True)
    produce, consume = operations.add_parser("produce"), operations.add_parser("consume")
    for one in (produce, consume):
        one.add_argument("--namesrv", required=True)
        one.add_argument("--topic", required=True)
        one.add_argument("--count", type=int, required=True)
        one.add_argument("--group", default="interop_own_producer")
        one.add_argument("--timeout", type=float, default=120.0)
    produce.add_argument("--tag")
    produce.add_argument("--key-prefix")
    produce.add_argument("--body-prefix", default="ours")
    produce.add_argument("--body-size", type=int, default=0)
    produce.add_argument("--interval-ms", type=int, default=0)
    produce.add_argument("--send-timeout-ms", type=int, help="default: the client's own")
    produce.add_argument("--orderly", action="store_true", help="a sharding key for each shard")
    produce.add_argument("--shards", type=int, default=1)
    produce.add_argument("--keep-going", action="store_true")
    produce.add_argument("--request", action="store_true", help="wait for the reply to each")
    consume.add_argument("--expression", default="*")
    consume.add_argument("--reply", action="store_true", help="with re: and the body")
    consume.add_argument("--send-timeout-ms", type=int, default=5000, help="of a reply")
    consume.add_argument("--linger", type=float, default=0.0)
    return parser.parse_args(arguments)


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """End the process with status 3 if the block takes longer."""

    def end() -> None:
        emit({"event": "hard_deadline", "seconds": seconds})
        os._exit(3)

    alarm = threading.Timer(seconds, end)
    alarm.daemon = True
    alarm.start()
    try:
        yield
    finally:
        alarm.cancel()


def produce(options: argparse.Namespace) -> int:
    """Send the messages one after the other; 0 if all were stored."""
    good = failed = 0
    timeout_s = None if options.send_timeout_ms is None else options.send_timeout_ms / 1000
    with Producer(options.namesrv, group=options.group) as producer:
        for number in range(options.count):
            body = f"{options.body_prefix}-{number}".encode().ljust(options.body_size, b".")
            name = f"{options.key_prefix}{number}" if options.key_prefix else None
            message = Message(options.topic, body, tags=options.tag, keys=(name,) if name else ())
            shard = f"shard-{number % options.shards}" if options.orderly else None
            row: dict[str, object] = {"i": number, "key": name, "body_sha1": digest(body)}
            begun_s = time.monotonic()
            try:
                if options.request:
                    reply = producer.request(message, key=shard, timeout_s=timeout_s)
                    row |= {"status": "SEND_OK", "reply": reply.body.decode()}
                else:
                    result = producer.send(message, key=shard, timeout_s=timeout_s)
                    row |= {"status": "SEND_OK", "queue_id": result.queue.queue_id}
                    row |= {"broker": result.queue.broker_name, "queue_offset": result.queue_offset}
            except (SendError, NoReplyError) as error:
                failed += 1
                row |= {"status": "ERROR", "error": f"{type(error).__name__}: {error}"[:400]}
            else:
                good += 1
            emit(row | {"ms": round((time.monotonic() - begun_s) * 1000, 1)})
            if failed and not options.keep_going:
                break
            time.sleep(options.interval_ms / 1000)
    emit({"summary": True, "client": CLIENT, "op": "produce", "ok": good, "failed": failed})
    return 0 if good == options.count else 1


def consume(options: argparse.Namespace) -> int:
    """Take messages until there are enough; 0 if there are."""
    taken = 0
    lock, full = threading.Lock(), threading.Event()

    def take(message: ReceivedMessage) -> None:
        nonlocal taken
        replied = {"reply": answer(message)} if options.reply else {}
        with lock:
            taken += 1
            emit(
                {
                    "topic": message.topic,
                    "broker": message.queue.broker_name,
                    "queue_id": message.queue.queue_id,
                    "queue_offset": message.queue_offset,
                    "tags": message.tags,
                    "keys": " ".join(message.keys),
                    "body": message.body.decode("utf-8", "replace"),
                    "body_sha1": digest(message.body),
                    "reconsume_times": message.reconsume_times,
                    "action": "ok",
                }
                | replied
            )
            if taken >= options.count:
                full.set()

    def answer(message: ReceivedMessage) -> str:
        try:
            timeout_s = options.send_timeout_ms / 1000
            consumer.reply(message, b"re:" + message.body, timeout_s=timeout_s)
        except ClientError as error:
            return str(error)
        return "SEND_OK"

    subscriptions = {options.topic: options.expression}
    consumer = PushConsumer(options.namesrv, options.group, take, subscriptions=subscriptions)
    with consumer:
        emit({"event": "started", "client": CLIENT, "pid": os.getpid()})
        if full.wait(options.timeout):
            time.sleep(options.linger)
    emit({"summary": True, "client": CLIENT, "op": "consume", "accepted": taken})
    return 0 if taken >= options.count else 1


def main() -> int:
    options = parsed(sys.argv[1:])
    with deadline(options.timeout + GRACE_S):
        return produce(options) if options.operation == "produce" else consume(options)


if __name__ == "__main__":
    sys.exit(main())
