"""Every example of docs/client.md and docs/filter.md runs, one after the other, against a group in memory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import trio

from dledger_mq.testing import open_fake_group

PAGE = Path(__file__).resolve().parents[3] / "docs" / "client.md"
FILTERS = PAGE.with_name("filter.md")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


async def test_every_example_runs() -> None:
    examples = BLOCK.findall(PAGE.read_text())
    assert len(examples) >= 6
    async with open_fake_group() as group:
        for number, example in enumerate(examples):
            code = compile(
                example.replace("127.0.0.1:9876", group.namesrv), f"example {number}", "exec"
            )
            with trio.fail_after(240):  # each runs its own loop, so in a thread of its own
                await trio.to_thread.run_sync(exec, code, {"__name__": "__main__"})
    assert len(group.messages("Orders")) > 1000


def test_the_examples_are_for_asyncio_but_the_one_that_shows_trio() -> None:
    examples = BLOCK.findall(PAGE.read_text())
    assert sum("import trio" in example for example in examples) == 1


async def test_the_example_of_filters_runs_and_prints_what_is_wanted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (example,) = BLOCK.findall(FILTERS.read_text())
    async with open_fake_group() as group:
        code = compile(example.replace("127.0.0.1:9876", group.namesrv), "example", "exec")
        with trio.fail_after(240):
            await trio.to_thread.run_sync(exec, code, {"__name__": "__main__"})
    assert "b'150'" in capsys.readouterr().out
    assert len(group.messages("Orders")) == 2
