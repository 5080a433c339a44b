"""Places in an object store: what counts as one, first writers win, and no secret in any text."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra `spark`)")

from pipeline import object_store as module
from pipeline.errors import InconclusiveError
from pipeline.locations import LocationError, ObjectPath, location
from pipeline.object_store import ObjectFolder, shown
from pipeline.written_once import written_once
from tests.unit.pipeline.object_stores import (
    ACCESS_KEY,
    SECRET_KEY,
    TOKEN,
    environment_of,
    object_store,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectPath]:
    with object_store() as bucket:
        yield bucket


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("/a/b", Path("/a/b")),
        ("file:///a/c%20d", Path("/a/c%20d")),
        ("file:/a", Path("/a")),
        ("s3://bucket/a/b/", ObjectPath("bucket", "a/b")),
        ("s3a://bucket", ObjectPath("bucket", "")),
    ],
)
def test_a_place_is_a_path_or_in_a_bucket(text: str, place: object) -> None:
    assert location(text) == place


@pytest.mark.parametrize(
    "text", ["gs://b/x", "hdfs://nn/x", "s3:/b/x", "s3://bucket/../x", "s3://"]
)
def test_other_places_are_refused_by_name(text: str) -> None:
    with pytest.raises(LocationError, match="neither a folder that the driver sees nor s3://"):
        location(text)


@pytest.mark.parametrize(
    "text", ["{}:hu/sh@bucket/x", "{}:hush@bucket", "bucket/x?key={}&secret=hush"]
)
def test_a_place_with_a_secret_in_it_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(LocationError, match="credentials come from the environment") as caught:
        location(f"s3a://{text.format(ACCESS_KEY)}")
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
    assert folder.names("a") == folder.files("") == []
    for ask in (folder.read, folder.size_bytes, folder.source):
        with pytest.raises(FileNotFoundError):
            ask("a/x")


def test_who_comes_second_gets_what_the_first_one_wrote(store: ObjectPath) -> None:
    file = store / "checkpoint" / "initial.json"

    def settle_slowly() -> int:
        assert written_once(file, "it", lambda: 1) == 1, "another one is faster"
        return 2

    assert written_once(file, "it", settle_slowly) == 1
    assert written_once(file, "it", lambda: pytest.fail("asked again")) == 1
    ObjectFolder(store / "checkpoint").create("broken.json", b"{")
    with pytest.raises(InconclusiveError, match=r"it in s3://.*/broken.json cannot be read"):
        written_once(store / "checkpoint" / "broken.json", "it", lambda: 1)


def test_a_store_that_ignores_conditions_is_refused(
    store: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Careless:
        def pipe_file(self, path: str, content: bytes, mode: str) -> None:
            real.pipe_file(path, content)

        def rm_file(self, path: str) -> None:
            real.rm_file(path)

    real: Any = module._fsspec_fs()
    monkeypatch.setattr(module, "_fsspec_fs", Careless)
    folder = ObjectFolder(store / "careless")
    with pytest.raises(OSError, match="ignores If-None-Match"):
        folder.create("x", b"1")
    assert folder.files("") == []


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
