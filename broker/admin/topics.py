"""`dledger-admin topics`: which there are, what their queues hold; made, changed and removed."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import trio

from broker.admin.answers import QueueStats
from broker.admin.cluster import ChangeOutcome, Cluster, open_cluster
from broker.admin.command import Command, CommandGroup
from broker.admin.exit_codes import EXIT_OK
from broker.admin.failures import NotThereError, UnchangedError
from broker.admin.options import (
    add_broker_names,
    add_json,
    add_namesrv,
    add_topic,
    add_yes,
    count,
    truth,
)
from broker.admin.outcomes import exit_code_of, outcomes_json, print_outcomes
from broker.admin.printing import NONE, at, number, print_json, print_line, print_table
from dledger_mq.client.errors import ClientError, ClientUsageError
from dledger_mq.client.session import raise_for
from dledger_mq.message.names import (
    is_control_topic,
    is_dlq_topic,
    is_retry_topic,
    is_system_topic,
    system_topic_problem,
)
from dledger_mq.remoting.codes import RequestCode
from dledger_mq.remoting.topic_config import PERM_READ, PERM_WRITE, WireTopicConfig

QUEUES_DEFAULT = 8
QUEUES_MAX = 65_535
NAME_SERVER_TIMEOUT_S = 3.0

_PERMS: Mapping[str, int] = {"r": PERM_READ, "w": PERM_WRITE, "rw": PERM_READ | PERM_WRITE}


@dataclass(frozen=True, slots=True)
class TopicOnBroker:
    """A topic as one broker group has it; `queues` by queue id."""

    broker: str
    config: WireTopicConfig
    queues: Mapping[int, QueueStats] = field(default_factory=dict)

    @property
    def messages(self) -> int:
        """The number of messages that are kept."""
        return sum(each.messages for each in self.queues.values())


def kind_of(topic: str) -> str:
    """Return whose a topic is: an application's, for retries, for dead letters, or the system's."""
    if is_retry_topic(topic):
        return "retries"
    if is_dlq_topic(topic):
        return "dead letters"
    return "system" if is_system_topic(topic) or is_control_topic(topic) else "application"


def perm_text(perm: int) -> str:
    """Return a permission in letters."""
    return ("r" if perm & PERM_READ else "") + ("w" if perm & PERM_WRITE else "") or NONE


def _attributes(config: WireTopicConfig) -> dict[str, str]:
    return config.attributes if isinstance(config.attributes, dict) else {}


def _config_json(config: WireTopicConfig) -> dict[str, object]:
    return {
        "read_queues": config.read_queue_nums,
        "write_queues": config.write_queue_nums,
        "perm": perm_text(config.perm),
        "order": config.order,
        "attributes": _attributes(config),
    }


def _config_text(config: WireTopicConfig) -> str:
    """Return the settings of a topic on a line."""
    words = [
        f"{config.read_queue_nums} read and {config.write_queue_nums} write queues",
        f"perm {perm_text(config.perm)}",
        *(["ordered"] if config.order else []),
        *(f"{key}={value}" for key, value in sorted(_attributes(config).items())),
    ]
    return ", ".join(words)


def _add_list_options(command: argparse.ArgumentParser) -> None:
    add_namesrv(command, required=True)
    command.add_argument(
        "--all",
        action="store_true",
        help="also the system's, and those of retries and dead letters",
    )
    add_broker_names(command)
    add_json(command)


def _run_list(options: argparse.Namespace) -> int:
    """Print a row for each topic and broker group."""

    async def ask() -> list[tuple[str, WireTopicConfig]]:
        async with open_cluster(options.namesrv, options.broker) as cluster:
            return [
                (broker, config)
                for broker in cluster.brokers
                for config in (await cluster.topics(broker)).values()
            ]

    rows = sorted(trio.run(ask), key=lambda row: (row[1].topic_name, row[0]))
    rows = [row for row in rows if options.all or kind_of(row[1].topic_name) == "application"]
    if options.json:
        print_json({"topics": _list_json(rows)})
    else:
        _print_list(rows)
    return EXIT_OK


def _list_json(rows: Sequence[tuple[str, WireTopicConfig]]) -> list[dict[str, object]]:
    """Return topics as scripts read them, each with the broker groups that have it."""
    topics: dict[str, list[object]] = {}
    for broker, config in rows:
        topics.setdefault(config.topic_name, []).append({"broker": broker, **_config_json(config)})
    return [
        {"topic": name, "kind": kind_of(name), "brokers": brokers}
        for name, brokers in topics.items()
    ]


def _print_list(rows: Sequence[tuple[str, WireTopicConfig]]) -> None:
    """Print topics as a table."""
    numbers = ("read queues", "write queues")
    headings = ("topic", "kind", "broker", *numbers, "perm", "order", "attributes")
    cells = [
        (
            config.topic_name,
            kind_of(config.topic_name),
            broker,
            str(config.read_queue_nums),
            str(config.write_queue_nums),
            perm_text(config.perm),
            "yes" if config.order else "no",
            _attributes_text(config) or NONE,
        )
        for broker, config in rows
    ]
    print_table(f"topics: {len({row[0] for row in cells})}", headings, cells, right=numbers)


def _attributes_text(config: WireTopicConfig) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(_attributes(config).items()))


async def find_topic(cluster: Cluster, topic: str) -> list[TopicOnBroker]:
    """Return a topic on all broker groups that have it.

    Raises:
        NotThereError: none has it.
        ClientError: nobody could be asked.
    """
    found = []
    for broker in cluster.brokers:
        config = await cluster.topic(broker, topic)
        if config is not None:
            found.append(TopicOnBroker(broker, config, await cluster.queues(broker, topic)))
    if not found:
        raise NotThereError(f"there is no topic {topic} on {', '.join(cluster.brokers)}")
    return found


def _add_show_options(command: argparse.ArgumentParser) -> None:
    add_namesrv(command, required=True)
    add_topic(command)
    add_broker_names(command)
    add_json(command)


def _run_show(options: argparse.Namespace) -> int:
    """Print what a topic's queues hold, where they are, and who consumes them."""

    async def ask() -> tuple[list[TopicOnBroker], Mapping[str, Mapping[int, str]], list[str]]:
        async with open_cluster(options.namesrv, options.broker) as cluster:
            found = await find_topic(cluster, options.topic)
            return found, await cluster.inspector.addresses(), await _consumers(cluster, found)

    found, addresses, groups = trio.run(ask)
    if options.json:
        print_json(_topic_json(options.topic, found, addresses, groups))
        return EXIT_OK
    headings = ("broker", "queue", "min", "max", "messages", "newest stored")
    cells = [
        (
            one.broker,
            str(queue),
            number(stats.min_offset),
            number(stats.max_offset),
            number(stats.messages),
            at(stats.last_update_timestamp),
        )
        for one in found
        for queue, stats in one.queues.items()
    ]
    messages = number(sum(one.messages for one in found))
    print_table(f"{options.topic}: {messages} messages", headings, cells, right=headings[1:5])
    for one in found:
        nodes = addresses.get(one.broker, {})
        where = ", ".join(f"{key}: {node}" for key, node in sorted(nodes.items()))
        print_line(
            f"{one.broker}: {_config_text(one.config)}; nodes by broker id (0 leads): {where}"
        )
    print_line(f"consumed by: {', '.join(groups) or 'nobody'}")
    return EXIT_OK


