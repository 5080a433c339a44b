"""`dledger-admin groups`: consumer groups, their settings and their members; made, changed and removed."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import trio

from broker.admin.answers import (
    ConsumerConnections,
    GroupClient,
    GroupPlace,
    WireGroupConfig,
)
from broker.admin.client_versions import version_text
from broker.admin.cluster import ChangeOutcome, Cluster, open_cluster
from broker.admin.command import Command, CommandGroup
from broker.admin.exit_codes import EXIT_OK
from broker.admin.failures import NotThereError, UnchangedError
from broker.admin.options import (
    add_broker_names,
    add_consumer_group,
    add_json,
    add_namesrv,
    add_yes,
    count,
    truth,
)
from broker.admin.outcomes import exit_code_of, outcomes_json, print_outcomes
from broker.admin.printing import number, print_json, print_line, print_table
from dledger_mq.client.errors import ClientUsageError
from dledger_mq.message.names import is_system_group
from dledger_mq.remoting.codes import RequestCode
from dledger_mq.remoting.json_body import write_json
from dledger_mq.remoting.message_queue import WireQueue

RETRIES_MAX = 1000
RETRY_QUEUES_MAX = 1000


@dataclass(frozen=True, slots=True)
class GroupOnBroker:
    """A consumer group as one broker group knows it.

    Attributes:
        config: its settings; None: it has none there, but offsets or members.
        clients: its members that are online.
        progress: how far it is, by queue.
    """

    broker: str
    config: WireGroupConfig | None
    clients: ConsumerConnections
    progress: Mapping[WireQueue, GroupPlace]

    @property
    def is_there(self) -> bool:
        """True if the broker group knows anything of it."""
        return bool(self.config or self.clients.connection_set or self.progress)


def lag_of(progress: GroupPlace) -> int:
    """Return the number of messages from a group's place to the end of the queue; without a place there is no lag."""
    return (
        max(0, progress.broker_offset - progress.consumer_offset)
        if progress.consumer_offset >= 0
        else 0
    )


def _config_json(config: WireGroupConfig | None) -> dict[str, object] | None:
    """Return settings as scripts read them; null: there are none."""
    if config is None:
        return None
    return {
        "consume": config.consume_enable,
        "broadcast": config.consume_broadcast_enable,
        "order": config.consume_message_orderly,
        "retries": config.retry_max_times,
        "retry_queues": config.retry_queue_nums,
    }


def _config_text(config: WireGroupConfig | None) -> str:
    """Return settings on a line."""
    if config is None:
        return "no settings of its own"
    words = [
        "may consume" if config.consume_enable else "may not consume",
        f"{config.retry_max_times} retries",
        f"{config.retry_queue_nums} retry queues",
        *(["ordered"] if config.consume_message_orderly else []),
        *([] if config.consume_broadcast_enable else ["no broadcasting"]),
    ]
    return ", ".join(words)


def _add_list_options(command: argparse.ArgumentParser) -> None:
    add_namesrv(command, required=True)
    command.add_argument("--all", action="store_true", help="also the system's")
    add_broker_names(command)
    add_json(command)


def _run_list(options: argparse.Namespace) -> int:
    """Print a row for each group and broker group; those with offsets only are listed, too."""

    async def ask() -> list[tuple[str, str, WireGroupConfig | None, list[str]]]:
        rows = []
        async with open_cluster(options.namesrv, options.broker) as cluster:
            for broker in cluster.brokers:
                configs = await cluster.groups(broker)
                offsets = await cluster.inspector.consumer_offsets(broker)
                rows += [
                    (group, broker, configs.get(group), sorted(offsets.get(group, ())))
                    for group in configs.keys() | offsets.keys()
                ]
        return sorted(rows, key=lambda row: row[:2])

    rows = [row for row in trio.run(ask) if options.all or not is_system_group(row[0])]
    if options.json:
        groups: dict[str, list[object]] = {}
        for group, broker, config, topics in rows:
            groups.setdefault(group, []).append(
                {"broker": broker, "settings": _config_json(config), "topics": topics}
            )
        listed = [{"group": name, "brokers": brokers} for name, brokers in groups.items()]
        print_json({"groups": listed})
        return EXIT_OK
    cells = [
        (group, broker, _config_text(config), str(len(topics)))
        for group, broker, config, topics in rows
    ]
    title = f"consumer groups: {len({row[0] for row in rows})}"
    headings = ("group", "broker", "settings", "topics with offsets")
    print_table(title, headings, cells, right=headings[3:])
    return EXIT_OK


