"""Every example of docs/client.md runs, one after the other, against a group in memory."""

from __future__ import annotations

import re
from pathlib import Path

import trio

from dledger_mq.testing import open_fake_group

PAGE = Path(__file__).resolve().parents[3] / "docs" / "client.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


async def test_every_example_runs() -> None:
    examples = BLOCK.findall(PAGE.read_text())
    assert len(examples) >= 6
    async with open_fake_group() as group:
        for number, example in enumerate(examples):
            code = compile(
                example.replace("127.0.0.1:9876", group.namesrv), f"example {number}", "exec"
            )
            with trio.fail_after(60):  # each runs its own trio, so in a thread of its own
                await trio.to_thread.run_sync(exec, code, {"__name__": "__main__"})
    assert len(group.messages("Orders")) > 1000