async def _consumers(cluster: Cluster, found: Sequence[TopicOnBroker]) -> list[str]:
    """Return the groups that consume a topic anywhere."""
    groups: set[str] = set()
    for one in found:
        groups.update(await cluster.groups_of_topic(one.broker, one.config.topic_name))
    return sorted(groups)


def _topic_json(
    topic: str,
    found: Sequence[TopicOnBroker],
    addresses: Mapping[str, Mapping[int, str]],
    groups: Sequence[str],
) -> dict[str, object]:
    """Return a topic as scripts read it; the time of a queue without messages is null."""
    return {
        "topic": topic,
        "kind": kind_of(topic),
        "messages": sum(one.messages for one in found),
        "brokers": [
            {
                "broker": one.broker,
                **_config_json(one.config),
                "nodes": {
                    str(key): node for key, node in sorted(addresses.get(one.broker, {}).items())
                },
                "queues": [
                    {
                        "queue": queue,
                        "min": stats.min_offset,
                        "max": stats.max_offset,
                        "messages": stats.messages,
                        "newest_ms": stats.last_update_timestamp or None,
                    }
                    for queue, stats in one.queues.items()
                ],
            }
            for one in found
        ],
        "groups": list(groups),
    }


def _add_create_options(command: argparse.ArgumentParser) -> None:
    """Add the settings of a topic; those that are not given stay as they are, or get their default."""
    add_namesrv(command, required=True)
    add_topic(command)
    queues = count(1, QUEUES_MAX)
    command.add_argument(
        "-r", "--read-queues", type=queues, metavar="N", help=f"default {QUEUES_DEFAULT}"
    )
    command.add_argument(
        "-w", "--write-queues", type=queues, metavar="N", help=f"default {QUEUES_DEFAULT}"
    )
    command.add_argument(
        "-p", "--perm", type=_perm, metavar="PERM", help="r, w, rw (default), or 4, 2, 6"
    )
    command.add_argument("-o", "--order", type=truth, metavar="BOOL", help="true: an ordered topic")
    command.add_argument(
        "-a",
        "--attributes",
        default="",
        metavar="LIST",
        help="+key=value or -key, with commas between them: +message.type=FIFO, or --attributes=-message.type",
    )
    add_broker_names(command)
    add_json(command)


