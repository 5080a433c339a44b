"""Every example of docs/pipeline-source.md runs, one after the other; its options are those that there are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dledger_mq import Message
from pipeline.errors import PipelineUsageError
from pipeline.source_options import read_source_options
from tests.integration.pipeline.topics import Topics

PAGE = Path(__file__).resolve().parents[3] / "docs" / "pipeline-source.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_example_runs(spark: Any, topics: Topics, tmp_path: Path) -> None:
    topics.send([Message("Orders", b"%d" % n, tags="paid") for n in range(20)])
    names: dict[str, Any] = {"__name__": "__main__"}
    examples = BLOCK.findall(PAGE.read_text())
    assert len(examples) >= 4
    for number, example in enumerate(examples):
        text = example.replace("127.0.0.1:9876", topics.namesrv).replace("/data/", f"{tmp_path}/")
        # The session of the tests is the running one, so `open_session` finds it.
        exec(compile(text, f"example {number}", "exec"), names)
    assert names["orders"].count() == 20
    assert spark.read.parquet(str(tmp_path / "orders")).count() == 20


def test_the_table_names_every_option() -> None:
    given = {"nameServer": "h:1", "topic": "T", "no such option": "x"}
    with pytest.raises(PipelineUsageError) as caught:
        read_source_options(given, "either")
    known = str(caught.value).partition("(it has ")[2].removesuffix(")").split(", ")
    assert len(known) > 20
    text = PAGE.read_text()
    assert [name for name in known if f"`{name}`" not in text] == []
