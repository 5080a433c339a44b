"""The offset file of broadcast consumers (rules S1, S2): Java's form, whole after any crash."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from dledger_mq.client import durable_file
from dledger_mq.client.errors import ClientUsageError
from dledger_mq.client.local_offsets import LocalOffsets, decode_offsets, encode_offsets
from dledger_mq.client.queues import MessageQueue
from dledger_mq.remoting.errors import BodyError

A, B = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)


def test_the_file_has_the_form_of_javas() -> None:
    data = encode_offsets({B: 7, A: 5})
    assert data == (
        b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:5,'
        b'{"brokerName":"broker-a","queueId":1,"topic":"T"}:7}}'
    )
    assert decode_offsets(data) == {A: 5, B: 7}
    listed = b'{"offsetTable":[{"brokerName":"broker-a","offset":5,"queueId":0,"topic":"T"}]}'
    assert decode_offsets(listed) == {A: 5}
    assert decode_offsets(b'{"offsetTable":{}}') == {}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b'{"offsetTable":7}',
        b'{"offsetTable":{"x":1}}',
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:-1}}',
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:true}}',
        b'{"offsetTable":[{"brokerName":"b","offset":"5","queueId":0,"topic":"T"}]}',
    ],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(BodyError):
        decode_offsets(data)


def test_what_was_saved_is_there_again_beside_what_was_saved_before(tmp_path: Path) -> None:
    one = LocalOffsets(tmp_path, "10.0.0.1@x", "g")
    one.load()
    assert one.committed(A) is None
    one.save({A: 5})
    one.save({B: 1})
    again = LocalOffsets(tmp_path, "10.0.0.1@x", "g")
    again.load()
    assert (again.committed(A), again.committed(B)) == (5, 1)
    assert again.path == tmp_path / "10.0.0.1@x" / "g" / "offsets.json"
    other = LocalOffsets(tmp_path, "10.0.0.1@y", "g")
    other.load()
    assert other.committed(A) is None


@pytest.mark.parametrize("damage", [b"", b"{", b'{"offsetTable":'])
def test_a_damaged_file_is_replaced_by_the_one_before(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    one = LocalOffsets(tmp_path, "c", "g")
    one.save({A: 5})
    one.save({A: 6})
    one.path.write_bytes(damage)
    again = LocalOffsets(tmp_path, "c", "g")
    again.load()
    assert again.committed(A) == 5
    assert "damaged" in caplog.text


@pytest.mark.parametrize(
    ("owner", "step"),
    [(Path, "open"), (os, "fsync"), (Path, "hardlink_to"), (Path, "replace")],
)
def test_a_crash_while_saving_leaves_a_whole_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, step: str
) -> None:
    one = LocalOffsets(tmp_path, "c", "g")
    one.save({A: 5})

    def crash(*_args: object, **_kwargs: object) -> None:
        raise OSError("crash")

    with monkeypatch.context() as patched:
        patched.setattr(owner, step, crash)
        with pytest.raises(OSError, match="crash"):
            one.save({A: 6})
    again = LocalOffsets(tmp_path, "c", "g")
    again.load()
    assert again.committed(A) == 5


def test_the_file_is_synced_before_it_has_its_name_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "offsets.json"
    seen: list[tuple[str, bool]] = []
    sync = os.fsync

    def note(descriptor: int) -> None:
        seen.append(
            ("file" if not stat.S_ISDIR(os.fstat(descriptor).st_mode) else "folder", path.exists())
        )
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    durable_file.replace_file(path, b"x", before=tmp_path / "before")
    assert seen[-2:] == [("file", False), ("folder", True)]


def test_a_client_id_cannot_leave_the_folder(tmp_path: Path) -> None:
    for name in ("../x", "..", ""):
        with pytest.raises(ClientUsageError):
            LocalOffsets(tmp_path, name, "g")
