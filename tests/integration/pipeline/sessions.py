"""Two further sessions with one catalog, one after the other: several tests look at what they did, as each takes 20 s.

Streams of the first one keep their checkpoints in object stores, through Hadoop's file systems; these need jars that
PySpark lacks. `make interop` fetches them, or a variable names a folder that has them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from pipeline.locations import ObjectPath
from tests.integration.pipeline.quick import start_quickly
from tests.integration.pipeline.topics import Topics

INTEROP: Final = Path(__file__).resolve().parents[3] / ".interop"
PATIENCE_S: Final = 1200
PROGRAM: Final = Path(__file__).with_name("sessions_program.py")
SENT: Final = 50


@dataclass(frozen=True, eq=False)
class FileSystem:
    """A file system of Hadoop's.

    Attributes:
        scheme: how Spark calls it.
        jars: the folder in .interop that has it.
        variable: names another folder, if it is set.
        settings: for a store on this machine.
    """

    scheme: str
    jars: str
    variable: str
    settings: Mapping[str, str]

    def found_jars(self) -> list[str]:
        folder = Path(os.environ.get(self.variable, INTEROP / self.jars))
        return [str(path) for path in sorted(folder.glob("*.jar"))]


def s3a() -> FileSystem:
    settings = {
        "spark.hadoop.fs.s3a.endpoint": os.environ["AWS_ENDPOINT_URL"],
        "spark.hadoop.fs.s3a.path.style.access": "true",
    }
    return FileSystem("s3a", "s3a-3.5.0", "DLEDGER_S3A_JARS", settings)


def gs() -> FileSystem:
    settings = {
        "spark.hadoop.fs.gs.storage.root.url": f"{os.environ['STORAGE_EMULATOR_HOST']}/",
        "spark.hadoop.fs.gs.auth.type": "UNAUTHENTICATED",
        "spark.hadoop.fs.gs.project.id": "tests",
        "spark.hadoop.fs.AbstractFileSystem.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFS",
        # Hadoop 3.5 has a setting of this name, 64m, which the connector takes for a number.
        "spark.hadoop.fs.gs.block.size": str(64 * 1024 * 1024),
        "spark.hadoop.fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
        # Its reads of several ranges at once call a method that Hadoop 3.5 has no more: NoSuchMethodError.
        "spark.hadoop.parquet.hadoop.vectored.io.enabled": "false",
        # 5 s else, and a machine with other work may take longer.
        "spark.hadoop.fs.gs.http.connect-timeout": "300000",
        "spark.hadoop.fs.gs.http.read-timeout": "300000",
    }
    return FileSystem("gs", "gcs-3.1.15", "DLEDGER_GS_JARS", settings)


@dataclass(frozen=True)
class Sessions:
    """What the two sessions said.

    Attributes:
        first, second: the programs, ended.
        folder: where they ran.
        places: where the first one kept checkpoints, by the file system's name for it.
        lacking: the file systems whose jars are not there.
    """

    first: subprocess.CompletedProcess[str]
    second: subprocess.CompletedProcess[str]
    folder: Path
    places: Mapping[str, ObjectPath]
    lacking: list[FileSystem]


def run_sessions(topics: Topics, folder: Path, stores: Mapping[FileSystem, ObjectPath]) -> Sessions:
    """Run the one, then the other."""
    lacking = [each for each in stores if not each.found_jars()]
    known = {each: place for each, place in stores.items() if each not in lacking}
    settings = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": "2"}
    with_stores = settings | {
        "spark.jars": ",".join(jar for each in known for jar in each.found_jars())
    }
    for each in known:
        with_stores |= each.settings
    places = {f"{each.scheme}://{place.path}": place for each, place in known.items()}
    topic = topics.fresh()
    topics.fill(topic, SENT)

    def run(step: str, settings: dict[str, str]) -> subprocess.CompletedProcess[str]:
        told = [folder / "catalog", topics.namesrv, topic, step, json.dumps(settings), *places]
        return subprocess.run(
            [sys.executable, PROGRAM, *told],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], *sys.path])},
        )

    with pytest.MonkeyPatch.context() as patch:
        start_quickly(patch)
        return Sessions(run("1", with_stores), run("2", settings), folder, places, lacking)
