#!/usr/bin/env python3
"""Command line around PyPI `rocketmq-python-client` 5.1.2, RocketMQ 5's gRPC client.

    grpc_client.py produce --namesrv PROXY --topic T --count N [...]
    grpc_client.py consume --namesrv PROXY --topic T --group G --count N --timeout S [...]

PROXY is the endpoint of a proxy, host:port. One JSON object per line on stdout, as the other clients' programs have them.
"""
import argparse
import hashlib
import json
import os
import sys
import tempfile
import threading
import time

os.environ["HOME"] = tempfile.mkdtemp()  # the library logs below it, already when it is imported

from rocketmq import (  # noqa: E402
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

_lock = threading.Lock()


def emit(**row):
    with _lock:
        print(json.dumps(row), flush=True)


def digest(body):
    return hashlib.sha1(body).hexdigest()


class Checker(TransactionChecker):
    def check(self, message):
        emit(event="checked", body_sha1=digest(message.body))
        return TransactionResolution.COMMIT


def produce(args):
    checker = Checker() if args.transaction else None
    producer = Producer(configuration(args), (args.topic,), checker)
    producer.startup()
    failed = 0
    for number in range(args.count):
        message = Message()
        message.topic = args.topic
        message.body = f"grpc-{number}".encode()
        message.keys = f"k{number}"
        message.add_property("number", str(number))
        if args.message_groups:
            message.message_group = f"g{number % args.message_groups}"
        if args.delay_s:
            message.delivery_timestamp = int(time.time()) + args.delay_s
        row = {"i": number, "body_sha1": digest(message.body)}
        try:
            if args.transaction:
                transaction = producer.begin_transaction()
                sent = producer.send(message, transaction)
                end = number % 3  # one is committed, the next rolled back, the third is asked about
                row["end"] = ("commit", "rollback", "open")[end]
                if end == 0:
                    transaction.commit()
                elif end == 1:
                    transaction.rollback()
            else:
                sent = producer.send(message)
            emit(status="SEND_OK", msg_id=sent.message_id, **row)
        except Exception as error:
            failed += 1
            emit(status="ERROR", error=str(error)[:300], **row)
            if not args.keep_going:
                break
        time.sleep(args.interval_ms / 1000)
    emit(summary=True, failed=failed)
    if args.transaction:
        time.sleep(args.linger)
    return failed


class Tally(MessageListener):
    def __init__(self, args):
        self.args = args
        self.count = 0
        self.done = threading.Event()

    def consume(self, message):
        with _lock:
            self.count += 1
            is_later = self.count <= self.args.reconsume_first
        emit(
            body_sha1=digest(message.body), msg_id=message.message_id, keys=sorted(message.keys or []),
            group=message.message_group, properties=message.properties, reconsume_times=message.delivery_attempt - 1,
            body=message.body.decode(), action="later" if is_later else "ok",
        )
        with _lock:
            if self.count - self.args.reconsume_first >= self.args.count:
                self.done.set()
        return ConsumeResult.FAILURE if is_later else ConsumeResult.SUCCESS


def consume(args):
    tally = Tally(args)
    wanted = {args.topic: FilterExpression(args.expression)}
    if not args.simple:
        consumer = PushConsumer(configuration(args), args.group, tally, wanted)
        consumer.startup()
        emit(event="started")
        tally.done.wait(args.timeout)
        time.sleep(args.linger)
    else:
        consumer = SimpleConsumer(configuration(args), args.group, wanted)
        consumer.startup()
        emit(event="started")
        deadline = time.time() + args.timeout
        while not tally.done.is_set() and time.time() < deadline:
            try:
                messages = consumer.receive(16, 30) or []
            except Exception as error:  # Apache's proxy: until it has read the settings that were just told
                emit(event="receive-failed", error=str(error)[:300])
                time.sleep(0.1)
                continue
            for message in messages:
                if tally.consume(message) == ConsumeResult.SUCCESS:
                    consumer.ack(message)
                else:
                    consumer.change_invisible_duration(message, 1)
    emit(summary=True, accepted=tally.count - args.reconsume_first)
    return 0 if tally.done.is_set() else 1


def configuration(args):
    return ClientConfiguration(args.namesrv, Credentials(), request_timeout=20)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("operation", choices=["produce", "consume"])
    parser.add_argument("--namesrv", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--group")
    parser.add_argument("--interval-ms", type=int, default=0)
    parser.add_argument("--keep-going", action="store_true")
    parser.add_argument("--message-groups", type=int, default=0)
    parser.add_argument("--delay-s", type=int, default=0)
    parser.add_argument("--transaction", action="store_true")
    parser.add_argument("--expression", default="*")
    parser.add_argument("--reconsume-first", type=int, default=0)
    parser.add_argument("--simple", action="store_true")
    parser.add_argument("--linger", type=float, default=0)
    parser.add_argument("--timeout", type=float, default=120)
    args = parser.parse_args()
    status = produce(args) if args.operation == "produce" else consume(args)
    sys.stdout.flush()
    os._exit(1 if status else 0)  # its threads outlive `shutdown`


main()
