"""One Spark session for all tests of the pipeline, in this process; nothing stops it before the end.

Starting the JVM and the first Python worker takes 8 s, a warm stream one. A test that needs another master
(a cluster, a process that is killed) starts a process of its own.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dledger_mq.blocking import Producer
from jepsen.processes import SMALL_SEGMENTS, Group
from pipeline.errors import InconclusiveError
from pipeline.locations import ObjectPath
from tests.integration.pipeline.quick import start_quickly
from tests.integration.pipeline.sessions import Sessions, gs, run_sessions, s3a
from tests.integration.pipeline.topics import PATIENCE_S, Topics
from tests.unit.pipeline.object_stores import google_bucket, object_store

AVRO = Path(__file__).resolve().parents[3] / ".interop/avro-4.2.0"
MASTER = "local[2]"
SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.sql.streaming.pollingDelay": "100",  # ms; an idle query asks brokers for offsets that often, not each 10 ms
}


CALM = (
    "raftHeartbeatIntervalMs=300\nraftLeaseMs=1500\n"
    "raftElectionTimeoutMinMs=2000\nraftElectionTimeoutMaxMs=3000\n"
)
"""For brokers that run as long as the session, and of which none dies: at the defaults three that have nothing to do
take half as much processor time again, and where the machine stands still for half a second they elect anew."""


PATIENT = pytest.mark.timeout(1800)
"""For what runs Spark: a job of seconds takes minutes on a machine with ten times as much to do as it has cores for."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here that uses the session starts real processes."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(PATIENT)
        if {"spark", "topics"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.integration)


@pytest.fixture(scope="session")
def _store() -> Iterator[ObjectPath | None]:
    """A bucket; None where what it needs is not installed. Spark's workers find it in the environment of their JVM."""
    if any(importlib.util.find_spec(each) is None for each in ("moto", "flask", "s3fs")):
        yield None
        return
    with object_store() as bucket:
        yield bucket


@pytest.fixture
def store(_store: ObjectPath | None) -> ObjectPath:
    """A bucket of an object store on this machine."""
    if _store is None:
        pytest.skip("moto, flask or s3fs is not installed (extras `s3` and `s3-tests`)")
    return _store


@pytest.fixture(scope="session")
def _google() -> Iterator[ObjectPath | None]:
    """The same of Google's store."""
    try:
        importlib.util.find_spec("google.cloud.storage")
    except ModuleNotFoundError:
        yield None
        return
    with google_bucket() as bucket:
        yield bucket


@pytest.fixture
def google(_google: ObjectPath | None) -> ObjectPath:
    """A bucket of a store on this machine that Google's clients know."""
    if _google is None:
        pytest.skip("google-cloud-storage is not installed (extra `gs`)")
    return _google


@pytest.fixture(scope="session")
def _session(_store: ObjectPath | None, _google: ObjectPath | None) -> Any:
    pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")
    from pipeline.spark.session import open_session

    with pytest.MonkeyPatch.context() as patch:
        start_quickly(patch)
        try:
            return open_session("tests", master=MASTER, settings=SETTINGS | jars())
        except InconclusiveError as error:
            pytest.skip(str(error))


def jars() -> dict[str, str]:
    """What the session takes along: Spark's functions for Avro, where they are installed."""
    found = sorted(AVRO.glob("*.jar"))
    return {"spark.jars": ",".join(map(str, found))} if found else {}


@pytest.fixture(autouse=True)
def _quick_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """For sessions in processes that a test starts."""
    start_quickly(monkeypatch)


@pytest.fixture
def spark(_session: Any) -> Iterator[Any]:
    """The session; what a test leaves running or registered is ended after it."""
    yield _session
    for query in _session.streams.active:
        query.stop()
    for table in _session.catalog.listTables():
        if table.isTemporary:
            _session.catalog.dropTempView(table.name)


@pytest.fixture(scope="session")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    """Three brokers that no test breaks."""
    settings = SMALL_SEGMENTS + CALM
    with Group(tmp_path_factory.mktemp("group"), settings=settings) as group:
        group.start()
        group.wait_listening()
        with Producer(group.namesrv, "tests", timeout_s=PATIENCE_S) as producer:
            shared = Topics(group, producer)
            shared.wait_writable()
            yield shared


@pytest.fixture(scope="session")
def sessions(
    topics: Topics,
    _store: ObjectPath | None,
    _google: ObjectPath | None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Sessions:
    """Two sessions that are over."""
    pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")
    stores = {}
    if _store is not None and _google is not None:
        stores = {s3a(): _store / "checkpoints", gs(): _google / "checkpoints"}
    return run_sessions(topics, tmp_path_factory.mktemp("sessions"), stores)
