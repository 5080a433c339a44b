"""Stores for tests: of each kind one that speaks for itself, and a place in it.

S3 is moto's, in this process, with everything in memory; it is moto's answers that are believed there, conditional
writes among them. Google's store and HDFS are ours (`google_store`, `name_node`), unless DLEDGER_GS or DLEDGER_HDFS
name a place of a real one, or of somebody else's emulator. What none of them is: several machines.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest

from pipeline.locations import GS, HDFS, S3, ObjectPath, location
from tests.unit.pipeline.google_store import google_store
from tests.unit.pipeline.name_node import name_node

ACCESS_KEY = "AKIDACCESSOFTESTS"
SECRET_KEY = "secret-of-tests/that+nobody/may/print"
TOKEN = "token-of-tests/that+nobody/may/print"

REAL = {GS: "DLEDGER_GS", HDFS: "DLEDGER_HDFS"}
"""Variables that name a place of a real store."""


def environment_of(endpoint: str) -> dict[str, str]:
    """What clients of the store look for."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_SESSION_TOKEN": TOKEN,
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@contextmanager
def object_store() -> Iterator[ObjectPath]:
    """Run a store that speaks S3, say in the environment where it is, and give an empty bucket of it."""
    pytest.importorskip("s3fs", reason="s3fs is not installed (extra `s3`)")
    server = pytest.importorskip("moto.server", reason="moto[server] is not installed")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # a line for each request
    running.start()
    host, port = running.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment_of(f"http://{host}:{port}").items():
            patch.setenv(name, value)
        import s3fs

        bucket = f"archives-{uuid4().hex}"  # what moto holds outlives its server
        s3fs.S3FileSystem(skip_instance_cache=True).mkdir(bucket)
        try:
            yield ObjectPath(bucket, "")
        finally:
            running.stop()


@contextmanager
def google_bucket() -> Iterator[ObjectPath]:
    """Run a store for Google's client, say in the environment where it is, and give a bucket of it."""
    pytest.importorskip(
        "google.cloud.storage", reason="google-cloud-storage is not installed (extra `gs`)"
    )
    with pytest.MonkeyPatch.context() as patch, google_store() as (address, _):
        patch.setenv("STORAGE_EMULATOR_HOST", address)
        yield ObjectPath(f"archives-{uuid4().hex}", "", GS)


@contextmanager
def cluster() -> Iterator[ObjectPath]:
    """Give a folder of HDFS, in which clients of this process find our name node."""
    from pipeline.objects import hdfs  # needs pyarrow, and who collects tests may have none

    hdfs._client_for.cache_clear()
    with name_node():
        yield ObjectPath("namenode:8020", "", HDFS)
    hdfs._client_for.cache_clear()


@contextmanager
def store_of(kind: str) -> Iterator[ObjectPath]:
    """Give an empty folder in a store of a kind."""
    real = os.environ.get(REAL.get(kind, ""))
    if real is not None:
        place = location(real)
        assert isinstance(place, ObjectPath)
        yield place / uuid4().hex
        return
    with {S3: object_store, GS: google_bucket, HDFS: cluster}[kind]() as place:
        yield place
