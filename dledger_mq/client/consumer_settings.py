"""The settings of a member of a consumer group, in one value."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypedDict

from dledger_mq.client.arguments import (
    check_callable,
    check_credentials,
    check_instance,
    check_int,
    check_optional_text,
    check_seconds,
    check_tls,
    check_topic,
    check_truth,
    wrong_type,
)
from dledger_mq.client.assignment import StartFrom
from dledger_mq.client.consume_results import (
    BROKER_DECIDES,
    SUSPEND_S,
    AnyBatchHandler,
    check_delay_level,
    check_suspend,
)
from dledger_mq.client.credentials import Credentials
from dledger_mq.client.errors import ClientUsageError
from dledger_mq.client.hooks import ClientHooks
from dledger_mq.client.local_offsets import DEFAULT_FOLDER
from dledger_mq.client.process_queue import FlowLimits
from dledger_mq.client.queue_reader import PULL_BATCH, PullSettings
from dledger_mq.client.rebalance import Strategy, allocate_average
from dledger_mq.client.rebalance_listener import RebalanceListener
from dledger_mq.message.names import TRACE_TOPIC

COMMIT_S: Final = 5.0
CONCURRENCY: Final = 20  # Java's threads
CONSUME_TIMEOUT_S: Final = 15 * 60.0
CLOSE_TIMEOUT_S: Final = 20.0  # within the 30 s that Kubernetes gives a container
RECONSUME_MAX: Final = 16
BATCH_MAX: Final = 1024  # what Java allows for a consume batch and a pull
_NO_SPAN: Final = 2**63


class ConsumerOptions(TypedDict, total=False):
    """Keyword arguments of push consumers; the meanings are those of `ConsumerSettings`."""

    batch_handler: AnyBatchHandler | None
    consume_batch_max: int
    ordered: bool
    broadcast: bool
    allocation: Strategy
    concurrency: int
    start_from: StartFrom
    commit_interval_s: float
    max_reconsume_times: int | None
    retry_delay_level: int
    suspend_s: float
    consume_timeout_s: float
    close_timeout_s: float
    pull_batch: int
    pull_interval_s: float
    limits: FlowLimits | None
    offsets_folder: str | Path
    listener: RebalanceListener | None
    deserializer: Callable[[bytes], object] | None
    hooks: ClientHooks | None
    trace: bool
    trace_topic: str
    instance: str | None
    tls: ssl.SSLContext | None
    credentials: Credentials | None


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """The settings of a member of a group.

    Attributes:
        batch_handler: instead of a handler: consumes up to `consume_batch_max` messages of one queue,
            in queue order. What it returns or raises counts for all of them; `Later(consumed=n)` says
            that only those from the n-th on come again.
        consume_batch_max: messages of one call of `batch_handler`.
        ordered: handle the messages of a queue one after the other, in queue order; each queue is locked,
            so that no other member works on it at the same time.
        broadcast: every member gets all messages; offsets are kept in a file (`offsets_folder`), and
            what fails is dropped.
        allocation: how members share the queues (`dledger_mq.client.rebalance`); all must use the same.
        concurrency: how many messages are handled at the same time (not for `ordered`).
        start_from: where a group without a stored offset begins: "last" (only what comes), "first"
            (everything that is kept), or a time in ms since 1970. Brokers that still hold the first
            message of a queue begin there all the same.
        commit_interval_s: how often offsets are committed.
        max_reconsume_times: after so many deliveries a message goes to the dead letter topic. Default:
            16; `ordered` consumers try without end, since what comes later must not overtake.
        retry_delay_level: how long a message waits that failed: 0 the broker decides, 1..18, or -1
            straight to the dead letters; `Later` can say otherwise per message.
        suspend_s: how long an ordered queue waits after a failure; `Later` can say otherwise.
        consume_timeout_s: a message that the handler has for longer is given back (not if `ordered`
            or `broadcast`).
        close_timeout_s: a consumer that is left waits so long for handlers that run. Then those with `async` are
            cancelled, and the threads of the others left behind; the messages come again.
        pull_batch: messages asked for in one pull.
        pull_interval_s: pause between two pulls of a queue.
        limits: when pulling pauses because the handler does not keep up. Default: 1000 messages or
            100 MiB per queue, and a span of 2000 offsets unless `ordered`.
        offsets_folder: where a broadcast member keeps its offsets, by client id and group.
        listener: called when queues are acquired and released.
        deserializer: makes `message.value` of each body; what it raises on counts as failed.
        hooks: called around each call of the handler.
        trace: write records of what the handler gets, and what comes of it, to the trace topic, where tools find them.
        trace_topic: another topic for them than RocketMQ's.
        instance: the part of the client id that distinguishes members on one machine. Made up when not
            given; "DEFAULT" for `broadcast`, so that the member finds its offsets after a restart.
        tls: encrypts the connections, see `make_tls_context`; None: plain text.
        credentials: the account that signs all requests, see `read_credentials`; None: nothing is signed.
    """

    batch_handler: AnyBatchHandler | None = None
    consume_batch_max: int = 1
    ordered: bool = False
    broadcast: bool = False
    allocation: Strategy = allocate_average
    concurrency: int = CONCURRENCY
    start_from: StartFrom = "last"
    commit_interval_s: float = COMMIT_S
    max_reconsume_times: int | None = None
    retry_delay_level: int = BROKER_DECIDES
    suspend_s: float = SUSPEND_S
    consume_timeout_s: float = CONSUME_TIMEOUT_S
    close_timeout_s: float = CLOSE_TIMEOUT_S
    pull_batch: int = PULL_BATCH
    pull_interval_s: float = 0.0
    limits: FlowLimits | None = None
    offsets_folder: str | Path = DEFAULT_FOLDER
    listener: RebalanceListener | None = None
    deserializer: Callable[[bytes], object] | None = None
    hooks: ClientHooks | None = None
    trace: bool = False
    trace_topic: str = TRACE_TOPIC
    instance: str | None = None
    tls: ssl.SSLContext | None = None
    credentials: Credentials | None = None

    def __post_init__(self) -> None:
        """Refuse settings that cannot be meant.

        Raises:
            ClientUsageError: says which and why.
        """
        self._check_types()
        if self.commit_interval_s <= 0 or self.pull_interval_s < 0:
            raise ClientUsageError("commit_interval_s must be above 0, pull_interval_s not below")
        if not 1 <= self.pull_batch <= BATCH_MAX:
            raise ClientUsageError(f"pull_batch {self.pull_batch} is not in 1..{BATCH_MAX}")
        check_delay_level(self.retry_delay_level)
        check_suspend(self.suspend_s)
        if not 1 <= self.consume_batch_max <= BATCH_MAX:
            raise ClientUsageError(
                f"consume_batch_max {self.consume_batch_max} is not in 1..{BATCH_MAX}"
            )
        if self.concurrency < 1 or self.consume_timeout_s <= 0:
            raise ClientUsageError("concurrency and consume_timeout_s must be above 0")
        if self.close_timeout_s < 0:
            raise ClientUsageError(f"close_timeout_s {self.close_timeout_s} is below 0")
        if self.max_reconsume_times is not None and self.max_reconsume_times < 0:
            raise ClientUsageError(f"max_reconsume_times {self.max_reconsume_times} is below 0")

    def _check_types(self) -> None:
        """Raise ClientUsageError for a setting of a wrong type, before the checks of ranges compare it."""
        for name in ("consume_batch_max", "concurrency", "retry_delay_level", "pull_batch"):
            check_int(name, getattr(self, name))
        for name in (
            "commit_interval_s",
            "suspend_s",
            "consume_timeout_s",
            "close_timeout_s",
            "pull_interval_s",
        ):
            check_seconds(name, getattr(self, name))
        check_truth("ordered", self.ordered)
        check_truth("broadcast", self.broadcast)
        check_optional_text("instance", self.instance)
        check_tls(self.tls)
        check_credentials(self.credentials)
        check_callable("allocation", self.allocation)
        check_instance("offsets_folder", self.offsets_folder, (str, Path))
        if self.max_reconsume_times is not None:
            check_int("max_reconsume_times", self.max_reconsume_times)
        if self.batch_handler is not None:
            check_callable("batch_handler", self.batch_handler)
        if self.deserializer is not None:
            check_callable("deserializer", self.deserializer)
        if self.limits is not None:
            check_instance("limits", self.limits, FlowLimits)
        if self.listener is not None:
            check_instance("listener", self.listener, RebalanceListener)
        if self.hooks is not None:
            check_instance("hooks", self.hooks, ClientHooks)
        check_truth("trace", self.trace)
        check_topic(self.trace_topic)
        _check_start(self.start_from)

    @property
    def reconsume_max(self) -> int | None:
        """The bound on deliveries, after which a message is dead; None: never, as for ordered consumers."""
        if self.max_reconsume_times is None and not self.ordered:
            return RECONSUME_MAX
        return self.max_reconsume_times

    @property
    def pull(self) -> PullSettings:
        """The settings of pulling. What an ordered consumer holds of a queue may span any number of offsets."""
        limits = self.limits
        if limits is None:
            limits = FlowLimits(span_max=_NO_SPAN) if self.ordered else FlowLimits()
        return PullSettings(self.pull_batch, self.pull_interval_s, limits)


def _check_start(start_from: object) -> None:
    if isinstance(start_from, bool) or not isinstance(start_from, str | int):
        raise ClientUsageError(wrong_type("start_from", start_from, "'last', 'first' or ms"))
    if isinstance(start_from, str) and start_from not in ("last", "first"):
        raise ClientUsageError(f"start_from {start_from!r} is not 'last', 'first' or ms")
