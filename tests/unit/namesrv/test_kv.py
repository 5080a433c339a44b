"""Configuration values of a name server that stands alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.namesrv.errors import ConfigError, KvLimitError, KvUnavailableError
from broker.namesrv.kv import KEY_CHARS_MAX, VALUE_CHARS_MAX, LocalKv, check_limits


async def test_values_are_there_after_a_restart(tmp_path: Path) -> None:
    kv = LocalKv(tmp_path)
    await kv.put("n", "k", "v")
    await kv.put("n", "k2", "ü\x01")
    await kv.put("m", "k", "x")
    await kv.delete("m", "k")
    await kv.delete("m", "absent")
    await kv.close()
    again = LocalKv(tmp_path)
    assert again.namespace("n") == {"k": "v", "k2": "ü\x01"}
    assert again.get("n", "k") == "v"
    assert again.namespace("m") is None
    assert again.get("m", "k") is None


async def test_without_a_folder_values_live_in_memory() -> None:
    kv = LocalKv(None)
    await kv.put("n", "k", "v")
    assert kv.get("n", "k") == "v"


def test_the_file_of_rocketmq_is_read(tmp_path: Path) -> None:
    (tmp_path / "kvConfig.json").write_text('{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"a:4"}}}')
    assert LocalKv(tmp_path).get("ORDER_TOPIC_CONFIG", "T") == "a:4"


@pytest.mark.parametrize("text", ["", "[]", '{"configTable":5}', '{"x":{}}', "{"])
def test_a_damaged_file_stops_the_start(tmp_path: Path, text: str) -> None:
    (tmp_path / "kvConfig.json").write_text(text)
    with pytest.raises(ConfigError, match="kvConfig"):
        LocalKv(tmp_path)


async def test_a_failed_write_changes_nothing(tmp_path: Path) -> None:
    kv = LocalKv(tmp_path / "absent-folder")
    with pytest.raises(KvUnavailableError):
        await kv.put("n", "k", "v")
    assert kv.get("n", "k") is None


@pytest.mark.parametrize(
    ("namespace", "key", "value", "count"),
    [
        ("", "k", "v", 0),
        ("n", "", "v", 0),
        ("n", "k" * KEY_CHARS_MAX, "v", 0),
        ("n", "k", "v" * (VALUE_CHARS_MAX + 1), 0),
        ("n", "k", "v", 100_000),
    ],
)
def test_bounds(namespace: str, key: str, value: str, count: int) -> None:
    with pytest.raises(KvLimitError):
        check_limits(namespace, key, value, count)
