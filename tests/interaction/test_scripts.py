"""Every script prints what it says. `REWRITE=1 pytest tests/interaction` makes the scripts true;
then read the diff."""

from __future__ import annotations

from pathlib import Path

import pytest

from dledger.testing.datadriven import ScriptError, parse_script, run_script
from dledger.testing.interaction import Interaction
from tests.interaction.checking import check_script

SCRIPTS = sorted((Path(__file__).parent / "testdata").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path) -> None:
    check_script(path, Interaction().run)


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) >= 10


def test_a_block_without_a_separator_is_refused_with_its_line() -> None:
    with pytest.raises(ScriptError, match="line 3"):
        parse_script("# prose\n\ncommand\n")


def test_an_output_without_a_command_is_refused() -> None:
    with pytest.raises(ScriptError, match="without a command"):
        parse_script("----\nok\n")


def test_a_command_that_fails_names_its_block() -> None:
    with pytest.raises(ScriptError, match=r"line 1, 'fly n0'.*no such command"):
        run_script("fly n0\n----\nok\n", Interaction().run)


def test_a_script_without_a_group_is_told_to_begin_with_one() -> None:
    with pytest.raises(ScriptError, match="begin with `group"):
        Interaction().run("stabilize")


def test_what_is_quiet_is_done_and_not_printed() -> None:
    script = Interaction()
    assert script.run("quiet") == []
    assert script.run("group n0 n1 n2") == []
    assert script.run("elect n0") == []
    assert script.run("loud") == []
    assert script.run("lease n0") == ["n0 has a lease"]


def test_an_argument_that_is_missing_or_no_number_is_named() -> None:
    script = Interaction()
    script.run("group n0")
    with pytest.raises(ScriptError, match=r"token=\.\.\. is missing"):
        script.run("read n0")
    with pytest.raises(ScriptError, match="token=x: that is no number"):
        script.run("read n0 token=x")
    with pytest.raises(ScriptError, match="milliseconds is missing"):
        script.run("time")


def test_a_script_that_is_true_stays_as_it_is() -> None:
    text = "# Why.\ngroup n0\n----\nok\n\n# Prose alone.\n\nlog n0\n----\nn0: []\n"
    assert run_script(text, Interaction().run) == text
