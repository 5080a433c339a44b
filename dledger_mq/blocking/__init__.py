"""The clients for code without async: scripts, notebooks, workers of a cluster.

    with Producer(namesrv="127.0.0.1:9876", group="orders") as producer:
        producer.send(Message("Orders", b"one"))

Each object runs its client in a thread of its own, on trio; calls may come from any thread and block until
the answer is there. Methods have the arguments, results and errors of the async clients' methods.
"""

from dledger_mq.blocking.admin import Admin
from dledger_mq.blocking.consumers import PullConsumer, PushConsumer, SimpleConsumer
from dledger_mq.blocking.producers import IdempotentProducer, Producer, TransactionProducer

__all__ = [
    "Admin",
    "IdempotentProducer",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "SimpleConsumer",
    "TransactionProducer",
]