async def find_group(cluster: Cluster, group: str) -> list[GroupOnBroker]:
    """Return a group on all broker groups that know it.

    Raises:
        NotThereError: none does.
        ClientError: nobody could be asked.
    """
    found = []
    for broker in cluster.brokers:
        one = GroupOnBroker(
            broker,
            await cluster.group(broker, group),
            await cluster.consumers(broker, group),
            await cluster.progress(broker, group),
        )
        if one.is_there:
            found.append(one)
    if not found:
        raise NotThereError(f"there is no consumer group {group} on {', '.join(cluster.brokers)}")
    return found


def members_of(found: Sequence[GroupOnBroker]) -> list[GroupClient]:
    """Return the members that are online anywhere, sorted by their ids."""
    clients = {each.client_id: each for one in found for each in one.clients.connection_set}
    return [clients[client_id] for client_id in sorted(clients)]


async def online_members(cluster: Cluster, group: str) -> list[str]:
    """Return the ids of a group's members, on all broker groups."""
    found: set[str] = set()
    for broker in cluster.brokers:
        clients = await cluster.consumers(broker, group)
        found.update(each.client_id for each in clients.connection_set)
    return sorted(found)


def _add_show_options(command: argparse.ArgumentParser) -> None:
    add_namesrv(command, required=True)
    add_consumer_group(command)
    add_broker_names(command)
    add_json(command)


def _run_show(options: argparse.Namespace) -> int:
    """Print a group's members, what they want, and how far it is in each topic."""

    async def ask() -> list[GroupOnBroker]:
        async with open_cluster(options.namesrv, options.broker) as cluster:
            return await find_group(cluster, options.consumer_group)

    found = trio.run(ask)
    topics = _topics(found)
    if options.json:
        print_json(_group_json(options.consumer_group, found, topics))
        return EXIT_OK
    cells = [
        (topic, row.wanted, number(row.queues), number(row.lag), number(row.in_flight))
        for topic, row in topics.items()
    ]
    headings = ("topic", "subscription", "queues", "lag", "in flight")
    print_table(options.consumer_group, headings, cells, right=headings[2:])
    for one in found:
        print_line(f"{one.broker}: {_config_text(one.config)}")
    members = members_of(found)
    print_line("online: nobody" if not members else f"online: {len(members)}")
    for each in members:
        client = f"{each.language}, {version_text(each.version)}"
        print_line(f"  {each.client_id} from {each.client_addr} ({client})")
    return EXIT_OK


@dataclass(frozen=True, slots=True)
class GroupInTopic:
    """A consumer group in a topic, on all broker groups.

    Attributes:
        wanted: its subscription.
        queues: how many it has a place in.
        lag: messages from its places to the ends.
        in_flight: popped, and not acknowledged.
    """

    wanted: str
    queues: int
    lag: int
    in_flight: int


def _topics(found: Sequence[GroupOnBroker]) -> dict[str, GroupInTopic]:
    """Return where a group stands, by topic."""
    wanted = {
        topic: each.sub_string
        for one in found
        for topic, each in one.clients.subscription_table.items()
    }
    rows = [(queue, each) for one in found for queue, each in one.progress.items()]
    names = sorted({*wanted, *(queue.topic for queue, _ in rows)})
    table = {}
    for name in names:
        places = [each for queue, each in rows if queue.topic == name]
        in_flight = sum(each.in_flight for each in places)
        lag = sum(map(lag_of, places))
        table[name] = GroupInTopic(wanted.get(name, ""), len(places), lag, in_flight)
    return table


