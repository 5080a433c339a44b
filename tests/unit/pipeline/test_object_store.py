"""Places in stores of each kind: what counts as one, first writers win, and no secret in any text."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `spark`)")

from pipeline.errors import InconclusiveError
from pipeline.locations import GS, HDFS, S3, LocationError, ObjectPath, location
from pipeline.object_store import ObjectFolder
from pipeline.objects import gs, hdfs, s3
from pipeline.objects.errors import shown
from pipeline.written_once import written_once
from tests.unit.pipeline.google_store import google_store
from tests.unit.pipeline.name_node import Status, name_node
from tests.unit.pipeline.object_stores import (
    ACCESS_KEY,
    SECRET_KEY,
    TOKEN,
    environment_of,
    store_of,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[S3, GS, HDFS])
def store(request: pytest.FixtureRequest) -> Iterator[ObjectPath]:
    with store_of(request.param) as place:
        yield place


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("/a/b", Path("/a/b")),
        ("file:///a/c%20d", Path("/a/c%20d")),
        ("file:/a", Path("/a")),
        ("s3://bucket/a/b/", ObjectPath("bucket", "a/b")),
        ("s3a://bucket", ObjectPath("bucket", "")),
        ("gs://my_bucket/a", ObjectPath("my_bucket", "a", GS)),
        ("hdfs://nn-1.example:8020/a//b", ObjectPath("nn-1.example:8020", "a/b", HDFS)),
        ("hdfs://nameService1/a", ObjectPath("nameService1", "a", HDFS)),
    ],
)
def test_a_place_is_a_path_or_in_a_store(text: str, place: object) -> None:
    assert location(text) == place
    assert location(str(place)) == place


@pytest.mark.parametrize(
    "text",
    [
        *("abfs://b/x", "viewfs://c/x", "webhdfs://nn:9870/x", "s3:/b/x", "s3://bucket/../x"),
        *("s3://", "gs://", "hdfs:///x", "hdfs:/x", "hdfs://nn:8020/a:b"),
    ],
)
def test_other_places_are_refused_by_name(text: str) -> None:
    with pytest.raises(LocationError, match="neither a folder that the driver sees nor s3://"):
        location(text)


@pytest.mark.parametrize("scheme", ["s3a", "gs", "hdfs"])
@pytest.mark.parametrize(
    "text", ["{}:hu/sh@bucket/x", "{}:hush@bucket", "bucket/x?key={}&secret=hush"]
)
def test_a_place_with_a_secret_in_it_is_refused_and_not_repeated(text: str, scheme: str) -> None:
    with pytest.raises(LocationError, match="credentials come from the environment") as caught:
        location(f"{scheme}://{text.format(ACCESS_KEY)}")
    assert not [each for each in (ACCESS_KEY, "hush", "hu/") if each in str(caught.value)]


def test_a_name_gets_the_first_content_and_keeps_it(store: ObjectPath) -> None:
    folder = ObjectFolder(store / "names")
    folder.create("a/x", b"first")
    with pytest.raises(FileExistsError):
        folder.create("a/x", b"second")
    assert folder.read("a/x") == b"first"
    folder.create("a/x", b"first")  # as after an answer that was lost
    assert (folder.names("a"), folder.files(""), folder.size_bytes("a/x")) == (["x"], ["a/x"], 5)
    folder.remove("a/x")
    folder.remove("a/x")
    assert folder.names("a") == folder.files("") == folder.files("none") == []
    for ask in (folder.read, folder.size_bytes, folder.source):
        with pytest.raises(FileNotFoundError, match=rf"{store.scheme}://.*names/a/x"):
            ask("a/x")


def test_of_many_at_once_one_gives_a_name_its_content(store: ObjectPath) -> None:
    def create(number: int) -> bool:
        try:
            ObjectFolder(store / "race").create("x", str(number).encode())
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        won = list(pool.map(create, range(6)))
    assert won.count(True) == 1
    assert ObjectFolder(store / "race").read("x") == str(won.index(True)).encode()
    assert ObjectFolder(store / "race").files("") == ["x"], "nothing is left of the others"


def test_a_large_file_is_written_and_read_in_parts(
    store: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gs, "PART_BYTES", 1 << 18)
    folder = ObjectFolder(store / "large")
    content = bytes(range(256)) * 3000
    with folder.sink("a/x") as file:
        file.write(content[:1000])
        file.write(content[1000:])
        assert file.tell() == len(content)
    assert folder.size_bytes("a/x") == len(content)
    with folder.source("a/x") as file:
        assert file.size() == len(content)
        file.seek(len(content) - 10)
        assert file.read(100) == content[-10:]
        file.seek(0)
        assert file.read() == content
    for name in ("a/y", "b/x", "z", "d/e/f"):
        folder.create(name, b"1")
    assert sorted(folder.names("")) == ["a", "b", "d", "z"]
    assert sorted(folder.files("")) == ["a/x", "a/y", "b/x", "d/e/f", "z"]
    assert folder.files("d") == ["d/e/f"]
    assert "large" in ObjectFolder(store).names("")


def test_who_comes_second_gets_what_the_first_one_wrote(store: ObjectPath) -> None:
    file = store / "checkpoint" / "initial.json"

    def settle_slowly() -> int:
        assert written_once(file, "it", lambda: 1) == 1, "another one is faster"
        return 2

    assert written_once(file, "it", settle_slowly) == 1
    assert written_once(file, "it", lambda: pytest.fail("asked again")) == 1
    ObjectFolder(store / "checkpoint").create("broken.json", b"{")
    with pytest.raises(InconclusiveError, match=rf"it in {store.scheme}://.*/broken.json cannot"):
        written_once(store / "checkpoint" / "broken.json", "it", lambda: 1)


@pytest.mark.parametrize("store", [S3], indirect=True)
def test_a_store_that_ignores_conditions_is_refused(
    store: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Careless:
        def pipe_file(self, path: str, content: bytes, mode: str) -> None:
            real.pipe_file(path, content)

        def rm_file(self, path: str) -> None:
            real.rm_file(path)

    real: Any = s3._fsspec_fs()
    monkeypatch.setattr(s3, "_fsspec_fs", Careless)
    folder = ObjectFolder(store / "careless")
    with pytest.raises(OSError, match="ignores If-None-Match"):
        folder.create("x", b"1")
    assert folder.files("") == []


def test_a_google_store_that_ignores_conditions_or_loses_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("google.cloud.storage", reason="google-cloud-storage is not installed")
    folder = ObjectFolder(ObjectPath("archives", "a", GS))
    with google_store() as (address, bucket):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
        bucket.is_careless = True
        with pytest.raises(OSError, match="ignores ifGenerationMatch"):
            folder.create("x", b"1")
        assert folder.files("") == []
        bucket.is_careless = False
        folder.create("x", b"1")
        bucket.lost_answers = 1  # Google's client asks again, and is told that there is one
        folder.create("y", b"2")
        assert (bucket.lost_answers, folder.read("y")) == (0, b"2")


@pytest.fixture
def hdfs_folder() -> Iterator[ObjectFolder]:
    hdfs._client_for.cache_clear()
    with name_node():
        yield ObjectFolder(ObjectPath("namenode:8020", "a", HDFS))
    hdfs._client_for.cache_clear()


def test_in_hdfs_a_name_that_was_created_is_whole_wherever_its_writer_ends(
    hdfs_folder: ObjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    class EndedError(BaseException):
        """Stands for SIGKILL."""

    def end(*_: object, **__: object) -> None:
        raise EndedError

    hdfs_folder.create("w", b"0")
    node = hdfs._client(hdfs_folder.place)
    with monkeypatch.context() as patch:
        patch.setattr(node, "rename", end)
        patch.setattr(node, "delete", end)
        with pytest.raises(EndedError):
            hdfs_folder.create("x", b"1")
    assert [name[:3] for name in sorted(hdfs_folder.names(""))] == [".x.", "w"]
    with pytest.raises(FileNotFoundError):
        hdfs_folder.read("x")
    hdfs_folder.create("x", b"2")
    node.lost_renames = 1
    hdfs_folder.create("y", b"3")
    assert (hdfs_folder.read("x"), hdfs_folder.read("y"), node.lost_renames) == (b"2", b"3", 0)


def test_a_list_of_hdfs_is_whole_or_an_error(
    hdfs_folder: ObjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vanish(path: str, _: bool) -> Iterator[Status]:
        yield Status(f"{path}/x", isdir=False, length=1)
        raise FileNotFoundError(f"{path}/y")

    hdfs_folder.create("x", b"1")
    monkeypatch.setattr(hdfs._client(hdfs_folder.place), "list_status", vanish)
    with pytest.raises(FileNotFoundError, match=r"hdfs://namenode:8020/a: /a/y"):
        hdfs_folder.files("")


def test_a_refusal_of_the_name_node_is_one_sentence_that_names_the_place(
    hdfs_folder: ObjectFolder,
) -> None:
    folder = ObjectFolder(ObjectPath("namenode:8020", "closed", HDFS))
    with pytest.raises(PermissionError) as caught:
        folder.sink("x")
    assert str(caught.value) == (
        "hdfs://namenode:8020/closed/x: AccessControlException: Permission denied: user=billing, access=WRITE, "
        'inode="/closed"'
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "RPC listener disconnected",
            "what listens there ended the connection before it answered (RPC listener disconnected)",
        ),
        (
            (
                'DataTransferError("All DataNodes failed: [DatanodeInfoProto { id: DatanodeIdProto { ip_addr: '
                '\\"127.0.0.1\\", host_name: \\"dn-1\\", xfer_port: 9866, info_port: 9864 }, capacity: Some(5) }, '
                'DatanodeInfoProto { id: DatanodeIdProto { host_name: \\"dn-2\\", xfer_port: 9867 } }]")'
            ),
            "All DataNodes failed: dn-1:9866, dn-2:9867",
        ),
        ('DataTransferError("No new datanode found")', "No new datanode found"),
    ],
)
def test_words_of_the_library_of_hdfs_are_no_more_than_people_need(
    hdfs_folder: ObjectFolder, monkeypatch: pytest.MonkeyPatch, text: str, told: str
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError(text)

    monkeypatch.setattr(hdfs._client(hdfs_folder.place), "read", fail)
    with pytest.raises(OSError, match="hdfs://") as caught:
        hdfs_folder.read("x")
    assert str(caught.value) == f"hdfs://namenode:8020/a/x: {told}"


@pytest.mark.parametrize(
    ("scheme", "module"), [(GS, "google.cloud"), (HDFS, "hdfs_native"), (S3, "s3fs")]
)
def test_a_library_that_is_missing_is_named_with_its_extra(
    scheme: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    gs._client_for.cache_clear()
    hdfs._client_for.cache_clear()
    s3._fsspec_fs_for.cache_clear()
    folder = ObjectFolder(ObjectPath("nobody", "a", scheme))
    missing = rf"not installed \(extra `{scheme}`\)"
    with pytest.raises(InconclusiveError, match=missing):
        folder.remove("x")
    with pytest.raises(InconclusiveError, match=missing):
        folder.create("x", b"1")


@pytest.mark.parametrize("store", [S3], indirect=True)
def test_no_secret_is_told_when_nobody_answers(
    store: ObjectPath, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    ObjectFolder(store / "logged").create("x", b"1")
    for name, value in environment_of("http://127.0.0.1:9").items():  # discard: nobody listens
        monkeypatch.setenv(name, value)
    texts = [caplog.text]
    for file in (store / "x", ObjectPath("no-such-bucket", "x")):
        with pytest.raises(InconclusiveError) as caught:
            written_once(file, "it", lambda: 1)
        texts.append(str(caught.value))
    texts.append(shown(f"as the store says: {SECRET_KEY}, {TOKEN}"))
    assert texts[-1] == "as the store says: (hidden), (hidden)"
    for secret in (ACCESS_KEY, SECRET_KEY, TOKEN):
        assert not [text for text in texts if secret in text]


def test_who_may_go_on_with_an_upload_is_told_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("google.cloud.storage", reason="google-cloud-storage is not installed")
    caplog.set_level(logging.DEBUG)
    folder = ObjectFolder(ObjectPath("archives", "a", GS))
    with google_store() as (address, bucket):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
        with folder.sink("x") as file:
            file.write(b"1")
        (upload,) = bucket.uploads
    assert upload not in caplog.text
    monkeypatch.setattr(gs, "PATIENCE_S", 0.1)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    with pytest.raises(
        InconclusiveError, match=r"gs://archives/a/x cannot be read: .*127\.0\.0\.1"
    ):
        written_once(folder.place / "x", "it", lambda: 1)
    # Google's client would go on asking for the bucket, and draw random numbers beside the tests that follow.
    assert not [each.name for each in threading.enumerate() if "_fetch_background" in each.name]
    assert shown("PUT /upload?upload_id=abc&x=1") == "PUT /upload?upload_id=(hidden)&x=1"
