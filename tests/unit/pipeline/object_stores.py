"""An object store on the loopback interface, for tests: moto's S3, in this process, with everything in memory.

It is moto's answers that are believed here, conditional writes among them. What it is not: several machines.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest

from pipeline.locations import ObjectPath

ACCESS_KEY = "AKIDACCESSOFTESTS"
SECRET_KEY = "secret-of-tests/that+nobody/may/print"
TOKEN = "token-of-tests/that+nobody/may/print"


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
    """Run a store, say in the environment where it is, and give an empty bucket of it."""
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
