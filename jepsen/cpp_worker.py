"""Runs inside the C++ client's own virtual environment: produces or consumes until its input ends.

    python cpp_worker.py produce --namesrv H:P --topic T --queues 4 --interval-ms 5
    python cpp_worker.py consume --namesrv H:P --topic T --group G

One JSON object per line on stdout. produce: `{"event": "send" | "ack" | "unknown", "queue", "number",
"offset"}`; bodies are `cpp|QUEUE|NUMBER`. consume: `{"event": "receive", "queue", "offset", "body"}`.
First of all `{"event": "started"}`. It stops when stdin is closed, so it cannot outlive who started it.

PyPI `rocketmq` 0.4.4 wraps Apache's C++ client; everything here besides that package is the standard
library, since nothing of ours is installed there.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
import time

_print_lock = threading.Lock()


def emit(**fields: object) -> None:
    """Write one line, whole, from any thread."""
    line = json.dumps(fields) + "\n"
    with _print_lock:
        sys.stdout.write(line)
        sys.stdout.flush()


def produce(arguments: argparse.Namespace, stop: threading.Event) -> None:
    """Send numbered messages to all queues in turn, one at a time, in order per queue."""
    from rocketmq import client  # type: ignore[import-not-found]  # only in its own environment

    producer = client.Producer("demo-cpp-producer")
    producer.set_namesrv_addr(arguments.namesrv)
    producer.set_timeout(3000)
    producer.start()
    emit(event="started")
    numbers = [0] * arguments.queues
    while not stop.is_set():
        for queue in range(arguments.queues):
            if stop.is_set():
                break
            number = numbers[queue]
            numbers[queue] += 1
            message = client.Message(arguments.topic)
            message.set_body(b"cpp|%d|%d" % (queue, number))
            emit(event="send", queue=queue, number=number)
            try:
                # The "sharding key" is the index of the queue in the sorted route.
                result = producer.send_orderly(message, queue, retry_times=3)
            except Exception as error:  # noqa: BLE001 - whatever the library says, the outcome is unknown
                emit(event="unknown", queue=queue, number=number, text=str(error)[:200])
            else:
                kind = "ack" if int(result.status) == 0 else "unknown"
                emit(event=kind, queue=queue, number=number, offset=result.offset)
            stop.wait(arguments.interval_ms / 1000)


def consume(arguments: argparse.Namespace, stop: threading.Event) -> None:
    """Print every delivery."""
    from rocketmq import client, ffi

    consumer = client.PushConsumer(arguments.group)
    consumer.set_namesrv_addr(arguments.namesrv)
    consumer.set_thread_count(1)

    def on_message(_consumer: object, handle: object) -> int:
        message = client.RecvMessage(handle)
        emit(
            event="receive",
            queue=message.queue_id,
            offset=message.queue_offset,
            body=(message.body or b"").decode("utf-8", "replace"),
        )
        return 0  # consumed

    # The wheel's own subscribe() raises out of a C callback; registering by hand is the safe way.
    client.ffi_check(ffi.dll.Subscribe(consumer._handle, arguments.topic.encode(), b"*"))  # noqa: SLF001 - as said
    consumer._register_callback(on_message)  # noqa: SLF001 - as said
    consumer.start()
    emit(event="started")
    stop.wait()


def main() -> None:
    """Read the command line, work until stdin ends, leave without the library's own exit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["produce", "consume"])
    parser.add_argument("--namesrv", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", default="demo-cpp")
    parser.add_argument("--queues", type=int, default=4)
    parser.add_argument("--interval-ms", type=int, default=5)
    arguments = parser.parse_args()
    # The library writes logs below HOME: give it a folder of its own before it is loaded.
    home = tempfile.mkdtemp(prefix="cpp-client-")
    os.environ["HOME"] = home
    stop = threading.Event()

    def wait_for_end_of_input() -> None:
        sys.stdin.read()
        stop.set()
        time.sleep(10)  # a send in a broken connection takes three seconds, then again
        leave()

    def leave() -> None:
        shutil.rmtree(home, ignore_errors=True)
        sys.stdout.flush()
        # Its shutdown now and then ends in std::terminate; everything that counts is printed.
        os._exit(0)

    threading.Thread(target=wait_for_end_of_input, daemon=True).start()
    try:
        (produce if arguments.what == "produce" else consume)(arguments, stop)
    finally:
        leave()


if __name__ == "__main__":
    main()
