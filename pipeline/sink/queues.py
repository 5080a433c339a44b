"""The queues that a sink writes to, fixed when it is planned and, for exactly-once, for ever.

A broker group knows only the rows that it got itself. So a row that is sent again after a restart must meet
the same group, whatever the route says by then: an exactly-once sink writes down the queue list of its
topic once, in its metadata folder, and reads it back ever after.
"""

from __future__ import annotations

from urllib.parse import quote

from dledger_mq import MessageQueue
from dledger_mq.blocking import Producer
from dledger_mq.client.errors import ClientError, NoRouteError
from pipeline.access import BrokerAccess
from pipeline.errors import InconclusiveError, PipelineError, PipelineUsageError
from pipeline.locations import Location
from pipeline.sink.options import PRODUCER_GROUP, WHAT, SinkOptions
from pipeline.written_once import written_once


def plan_queues(options: SinkOptions) -> tuple[MessageQueue, ...]:
    """Return the queues of the option's topic, in order; nothing when every row names its own topic.

    Raises:
        PipelineError: there is no such topic, or no broker; or the place for the list cannot be used.
        PipelineUsageError: several groups serve the topic, and there is no place for the list.
    """
    if options.topic is None:
        return ()
    topic = options.topic

    def ask() -> tuple[MessageQueue, ...]:
        return ask_queues(
            options.name_server, topic, timeout_s=options.send_s, access=options.access
        )

    if options.is_exactly_once and options.metadata_folder is not None:
        # Two topics never share a file: "a|b" and "a%b" are two.
        file = options.metadata_folder / f"queues-{quote(topic, safe='')}.json"
        kept = written_once(
            file,
            "the queue list of the sink",
            lambda: [(queue.broker_name, queue.queue_id) for queue in ask()],
        )
        return _queues_of(topic, file, kept)
    queues = ask()
    if options.is_exactly_once and len({queue.broker_name for queue in queues}) > 1:
        raise PipelineUsageError(
            f"{WHAT}: several broker groups serve topic {topic}, and a row that is written again "
            "must meet the same one: give option metadataPath, a folder that stays"
        )
    return queues


def ask_queues(
    name_server: str, topic: str, *, timeout_s: float, access: BrokerAccess
) -> tuple[MessageQueue, ...]:
    """Ask the name servers for the queues of a topic.

    Raises:
        InconclusiveError: nobody serves it, or nobody answers.
    """
    try:
        with Producer(
            name_server, PRODUCER_GROUP, timeout_s=timeout_s, **access.arguments()
        ) as producer:
            return tuple(sorted(producer.queues(topic)))
    except NoRouteError as error:
        raise InconclusiveError(
            f"topic {topic} does not exist, or no broker serves it just now (name server {name_server})"
        ) from error
    except (ClientError, OSError) as error:
        raise InconclusiveError(f"no queues of topic {topic}: {error}") from error


def _queues_of(topic: str, file: Location, value: object) -> tuple[MessageQueue, ...]:
    try:
        queues = tuple(MessageQueue(topic, str(name), int(number)) for name, number in value)  # type: ignore[attr-defined]
    except (ValueError, TypeError) as error:
        raise PipelineError(
            f"the queue list of the sink in {file} cannot be read: {error}"
        ) from error
    if not queues:
        raise PipelineError(f"the queue list of the sink in {file} is empty")
    return queues
