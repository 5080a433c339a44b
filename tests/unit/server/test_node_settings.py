"""Settings of one node that last: the file, and what keeps it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import trio

from broker.server.node_keeper import WAITING_MAX, NodeKeeper
from broker.server.node_settings import NAME, NodeSetting, NodeSettings
from dledger import ConfigError

BY = "1.2.3.4:5"


async def keep(settings: NodeSettings, *changes: dict[str, str]) -> list[str | None]:
    """Keep changes, all at once; what was said to each."""
    said: list[str | None] = []
    async with trio.open_nursery() as nursery:
        keeper = NodeKeeper(settings, nursery, wall_ms=lambda: 77, flush=lambda: None)
        for values in changes:
            keeper.keep(values, BY, said.append)
    return said


async def test_what_is_kept_is_there_after_a_start(tmp_path: Path) -> None:
    said = await keep(NodeSettings(str(tmp_path)), {"stopForwardSec": "7"}, {"a": "1"}, {"a": ""})
    assert said == [None, None, None]
    again = NodeSettings(str(tmp_path))
    assert again.table == {"stopForwardSec": NodeSetting("7", BY, 77)}
    assert again.values() == {"stopForwardSec": "7"}


async def test_a_disk_that_fails_changes_nothing_that_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = NodeSettings(str(tmp_path))

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("broker.server.node_settings.replace_whole", fail)
    (said,) = await keep(settings, {"stopForwardSec": "7"})
    assert said is not None
    assert "the disk failed" in said
    assert settings.table == {}


async def test_no_more_wait_than_a_bound(tmp_path: Path) -> None:
    settings = NodeSettings(str(tmp_path))
    said = await keep(settings, *({"k": str(number)} for number in range(WAITING_MAX + 1)))
    assert said[0] == f"nothing was changed: {WAITING_MAX} changes wait for the disk already"
    assert said[1:] == [None] * WAITING_MAX
    assert settings.values() == {"k": str(WAITING_MAX - 1)}


@pytest.mark.parametrize("text", ["", "[]", '{"a":1}', '{"a":{"value":"1"}}', "\udcff"])
def test_a_file_that_is_none_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match=f"{NAME} cannot be read.*put it aside"):
        NodeSettings(str(tmp_path))


def test_what_a_crash_left_is_cleared(tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.aside").write_text("half")
    assert partial(NodeSettings, str(tmp_path))().table == {}
    assert not (tmp_path / f"{NAME}.aside").exists()
