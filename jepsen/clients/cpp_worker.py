"""Runs inside the C++ client's own virtual environment: sends or consumes until its input ends.

    python cpp_worker.py produce --namesrv H:P --home DIR
    python cpp_worker.py consume --namesrv H:P --home DIR --group G --topics T U

One JSON object per line. produce reads {"key", "topic", "queue", "body"} (queue null: one of the client's choice, of
another group when a send fails) and answers each, before it takes the next, with {"event": "ack", "key", "offset"} or
{"event": "unknown", "key", "text"}. consume writes {"event": "receive", "topic", "queue", "offset", "body", "uniq"}.
First of all both write {"event": "started"}. They stop when stdin is closed, so they cannot outlive who started them.

PyPI `rocketmq` 0.4.4 wraps Apache's C++ client; everything here besides that package is the standard
library, since nothing of ours is installed there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time

SEND_TIMEOUT_MS = 3000
RETRIES = 3
BACK_OFF_S = 1.0
"""After an error: it goes on asking the dead node of its route, which refuses at once, until that is back."""

_print_lock = threading.Lock()


def emit(**fields: object) -> None:
    """Write one line, whole, from any thread."""
    line = json.dumps(fields) + "\n"
    with _print_lock:
        sys.stdout.write(line)
        sys.stdout.flush()


def produce(arguments: argparse.Namespace) -> None:
    """Send the messages that stdin names, one after another."""
    from rocketmq import client  # type: ignore[import-not-found]  # only in its own environment

    producer = client.Producer("chaos-cpp-producer")
    producer.set_namesrv_addr(arguments.namesrv)
    producer.set_timeout(SEND_TIMEOUT_MS)
    producer.start()
    emit(event="started")
    for line in sys.stdin:
        asked = json.loads(line)
        key = asked["key"]
        message = client.Message(asked["topic"])
        message.set_body(asked["body"])
        try:
            if asked["queue"] is None:
                result = producer.send_sync(message)
            else:
                # The "sharding key" is the index of the queue in the sorted route.
                result = producer.send_orderly(message, asked["queue"], retry_times=RETRIES)
        except Exception as error:  # noqa: BLE001 - whatever the library says, the outcome is unknown
            emit(event="unknown", key=key, text=str(error)[:200])
            time.sleep(BACK_OFF_S)
        else:
            if int(result.status) == 0:
                emit(event="ack", key=key, offset=result.offset)
            else:
                emit(event="unknown", key=key, text=f"stored with {result.status}")


def consume(arguments: argparse.Namespace) -> None:
    """Print each delivered message until stdin ends."""
    from rocketmq import client, ffi

    consumer = client.PushConsumer(arguments.group)
    consumer.set_namesrv_addr(arguments.namesrv)
    consumer.set_thread_count(1)

    def on_message(_consumer: object, handle: object) -> int:
        message = client.RecvMessage(handle)
        emit(
            event="receive",
            topic=message.topic,
            queue=message.queue_id,
            offset=message.queue_offset,
            body=(message.body or b"").decode("utf-8", "replace"),
            uniq=(message.get_property("UNIQ_KEY") or b"").decode("utf-8", "replace"),
        )
        return 0  # consumed

    # The wheel's own subscribe() raises out of a C callback; registering by hand is the safe way.
    for topic in arguments.topics:
        client.ffi_check(ffi.dll.Subscribe(consumer._handle, topic.encode(), b"*"))  # noqa: SLF001 - as said
    consumer._register_callback(on_message)  # noqa: SLF001 - as said
    consumer.start()
    emit(event="started")
    sys.stdin.read()


def main() -> None:
    """Read the command line, work until stdin ends, leave without the library's own exit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["produce", "consume"])
    parser.add_argument("--namesrv", required=True)
    parser.add_argument("--home", required=True, help="for the logs that the library writes")
    parser.add_argument("--group", default="")
    parser.add_argument("--topics", nargs="*", default=[])
    arguments = parser.parse_args()
    os.environ["HOME"] = arguments.home  # before the library is loaded
    try:
        (produce if arguments.what == "produce" else consume)(arguments)
    finally:
        sys.stdout.flush()
        # Its shutdown now and then ends in std::terminate; everything that counts is printed.
        os._exit(0)


if __name__ == "__main__":
    main()
