"""The rows of the table of subcommands: what each is called, what it takes, and what carries it out.

It must not know any subcommand: each is described in a module of its own, and `cli.py` lists them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

PROGRAM = "dledger-admin"


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand, or a verb of one.

    Attributes:
        name: its word on the command line.
        text: what it does, in a line.
        add_options: adds what it takes to its parser.
        run: carries it out, and returns the exit code.
        example: the words after `dledger-admin` of a typical use.
        aliases: what RocketMQ's mqadmin calls it.
        details: what else its own help says; empty: nothing.
        fields: what `--json` prints: names that stay, `[...]` for lists, `{...}` for maps by names of others.
    """

    name: str
    text: str
    add_options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    example: str
    aliases: tuple[str, ...] = ()
    details: str = ""
    fields: str = ""


@dataclass(frozen=True, slots=True)
class CommandGroup:
    """A subcommand with verbs.

    Attributes:
        name: its word on the command line.
        text: what it is about, in a line.
        verbs: at least one.
        shortcuts: further names of mqadmin, and the words that each stands for.
    """

    name: str
    text: str
    verbs: tuple[Command, ...]
    shortcuts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


Row = Command | CommandGroup


def add_rows(
    parsers: argparse._SubParsersAction[argparse.ArgumentParser], rows: Iterable[Row]
) -> None:
    """Add a parser for each row; `run` in what is parsed carries the command out."""
    for row in rows:
        if isinstance(row, CommandGroup):
            group = parsers.add_parser(row.name, help=row.text, description=row.text)
            add_rows(group.add_subparsers(dest="verb", required=True, metavar="VERB"), row.verbs)
            continue
        parser = parsers.add_parser(
            row.name,
            aliases=row.aliases,
            help=row.text,
            description=f"{row.text}\n\n{row.details}".strip(),
            epilog=_epilog(row),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        row.add_options(parser)
        parser.set_defaults(run=row.run)


def _epilog(row: Command) -> str:
    """Return what stands below the options of a command: the fields of its JSON, and an example."""
    text = f"example:\n  {PROGRAM} {row.example}"
    if not row.fields:
        return text
    fields = "\n".join(f"  {line}" for line in row.fields.split("\n"))
    return f"with --json:\n{fields}\n\n{text}"


def names_of_mqadmin(rows: Iterable[Row]) -> dict[str, tuple[str, ...]]:
    """Return what mqadmin calls a verb, and the words that it stands for here."""
    found: dict[str, tuple[str, ...]] = {}
    for row in rows:
        if isinstance(row, CommandGroup):
            found |= {name: (row.name, each.name) for each in row.verbs for name in each.aliases}
            found |= row.shortcuts
    return found