def _group_json(
    group: str, found: Sequence[GroupOnBroker], topics: Mapping[str, GroupInTopic]
) -> dict[str, object]:
    """Return a group as scripts read it."""
    return {
        "group": group,
        "brokers": [{"broker": one.broker, "settings": _config_json(one.config)} for one in found],
        "topics": [
            {
                "topic": name,
                "subscription": row.wanted,
                "queues": row.queues,
                "lag": row.lag,
                "in_flight": row.in_flight,
            }
            for name, row in topics.items()
        ],
        "members": [
            {
                "client_id": each.client_id,
                "address": each.client_addr,
                "language": each.language,
                "version": version_text(each.version),
            }
            for each in members_of(found)
        ],
    }


def _add_create_options(command: argparse.ArgumentParser) -> None:
    """Add the settings of a group; those that are not given stay as they are, or get their default."""
    add_namesrv(command, required=True)
    add_consumer_group(command)
    command.add_argument(
        "-r",
        "--retries",
        type=count(0, RETRIES_MAX),
        metavar="N",
        help="deliveries of a message that fails, before it is a dead letter (default 16)",
    )
    command.add_argument(
        "-q", "--retry-queues", type=count(1, RETRY_QUEUES_MAX), metavar="N", help="default 1"
    )
    command.add_argument(
        "-s", "--consume", type=truth, metavar="BOOL", help="false: its members get no messages"
    )
    command.add_argument(
        "-d", "--broadcast", type=truth, metavar="BOOL", help="may it be used for broadcasting?"
    )
    command.add_argument(
        "-o", "--order", type=truth, metavar="BOOL", help="true: it consumes in order"
    )
    add_broker_names(command)
    add_json(command)


def _wanted(
    options: argparse.Namespace, group: str, before: WireGroupConfig | None
) -> WireGroupConfig:
    """Return a group as it is wanted: what is not named stays, or gets its default."""
    named = {
        "retry_max_times": options.retries,
        "retry_queue_nums": options.retry_queues,
        "consume_enable": options.consume,
        "consume_broadcast_enable": options.broadcast,
        "consume_message_orderly": options.order,
    }
    changes = {key: value for key, value in named.items() if value is not None}
    return msgspec.structs.replace(before or WireGroupConfig(group_name=group), **changes)


_Put = tuple[ChangeOutcome, WireGroupConfig | None, WireGroupConfig | None]


async def _put(cluster: Cluster, broker: str, group: str, options: argparse.Namespace) -> _Put:
    """Make or change a group on one broker group; return what became of it, and how the group was and is."""
    before = await cluster.group(broker, group)
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    body = write_json(_wanted(options, group, before))
    outcome = await cluster.change(broker, code, {}, body)
    return outcome, before, await cluster.group(broker, group)


def _run_create(options: argparse.Namespace) -> int:
    """Make a group, or change one, on all broker groups; print how it was and is."""
    group: str = options.consumer_group

    async def carry_out() -> list[_Put]:
        async with open_cluster(options.namesrv, options.broker) as cluster:
            return [await _put(cluster, broker, group, options) for broker in cluster.brokers]

    done = trio.run(carry_out)
    outcomes = [outcome for outcome, _, _ in done]
    if options.json:
        rows = [
            {**row, "before": _config_json(before), "after": _config_json(after)}
            for row, (_, before, after) in zip(outcomes_json(outcomes), done, strict=True)
        ]
        print_json({"group": group, "brokers": rows})
    else:
        for outcome, before, after in done:
            was = f" (before: {_config_text(before)})" if before != after else ""
            print_line(f"{outcome.broker}: {group}: {_config_text(after)}{was}")
        print_outcomes(outcomes)
    return exit_code_of(outcomes)


def _add_delete_options(command: argparse.ArgumentParser) -> None:
    add_namesrv(command, required=True)
    add_consumer_group(command)
    command.add_argument(
        "--keep-offsets",
        action="store_true",
        help="remove its settings only: it goes on where it was when it comes back",
    )
    add_yes(command, "remove it")
    add_json(command)


