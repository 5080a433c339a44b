"""The queues that a sink writes to, fixed when it is planned and, for exactly-once, for ever.

A broker group knows only the rows that it got itself. So a row that is sent again after a restart must meet
the same group, whatever the route says by then: an exactly-once sink writes down the queue list of its
topic once, in its metadata folder, and reads it back ever after.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path

from broker.client import MessageQueue
from broker.client.blocking import Producer
from broker.client.errors import ClientError, NoRouteError
from pipeline.errors import PipelineError, UsageError
from pipeline.sink.options import PRODUCER_GROUP, WHAT, SinkOptions

_SAFE = re.compile(r"[^A-Za-z0-9._-]")


def plan_queues(options: SinkOptions) -> tuple[MessageQueue, ...]:
    """Return the queues of the option's topic, in order; nothing when every row names its own topic.

    Raises:
        PipelineError: there is no such topic, or no broker; or the place for the list cannot be used.
        UsageError: several groups serve the topic, and there is no place for the list.
    """
    if options.topic is None:
        return ()
    file = None
    if options.is_exactly_once and options.metadata_folder is not None:
        file = options.metadata_folder / f"queues-{_SAFE.sub('_', options.topic)}.json"
        kept = _read(file, options.topic)
        if kept is not None:
            return kept
    queues = ask_queues(options.name_server, options.topic, timeout_s=options.send_s)
    if file is not None:
        return _keep(file, queues)
    if options.is_exactly_once and len({queue.broker_name for queue in queues}) > 1:
        raise UsageError(
            f"{WHAT}: several broker groups serve topic {options.topic}, and a row that is written again "
            "must meet the same one: give option metadataPath, a folder that stays"
        )
    return queues


def ask_queues(name_server: str, topic: str, *, timeout_s: float) -> tuple[MessageQueue, ...]:
    """Ask the name servers for the queues of a topic.

    Raises:
        PipelineError: nobody serves it, or nobody answers.
    """
    try:
        with Producer(name_server, PRODUCER_GROUP, timeout_s=timeout_s) as producer:
            return tuple(sorted(producer.queues(topic)))
    except NoRouteError as error:
        raise PipelineError(
            f"topic {topic} does not exist, or no broker serves it just now (name server {name_server})"
        ) from error
    except (ClientError, OSError) as error:
        raise PipelineError(f"no queues of topic {topic}: {error}") from error


def _read(file: Path, topic: str) -> tuple[MessageQueue, ...] | None:
    try:
        rows = json.loads(file.read_text())
        queues = tuple(MessageQueue(topic, str(name), int(number)) for name, number in rows)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise PipelineError(
            f"the queue list of the sink in {file} cannot be read: {error}"
        ) from error
    if not queues:
        raise PipelineError(f"the queue list of the sink in {file} is empty")
    return queues


def _keep(file: Path, queues: tuple[MessageQueue, ...]) -> tuple[MessageQueue, ...]:
    """Write the list down, whole or not at all; who comes second gets what the first one wrote."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, prefix=".queues-") as aside:
            json.dump([(queue.broker_name, queue.queue_id) for queue in queues], aside)
            aside.flush()
            os.fsync(aside.fileno())
            try:
                os.link(aside.name, file)
            except FileExistsError:
                kept = _read(file, queues[0].topic)
                assert kept is not None, "it has just been there"
                return kept
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise PipelineError(
            f"the queue list of the sink cannot be kept in {file}: {error}"
        ) from error
    return queues
