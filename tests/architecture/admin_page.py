"""docs/admin.md, made from the table of subcommands and from their parsers."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from textwrap import fill

from broker.admin.cli import COMMANDS, EPILOG, parser
from broker.admin.command import PROGRAM, Command, CommandGroup, names_of_mqadmin
from broker.admin.moments import FORMS

WIDTH = 118

HEAD = """# What operators do with `dledger-admin`

Made from the subcommands themselves by `make docs`; do not edit. What they find out about replicas is explained in
[operations-replicas.md](operations-replicas.md), [members.md](members.md), [retention.md](retention.md),
[upgrades.md](upgrades.md), [dead-letters.md](dead-letters.md) and [migration.md](migration.md).

- **Where.** `-n` names name servers; the broker groups, and who leads them, come from there. A command about topics,
  groups or messages asks all broker groups, or those that `--broker` names.
- **Changes.** What removes something, or moves a group, is carried out with `--yes` only; without it the command shows
  what it would do, changes nothing, and ends with 1. What became of a change is said for each broker group: *done*,
  *refused* (it was not changed), or *unknown* (it may have been changed, or may yet be: look again, or repeat it, which
  is harmless).
- **Times.** A command reads FORMS.
  It shows local time with UTC behind it, or UTC alone where that is the same. In JSON a time is a name that ends in
  `_ms`, in milliseconds since 1970, and `null` where there is none.
- **JSON.** `--json` prints one object with the fields that stand below; fields may be added, and keep their names.
  Lists are `[...]`, and maps by the names of others `{...}`. Where there is nothing to show, nothing is printed; why,
  and what may be concluded, stands in a line on the error output, with or without `--json`.
- **mqadmin's names.** These may be used instead of ours, with the options that stand below:
NAMES.
"""


def admin_page() -> str:
    """The whole page."""
    sorted_names = sorted({*names_of_mqadmin(COMMANDS), *_aliases()})
    names = fill(
        ", ".join(f"`{name}`" for name in sorted_names),
        WIDTH,
        initial_indent="  ",
        subsequent_indent="  ",
        break_on_hyphens=False,
    )
    whole = parser()
    leaves = list(_leaves(whole))
    rows = [f"| [`{path}`](#{path.replace(' ', '-')}) | {text} |" for path, text, _ in leaves]
    table = ["| command | what it does |", "|---|---|", *rows]
    sections = [_section(path, text, leaf) for path, text, leaf in leaves]
    before = [_option(each, whole) for each in whole._actions if _is_option(each)]
    codes = "\n".join(f"    {line}" for line in EPILOG.split("\n\n")[0].split("\n")[1:])
    parts = [
        HEAD.replace("NAMES", names).replace("FORMS", FORMS),
        "\n".join(table),
        "\n".join(["## Before the command", "", "| option | meaning |", "|---|---|", *before]),
        f"## Exit codes\n\n{codes}",
        *sections,
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _aliases() -> list[str]:
    return [name for row in COMMANDS if isinstance(row, Command) for name in row.aliases]


def _leaves(
    whole: argparse.ArgumentParser, text: str = ""
) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Yield the words of each command and verb, what it does, and its parser, which an alias shares."""
    for action in whole._actions:
        if isinstance(action, argparse._SubParsersAction):
            texts = {each.dest: each.help or "" for each in action._choices_actions}
            parsers = {id(each): each for each in action.choices.values()}
            for inner, shown in zip(parsers.values(), texts.values(), strict=True):
                yield from _leaves(inner, shown)
            return
    yield whole.prog.removeprefix(f"{PROGRAM} "), text, whole


def _row(path: str) -> Command | None:
    """Return the row of a command; None: a verb that somebody else's parser has, and no example shows."""
    first, _, verb = path.partition(" ")
    row = next(each for each in COMMANDS if each.name == first)
    if isinstance(row, CommandGroup):
        return next(each for each in row.verbs if each.name == verb)
    return row if not verb or row.example.startswith(f"{path} ") else None


def _section(path: str, text: str, leaf: argparse.ArgumentParser) -> str:
    """The section of one command."""
    row = _row(path)
    lines = [f"## {path}", "", f"{text[0].upper()}{text[1:]}."]
    if row is not None and row.details:
        lines += ["", row.details.strip()]
    if row is not None and row.aliases:
        lines += ["", f"In mqadmin: {', '.join(f'`{name}`' for name in row.aliases)}."]
    lines += ["", "| option | meaning |", "|---|---|"]
    lines += [_option(action, leaf) for action in leaf._actions if action.dest != "help"]
    if row is not None and row.fields:
        lines += ["", "JSON:", "", *(f"    {line}" for line in row.fields.split("\n"))]
    if row is not None:
        lines += ["", "Example:", "", f"    {PROGRAM} {row.example}"]
    return "\n".join(lines)


def _is_option(action: argparse.Action) -> bool:
    return bool(action.option_strings) and action.dest not in ("help", "version")


def _option(action: argparse.Action, leaf: argparse.ArgumentParser) -> str:
    """The row of one option."""
    value = leaf._get_formatter()._format_args(action, action.dest.upper())
    words = ", ".join(action.option_strings) or action.metavar or action.dest
    shown = f"{words} {value}".strip() if action.option_strings else str(words)
    meaning = (action.help or "") % {"default": action.default}
    needed = " (needed)" if action.required and action.option_strings else ""
    return f"| `{shown}` | {meaning}{needed} |"