def _perm(text: str) -> int:
    """Read a permission.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    by_number = {str(value): value for value in _PERMS.values()}
    if text not in _PERMS and text not in by_number:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not one of r, w, rw, 4, 2, 6")
    return _PERMS.get(text) or by_number[text]


def _wanted(
    options: argparse.Namespace, topic: str, before: WireTopicConfig | None
) -> WireTopicConfig:
    """Return a topic as it is wanted: what is not named stays, or gets its default."""
    start = before or WireTopicConfig(
        topic_name=topic, read_queue_nums=QUEUES_DEFAULT, write_queue_nums=QUEUES_DEFAULT
    )
    named = {
        "read_queue_nums": options.read_queues,
        "write_queue_nums": options.write_queues,
        "perm": options.perm,
        "order": options.order,
    }
    changes = {key: value for key, value in named.items() if value is not None}
    return msgspec.structs.replace(start, **changes)


async def _put(
    cluster: Cluster, broker: str, topic: str, options: argparse.Namespace
) -> tuple[ChangeOutcome, WireTopicConfig | None, WireTopicConfig | None]:
    """Make or change a topic on one broker group; return what became of it, and how the topic was and is."""
    before = await cluster.topic(broker, topic)
    wanted = _wanted(options, topic, before)
    ext = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(wanted.read_queue_nums),
        "writeQueueNums": str(wanted.write_queue_nums),
        "perm": str(wanted.perm),
        "topicFilterType": wanted.topic_filter_type,
        "topicSysFlag": str(wanted.topic_sys_flag),
        "order": "true" if wanted.order else "false",
        "attributes": options.attributes,
    }
    outcome = await cluster.change(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, ext)
    return outcome, before, await cluster.topic(broker, topic)


def _run_create(options: argparse.Namespace) -> int:
    """Make a topic, or change one, on all broker groups; print how it was and is."""
    _check_changeable(options.topic)

    async def carry_out() -> list[
        tuple[ChangeOutcome, WireTopicConfig | None, WireTopicConfig | None]
    ]:
        async with open_cluster(options.namesrv, options.broker) as cluster:
            return [
                await _put(cluster, broker, options.topic, options) for broker in cluster.brokers
            ]

    done = trio.run(carry_out)
    outcomes = [outcome for outcome, _, _ in done]
    if options.json:
        rows = [
            {
                **row,
                "before": None if before is None else _config_json(before),
                "after": None if after is None else _config_json(after),
            }
            for row, (_, before, after) in zip(outcomes_json(outcomes), done, strict=True)
        ]
        print_json({"topic": options.topic, "brokers": rows})
    else:
        for outcome, before, after in done:
            was = "was not there" if before is None else _config_text(before)
            now = "is not there" if after is None else _config_text(after)
            print_line(
                f"{outcome.broker}: {options.topic}: {now}"
                + (f" (before: {was})" if before != after else "")
            )
        print_outcomes(outcomes)
    return exit_code_of(outcomes)


def _add_delete_options(command: argparse.ArgumentParser) -> None:
    add_namesrv(command, required=True)
    add_topic(command)
    add_yes(command, "remove it with all its messages")
    add_json(command)


def _run_delete(options: argparse.Namespace) -> int:
    """Remove a topic from all broker groups and name servers, or say what that would remove."""
    _check_changeable(options.topic)

    async def carry_out() -> tuple[list[TopicOnBroker], list[str], list[ChangeOutcome]]:
        async with open_cluster(options.namesrv) as cluster:
            found = await find_topic(cluster, options.topic)
            groups = await _consumers(cluster, found)
            return found, groups, await _delete(cluster, options.topic) if options.yes else []

    found, groups, outcomes = trio.run(carry_out)
    messages = sum(one.messages for one in found)
    if options.json:
        print_json(
            {
                "topic": options.topic,
                "messages": messages,
                "groups": groups,
                "done": bool(outcomes) and not any(each.problem for each in outcomes),
                "brokers": outcomes_json(outcomes),
            }
        )
    else:
        held = ", ".join(f"{number(one.messages)} messages on {one.broker}" for one in found)
        print_line(f"{options.topic}: {held}; consumed by: {', '.join(groups) or 'nobody'}")
        print_outcomes(outcomes)
    if not options.yes:
        raise UnchangedError(f"nothing was removed: --yes removes {options.topic}")
    return exit_code_of(outcomes)


async def _delete(cluster: Cluster, topic: str) -> list[ChangeOutcome]:
    """Remove a topic from the broker groups, then its route from all name servers."""
    outcomes = [
        await cluster.change(broker, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
        for broker in cluster.brokers
    ]
    session = cluster.inspector.reader.live_session()
    for address in session.name_servers.addresses if exit_code_of(outcomes) == EXIT_OK else ():
        link, code = session.links.get(address), RequestCode.DELETE_TOPIC_IN_NAMESRV
        try:
            raise_for(await link.call(code, {"topic": topic}, timeout_s=NAME_SERVER_TIMEOUT_S))
        except ClientError as error:
            outcomes.append(ChangeOutcome(f"name server {address}", str(error), not error.definite))
    return outcomes


def _check_changeable(topic: str) -> None:
    problem = system_topic_problem(topic)
    if problem is not None:
        raise ClientUsageError(problem)


TOPICS = CommandGroup(
    "topics",
    "topics: list, show, create or change, delete",
    (
        Command(
            "list",
            "all topics of applications, with their queues and settings",
            _add_list_options,
            _run_list,
            "topics list -n 127.0.0.1:9876",
            fields="topics: [topic, kind,\n"
            "  brokers: [broker, read_queues, write_queues, perm, order, attributes: {...}]]",
            aliases=("topicList",),
        ),
        Command(
            "show",
            "a topic's queues with what they hold, its settings, its nodes, and who consumes it",
            _add_show_options,
            _run_show,
            "topics show -n 127.0.0.1:9876 -t Orders",
            fields="topic, kind, messages, groups: [...],\n"
            "brokers: [broker, read_queues, write_queues, perm, order, attributes: {...},\n"
            "  nodes: {...}, queues: [queue, min, max, messages, newest_ms]]",
            aliases=("topicStatus", "topicRoute"),
        ),
        Command(
            "create",
            "make a topic, or change what is named of one that exists",
            _add_create_options,
            _run_create,
            "topics create -n 127.0.0.1:9876 -t Orders -r 4 -w 4",
            fields="topic, brokers: [broker, outcome (done, refused, unknown), problem, before, after]\n"
            "before, after: read_queues, write_queues, perm, order, attributes: {...}, or null",
            aliases=("updateTopic",),
            details="What is not named stays as it is. With fewer read queues, what stands in the others is not read "
            "any more; it is again when they come back.",
        ),
        Command(
            "delete",
            "remove a topic with its messages",
            _add_delete_options,
            _run_delete,
            "topics delete -n 127.0.0.1:9876 -t Orders --yes",
            fields="topic, messages, groups: [...], done, brokers: [broker, outcome, problem]",
            aliases=("deleteTopic",),
        ),
    ),
)
