"""Stories of whole brokers, told as scripts. `REWRITE=1 pytest tests/interaction` makes them true: read the diff."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from broker.testing.broker_simulation import silence
from broker.testing.stories import Story
from dledger.testing.datadriven import ScriptError, run_script

STORIES = sorted((Path(__file__).parent / "stories").glob("*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path: Path) -> None:
    text = path.read_text()
    with silence():
        actual = run_script(text, Story().run)
    if os.environ.get("REWRITE"):
        path.write_text(actual)
        return
    assert actual == text


def test_there_are_stories() -> None:
    assert len(STORIES) >= 4


def test_what_a_client_cannot_do_is_refused() -> None:
    story = Story()
    story.run("group n0 n1 n2")
    story.run("c at n0")
    with pytest.raises(ScriptError, match="do not know how to fly"):
        story.run("c fly T/0")
    with pytest.raises(ScriptError, match="no such command, nor client"):
        story.run("d pull T/0 from=0 group=G")
