"""The table of subcommands: every one has a parser, an example that is right, and a place in docs/admin.md."""

from __future__ import annotations

import pytest

from broker.admin.cli import COMMANDS, parser, spelled_out
from broker.admin.command import PROGRAM, Command, CommandGroup, names_of_mqadmin
from tests.architecture.generated_docs import ADMIN
from tests.unit.admin.tool_group import dledger_admin, open_tool_group

ROWS = [
    each for row in COMMANDS for each in (row.verbs if isinstance(row, CommandGroup) else [row])
]
EXAMPLES = [
    line.strip().removeprefix(f"{PROGRAM} ")
    for line in ADMIN.read_text().splitlines()
    if line.startswith(f"    {PROGRAM} ")
]
IN_MEMORY = ("topics", "groups", "offsets", "messages", "connections", "lag", "consumerProgress")
"""What the group in memory knows enough for."""


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.example.partition(" -")[0])
def test_an_example_means_its_own_command(row: Command) -> None:
    options = parser().parse_args(row.example.split())
    assert options.run is row.run
    assert row.example in EXAMPLES
    assert row.text[0].islower()


@pytest.mark.parametrize("name", sorted(names_of_mqadmin(COMMANDS)))
def test_mqadmins_names_stand_for_verbs(name: str) -> None:
    group, verb, *_ = spelled_out([name, "-n", "x"])
    rows = {each.name: each for each in COMMANDS if isinstance(each, CommandGroup)}
    assert verb in {each.name for each in rows[group].verbs}
    assert spelled_out(["status", name]) == ["status", name], "where a subcommand stands only"
    before = ["--tls", "--tls-trust", "ca.pem"]
    assert spelled_out([*before, name])[:4] == [*before, group]
    assert f"`{name}`" in ADMIN.read_text()


def test_no_name_means_two_commands() -> None:
    names = [name for row in ROWS for name in row.aliases]
    names += [row.name for row in COMMANDS]
    names += [name for row in COMMANDS if isinstance(row, CommandGroup) for name in row.shortcuts]
    assert len(names) == len(set(names)) > 25


async def test_the_examples_of_the_page_run_against_a_group(
    capfd: pytest.CaptureFixture[str],
) -> None:
    ran = [each.split() for each in EXAMPLES if each.split()[0] in IN_MEMORY]
    assert len(ran) > 15
    async with open_tool_group() as group:
        group.fake.groups.add("billing-new")
        for words in ran:
            place = words.index("-n")
            code = await dledger_admin(group, *words[:place], *words[place + 2 :])
            said = capfd.readouterr()
            assert code in (0, 1, 3), (words, said)
            assert "Traceback" not in said.err
