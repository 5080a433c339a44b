"""Options that several subcommands have, and how their values are read.

It must not know any subcommand.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from broker.admin.moments import MomentError, parse_moment
from dledger_mq.client.errors import ClientUsageError
from dledger_mq.client.name_servers import parse_name_servers
from dledger_mq.message.names import group_problem, topic_problem


def add_namesrv(command: argparse._ActionsContainer, *, required: bool = False) -> None:
    """Add the name servers."""
    command.add_argument(
        "-n",
        "--namesrv",
        type=addresses,
        required=required,
        metavar="LIST",
        help="name servers, host:port;host:port",
    )


def add_namesrv_or_brokers(command: argparse.ArgumentParser) -> None:
    """Add the name servers, or instead of them the nodes themselves."""
    where = command.add_mutually_exclusive_group(required=True)
    add_namesrv(where)
    where.add_argument(
        "-b",
        "--brokers",
        type=addresses,
        metavar="LIST",
        help="the nodes themselves, host:port;host:port",
    )


def add_nodes_of_group(command: argparse.ArgumentParser) -> None:
    """Add what names the nodes of one broker group, and `--json`."""
    add_namesrv_or_brokers(command)
    command.add_argument(
        "-g", "--group", help="broker name; needed when the name servers know several"
    )
    add_json(command)


def add_json(command: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    command.add_argument("--json", action="store_true", help="one JSON object for scripts")


def add_yes(command: argparse.ArgumentParser, what: str) -> None:
    """Add `--yes`, without which nothing is changed."""
    command.add_argument(
        "--yes",
        action="store_true",
        help=f"{what}; without it the command says what would be done, and ends with 1",
    )


def add_topic(command: argparse.ArgumentParser, *, required: bool = True, text: str = "") -> None:
    """Add `--topic`."""
    command.add_argument(
        "-t", "--topic", type=topic_name, required=required, help=text or "the topic"
    )


def add_consumer_group(
    command: argparse.ArgumentParser, *, required: bool = True, text: str = ""
) -> None:
    """Add `--group`, a consumer group."""
    command.add_argument(
        "-g",
        "--group",
        type=consumer_group,
        required=required,
        dest="consumer_group",
        metavar="GROUP",
        help=text or "the consumer group",
    )


def add_broker_names(command: argparse.ArgumentParser) -> None:
    """Add `--broker`, which names broker groups."""
    command.add_argument(
        "--broker",
        action="append",
        metavar="NAME",
        help="on this broker group only (broker name); may be given several times",
    )


def addresses(text: str) -> tuple[str, ...]:
    """Read a list of addresses.

    Raises:
        argparse.ArgumentTypeError: it is empty, or one is not host:port.
    """
    if not text.strip(";, "):
        raise argparse.ArgumentTypeError("no address is given: host:port;host:port")
    try:
        return parse_name_servers(text)
    except ClientUsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def consumer_group(text: str) -> str:
    """Read the name of a consumer group.

    Raises:
        argparse.ArgumentTypeError: no group can have it.
    """
    return _name(text, group_problem)


def topic_name(text: str) -> str:
    """Read the name of a topic.

    Raises:
        argparse.ArgumentTypeError: no topic can have it.
    """
    return _name(text, topic_problem)


def _name(text: str, problem_of: Callable[[str], str | None]) -> str:
    problem = problem_of(text)
    if problem is not None:
        raise argparse.ArgumentTypeError(f"{text[:80]!r}: {problem}")
    return text


def moment(text: str) -> int:
    """Read a time; return ms since 1970.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    try:
        return parse_moment(text)
    except MomentError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def count(least: int, most: int) -> Callable[[str], int]:
    """Return what reads a whole number in a range, for `type=` of an option."""

    def read(text: str) -> int:
        is_number = text.isascii() and text.isdigit() and len(text) <= len(str(most))
        if not is_number or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(
                f"{text[:40]!r} is not a number from {least} to {most}"
            )
        return int(text)

    return read


def truth(text: str) -> bool:
    """Read true or false.

    Raises:
        argparse.ArgumentTypeError: it is neither.
    """
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is neither true nor false")
    return text.lower() == "true"
