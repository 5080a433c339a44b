"""`dledger-admin config`: the settings that hold on each node, and their changes while brokers run.

Which settings can change, and for whom, the brokers say (docs/configuration.md).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

from broker.admin.ask import NodeReply, ask_each
from broker.admin.cluster import ChangeOutcome, outcome_of_answer
from broker.admin.command import Command, CommandGroup
from broker.admin.exit_codes import EXIT_OK, EXIT_UNKNOWN
from broker.admin.failures import NotThereError
from broker.admin.nodes import addresses_of
from broker.admin.options import add_nodes_of_group
from broker.admin.outcomes import exit_code_of, outcomes_json, print_outcomes
from broker.admin.printing import NONE, print_json, print_line, print_table
from dledger_mq.remoting.codes import RequestCode, ResponseCode

_LOOKS_MAX: Final = 20
_LOOK_PAUSE_S: Final = 0.1
"""A change is done once it is committed; members that do not lead apply it with the next heartbeat."""


@dataclass(frozen=True, slots=True)
class ShownSettings:
    """The settings of a node.

    Attributes:
        values: by key.
        notes: who has changed what, and what the node passes over.
        problem: why they are not known; empty: they are.
    """

    address: str
    values: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    problem: str = ""


def read_settings(reply: NodeReply) -> ShownSettings:
    """Read the answer of a node (26): lines key=value, and comments."""
    if reply.answer is None:
        return ShownSettings(reply.address, problem=reply.problem)
    if reply.answer.code != ResponseCode.SUCCESS:
        why = f"refused with code {reply.answer.code}: {reply.answer.remark or ''}"
        return ShownSettings(reply.address, problem=why)
    lines = reply.answer.body.decode(errors="replace").splitlines()
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    notes = [line.lstrip("# ") for line in lines if line.startswith("#")]
    return ShownSettings(reply.address, {key: value for key, _, value in pairs}, notes)


async def _settings(addresses: Sequence[str]) -> list[ShownSettings]:
    return [
        read_settings(each) for each in await ask_each(addresses, RequestCode.GET_BROKER_CONFIG)
    ]


def _add_show_options(command: argparse.ArgumentParser) -> None:
    add_nodes_of_group(command)
    command.add_argument(
        "-k",
        "--key",
        metavar="TEXT",
        help="those keys only that have this in their name, whatever its case",
    )
    command.add_argument(
        "--differing", action="store_true", help="those only that are not the same on all nodes"
    )


def _run_show(options: argparse.Namespace) -> int:
    """Print a row for each setting: one value where all nodes have the same, else one of each node."""

    async def ask() -> list[ShownSettings]:
        return await _settings(await addresses_of(options))

    nodes = trio.run(ask)
    there = [one for one in nodes if not one.problem]
    problems = [f"{one.address}: {one.problem}" for one in nodes if one.problem]
    keys = sorted({key for one in there for key in one.values})
    if options.key:
        keys = [key for key in keys if options.key.lower() in key.lower()]
    if options.differing:
        keys = [key for key in keys if len({one.values.get(key) for one in there}) > 1]
    if options.json:
        print_json(
            {
                "nodes": {one.address: {key: one.values.get(key) for key in keys} for one in there},
                "notes": {one.address: list(one.notes) for one in there},
                "problems": problems,
            }
        )
    else:
        rows = [(key, *_cells(key, there)) for key in keys]
        print_table(f"settings: {len(keys)}", ("key", *(one.address for one in there)), rows)
        notes = dict.fromkeys(note for one in there for note in one.notes)
        for line in notes:
            print_line(line)
        for problem in problems:
            print_line(problem, "yellow")
    if problems:
        return EXIT_UNKNOWN
    if options.key and not keys:
        raise NotThereError(f"no setting has {options.key} in its name")
    return EXIT_OK


def _cells(key: str, nodes: Sequence[ShownSettings]) -> list[str]:
    """Return the value of each node; one that is the same everywhere stands once."""
    values = [one.values.get(key, NONE) for one in nodes]
    if len(values) > 1 and len(set(values)) == 1:
        return [values[0], *["="] * (len(values) - 1)]
    return values


def _add_set_options(command: argparse.ArgumentParser) -> None:
    add_nodes_of_group(command)
    command.add_argument("-k", "--key", required=True, metavar="KEY", help="as in a broker.conf")
    command.add_argument(
        "-v",
        "--value",
        required=True,
        metavar="VALUE",
        help='"" ends a change that was made before',
    )


def _outcome(reply: NodeReply) -> ChangeOutcome:
    if reply.answer is None:
        return ChangeOutcome(reply.address, reply.problem, reply.may_be_done)
    return outcome_of_answer(reply.address, reply.answer)


async def _settings_after(
    key: str, value: str, before: Sequence[ShownSettings], outcomes: Sequence[ChangeOutcome]
) -> list[ShownSettings]:
    """Return the settings once all nodes where the change is done show it; after some looks, as they are."""
    addresses = [one.address for one in before]
    after = await _settings(addresses)
    for _ in range(_LOOKS_MAX):
        if not any(
            _lags(key, value, was, now)
            for was, now, outcome in zip(before, after, outcomes, strict=True)
            if not outcome.problem
        ):
            break
        await trio.sleep(_LOOK_PAUSE_S)
        after = await _settings(addresses)
    return after


def _lags(key: str, value: str, was: ShownSettings, now: ShownSettings) -> bool:
    """Return whether a node shows a setting as before, and was to have another; without a value nobody knows which."""
    held = now.values.get(key)
    return bool(value) and held == was.values.get(key) and held not in {None, value}


def _run_set(options: argparse.Namespace) -> int:
    """Change a setting on all nodes, and print how it was and is on each."""
    body = f"{options.key}={options.value}\n".encode()

    async def carry_out() -> tuple[list[ShownSettings], list[ChangeOutcome], list[ShownSettings]]:
        addresses = await addresses_of(options)
        before = await _settings(addresses)
        outcomes = []
        for address in (
            addresses
        ):  # a change for the group is one on the first of them, and nothing new on the others
            (reply,) = await ask_each([address], RequestCode.UPDATE_BROKER_CONFIG, body=body)
            outcomes.append(_outcome(reply))
        return before, outcomes, await _settings_after(options.key, options.value, before, outcomes)

    before, outcomes, after = trio.run(carry_out)
    rows = [
        {
            **row,
            "before": was.values.get(options.key),
            "after": now.values.get(options.key),
        }
        for row, was, now in zip(outcomes_json(outcomes), before, after, strict=True)
    ]
    if options.json:
        print_json({"key": options.key, "value": options.value, "nodes": rows})
    else:
        cells = [
            (
                str(row["broker"]),
                str(row["before"] or NONE),
                str(row["after"] or NONE),
                str(row["outcome"]),
            )
            for row in rows
        ]
        print_table(options.key, ("node", "before", "after", "outcome"), cells)
        print_outcomes(outcomes)
    return exit_code_of(outcomes)


CONFIG = CommandGroup(
    "config",
    "settings of brokers: show, set",
    (
        Command(
            "show",
            "the settings that hold on each node, who has changed them, and what a node passes over",
            _add_show_options,
            _run_show,
            "config show -n 127.0.0.1:9876 -k retention",
            fields="nodes: {...}, notes: {...}, problems: [...]",
            aliases=("getBrokerConfig",),
        ),
        Command(
            "set",
            "change a setting while the brokers run",
            _add_set_options,
            _run_set,
            "config set -n 127.0.0.1:9876 -k fileReservedTime -v 48",
            fields="key, value, nodes: [broker, outcome (done, refused, unknown), problem, before, after]",
            aliases=("updateBrokerConfig",),
            details="Which settings can change, and whether for the group or a node, stands in docs/broker-conf.md.",
        ),
    ),
)