def _run_delete(options: argparse.Namespace) -> int:
    """Remove a group, or say what that would remove; one with members online would come back, and is left alone."""
    group: str = options.consumer_group
    if is_system_group(group):
        raise ClientUsageError(f"{group} is a group of the system")

    async def carry_out() -> tuple[list[GroupOnBroker], list[ChangeOutcome]]:
        async with open_cluster(options.namesrv) as cluster:
            found = await find_group(cluster, group)
            brokers = cluster.brokers if options.yes and not members_of(found) else ()
            is_kept = options.keep_offsets
            return found, [
                await _delete(cluster, broker, group, is_kept=is_kept) for broker in brokers
            ]

    found, outcomes = trio.run(carry_out)
    members = [each.client_id for each in members_of(found)]
    topics = _topics(found)
    if options.json:
        print_json(
            {
                "group": group,
                "members": members,
                "topics": list(topics),
                "done": bool(outcomes) and not any(each.problem for each in outcomes),
                "brokers": outcomes_json(outcomes),
            }
        )
    else:
        kept = "which stay" if options.keep_offsets else "which go, too"
        print_line(
            f"{group}: offsets in {len(topics)} topics, {kept}: {', '.join(topics) or 'none'}"
        )
        print_outcomes(outcomes)
    if members:
        raise UnchangedError(
            f"nothing was removed: {', '.join(members)} is online, and would bring {group} back; stop it first"
        )
    if not options.yes:
        raise UnchangedError(f"nothing was removed: --yes removes {group}")
    return exit_code_of(outcomes)


async def _delete(cluster: Cluster, broker: str, group: str, *, is_kept: bool) -> ChangeOutcome:
    """Remove a group from one broker group, and look whether its offsets are gone."""
    ext = {"groupName": group, "cleanOffset": "false" if is_kept else "true"}
    outcome = await cluster.change(broker, RequestCode.DELETE_SUBSCRIPTIONGROUP, ext)
    if outcome.problem or is_kept or not await cluster.progress(broker, group):
        return outcome
    text = "its offsets are still there: a broker removes them with the settings of a group, so create it, then delete"
    return ChangeOutcome(broker, text)


GROUPS = CommandGroup(
    "groups",
    "consumer groups: list, show, create or change, delete",
    (
        Command(
            "list",
            "all consumer groups, those with offsets only included",
            _add_list_options,
            _run_list,
            "groups list -n 127.0.0.1:9876",
            fields="groups: [group, brokers: [broker, topics: [...], settings]]\n"
            "settings: consume, broadcast, order, retries, retry_queues, or null",
        ),
        Command(
            "show",
            "a group's settings, members, subscriptions, and in each topic its lag and what it has in flight",
            _add_show_options,
            _run_show,
            "groups show -n 127.0.0.1:9876 -g billing",
            fields="group, brokers: [broker, settings], topics: [topic, subscription, queues, lag, in_flight],\n"
            "members: [client_id, address, language, version]\n"
            "settings: consume, broadcast, order, retries, retry_queues, or null",
            aliases=("getConsumerConfig",),
        ),
        Command(
            "create",
            "make a consumer group, or change what is named of one that exists",
            _add_create_options,
            _run_create,
            "groups create -n 127.0.0.1:9876 -g billing -r 5",
            fields="group, brokers: [broker, outcome (done, refused, unknown), problem, before, after]\n"
            "before, after: consume, broadcast, order, retries, retry_queues, or null",
            aliases=("updateSubGroup",),
            details="What is not named stays as it is.",
        ),
        Command(
            "delete",
            "remove a consumer group with its offsets",
            _add_delete_options,
            _run_delete,
            "groups delete -n 127.0.0.1:9876 -g billing --yes",
            fields="group, members: [...], topics: [...], done, brokers: [broker, outcome, problem]",
            aliases=("deleteSubGroup",),
        ),
    ),
)
