"""Configuration values of a name server that stands alone."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from broker.namesrv.errors import KvLimitError, KvUnavailableError, NameServerConfigError
from broker.namesrv.kv import (
    KEY_CHARS_MAX,
    NAMESPACE_CHARS_MAX,
    VALUE_CHARS_MAX,
    LocalKv,
    check_limits,
)
from dledger.storage.posix import PosixDisk
from dledger.testing.sim_disk import SimDisk
from dledger_mq.remoting.header import encode_command, make_response
from dledger_mq.remoting.json_body import write_json


async def test_values_are_there_after_a_restart(tmp_path: Path) -> None:
    kv = LocalKv(PosixDisk(tmp_path))
    await kv.put("n", "k", "v")
    await kv.put("n", "k2", "ü\x01")
    await kv.put("m", "k", "x")
    await kv.delete("m", "k")
    await kv.delete("m", "absent")
    await kv.close()
    again = LocalKv(PosixDisk(tmp_path))
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
    assert LocalKv(PosixDisk(tmp_path)).get("ORDER_TOPIC_CONFIG", "T") == "a:4"


@pytest.mark.parametrize("text", ["", "[]", '{"configTable":5}', '{"x":{}}', "{", "[" * 100_000])
def test_a_damaged_file_stops_the_start(tmp_path: Path, text: str) -> None:
    (tmp_path / "kvConfig.json").write_text(text)
    with pytest.raises(NameServerConfigError, match="kvConfig"):
        LocalKv(PosixDisk(tmp_path))


async def test_a_failed_write_changes_nothing_that_is_read_before_a_restart() -> None:
    disk = SimDisk(Random(0))
    kv = LocalKv(disk)
    disk.fail_sync()
    with pytest.raises(KvUnavailableError, match="may be found after a restart") as caught:
        await kv.put("n", "k", "v")
    assert not caught.value.definite
    assert kv.get("n", "k") is None


async def test_a_full_disk_surely_changes_nothing() -> None:
    disk = SimDisk(Random(0), capacity_bytes=200)
    kv = LocalKv(disk)
    await kv.put("n", "k", "v")
    with pytest.raises(KvUnavailableError, match="nothing was changed") as caught:
        await kv.put("n", "k", "v" * 200)
    assert caught.value.definite
    assert kv.get("n", "k") == "v"
    disk.crash()
    assert LocalKv(disk).get("n", "k") == "v"


def crash_steps() -> range:
    """A put writes and syncs a few times; the last of these steps comes after it has ended."""
    return range(1, 9)


@pytest.mark.parametrize("step", crash_steps())
async def test_a_power_cut_at_any_step_leaves_the_old_value_or_the_new_one(step: int) -> None:
    for seed in range(20):
        disk = SimDisk(Random(seed))
        kv = LocalKv(disk)
        await kv.put("n", "k", "old")
        disk.stop_at(step)
        expected = {"new"}
        try:
            await kv.put("n", "k", "new")
        except KvUnavailableError:
            expected = {"old", "new"}
        disk.crash()
        assert LocalKv(disk).get("n", "k") in expected


@pytest.mark.parametrize("step", crash_steps())
async def test_a_value_that_was_read_after_a_kill_outlives_a_power_cut(step: int) -> None:
    """A kill between the rename and the folder's sync leaves a name that can be read but is not durable."""
    disk = SimDisk(Random(0))
    kv = LocalKv(disk)
    await kv.put("n", "k", "old")
    disk.stop_at(step)
    with suppress(KvUnavailableError):
        await kv.put("n", "k", "new")
    disk.restart()
    read = LocalKv(disk).get("n", "k")
    disk.crash(keep=0.0)
    assert LocalKv(disk).get("n", "k") == read


async def test_what_cannot_be_made_durable_is_not_believed() -> None:
    disk = SimDisk(Random(0))
    await LocalKv(disk).put("n", "k", "v")
    disk.fail_sync()
    with pytest.raises(NameServerConfigError, match=r"kvConfig\.json cannot be read"):
        LocalKv(disk)


@pytest.mark.parametrize(
    ("namespace", "key", "value", "kept"),
    [
        ("", "k", "v", []),
        ("n", "", "v", []),
        ("n", "k" * KEY_CHARS_MAX, "v", []),
        ("n", "k", "v" * (VALUE_CHARS_MAX + 1), []),
        ("n", "k", "v", [("n", str(number), "") for number in range(100_000)]),
        ("n", "k", "v", [("n", "l", "x" * NAMESPACE_CHARS_MAX)]),
        ("n", "k", "v", [(str(number), "l", "x" * (2 << 20)) for number in range(8)]),
    ],
)
def test_bounds(namespace: str, key: str, value: str, kept: list[tuple[str, str, str]]) -> None:
    with pytest.raises(KvLimitError):
        check_limits(namespace, key, value, kept)


def test_a_value_is_replaced_where_there_is_room_for_no_other() -> None:
    full = [("n", str(number), "v") for number in range(100_000)]
    check_limits("n", "7", "w", full)
    check_limits("n", "k", "x" * VALUE_CHARS_MAX, [("n", "k", "x" * NAMESPACE_CHARS_MAX)])


def test_the_largest_namespace_fits_a_frame() -> None:
    largest = {"k": "\x01" * NAMESPACE_CHARS_MAX}
    assert encode_command(make_response(0, 0, body=write_json({"table": largest})))
