"""A standalone Spark cluster whose processes get nothing of this project.

Each has an environment of a few variables, a home of its own, and the `python3` of the system on its path. Each machine
has an address of its own, too: Spark runs a second attempt of a task on another host only.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pyspark

from jepsen.keeper import marked
from jepsen.nemeses.namespaces import NamespaceLinks
from jepsen.ports import free_ports
from jepsen.processes import Process, kill_all, poll, wait_listening
from pipeline.spark.java import find_java
from tests.integration.pipeline.quick import JAVA_OPTIONS, JAVA_VARIABLE

SPARK_HOME: Final = Path(pyspark.__file__).parent
_DAEMONS: Final = "-Dspark.master.rest.enabled=false"  # no fixed port
PATIENCE_S: Final = 550.0


java_here = cache(find_java)
"""Asked once: each answer takes a start of Java."""

_ALONE: Final = """
set -e
spark=$1 home=$2; shift 2
mkdir -p "$home/spark"
mount --bind "$spark" "$home/spark"
while [ "$1" != -- ]; do [ ! -d "$1" ] || mount -t tmpfs none "$1"; shift; done
shift
exec "$@"
"""
"""Runs a command where Spark lies in its home, and some folders are empty: `ip netns exec` gives it its own mounts.

A folder in one that has been emptied, as an environment in its clone, is gone with it.
"""


@dataclass(frozen=True, slots=True)
class Place:
    """A machine, or what stands for one.

    Attributes:
        host: its address.
        home: the folder of its processes.
        prefix: what is put before its commands.
        spark: where Spark lies.
    """

    host: str
    home: Path
    prefix: Sequence[str] = ()
    spark: Path = SPARK_HOME

    def bare(self, **more: str) -> list[str]:
        """The words that, put before a command, run it here with these variables and no others."""
        variables = {
            "PATH": f"{self.spark / 'bin'}:/usr/bin:/bin",
            "HOME": str(self.home),
            "JAVA_HOME": str(java_here().home),
            JAVA_VARIABLE: JAVA_OPTIONS,
            "SPARK_HOME": str(self.spark),
            "SPARK_LOCAL_IP": self.host,
            "SPARK_LOCAL_DIRS": str(self.home / "local"),
            **marked(),
            **more,
        }
        words = [f"{name}={text}" for name, text in variables.items()]
        return [*self.prefix, "env", "-i", f"--chdir={self.home}", *words]


def places_here(folder: Path, names: Sequence[str]) -> list[Place]:
    """Machines that are addresses of loopback."""
    places = [Place(f"127.0.0.{at}", folder / name) for at, name in enumerate(names, start=2)]
    for place in places:
        place.home.mkdir(parents=True)
    return places


def places_apart(folder: Path, names: Sequence[str], links: NamespaceLinks) -> list[Place]:
    """Machines that are network namespaces, and on which this project and each other's folders are not there."""
    homes = [folder / name for name in names]
    for home in homes:
        home.mkdir(parents=True)
    ours = {Path(__file__).resolve().parents[3], Path(sys.prefix).resolve()}
    assert not any(home.is_relative_to(each) for home in homes for each in ours)
    found = []
    for name, home in zip(names, homes, strict=True):
        hidden = [*ours, *(other for other in homes if other != home)]
        alone = ["sh", "-c", _ALONE, "sh", str(SPARK_HOME), str(home), *map(str, hidden), "--"]
        found.append(
            Place(links.address(name), home, [*links.prefix(name), *alone], home / "spark")
        )
    return found


class Cluster:
    """A context manager that owns the processes.

    Args:
        places: of the master, then of each worker.
    """

    def __init__(self, places: Sequence[Place]) -> None:
        self._places = places
        port, *ports = free_ports(len(places))
        self.url = f"spark://{places[0].host}:{port}"
        self._master = self._process("master", places[0], port)
        self._workers = [
            self._process(place.home.name, place, port, self.url)
            for place, port in zip(places[1:], ports, strict=True)
        ]

    def _process(self, name: str, place: Place, port: int, *url: str) -> Process:
        home = place.home
        kind = "worker.Worker" if url else "master.Master"
        limits = ["--cores", "2", "--memory", "2g", "--work-dir", str(home / "work")] if url else []
        command = [
            *(str(place.spark / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"),
            *("--host", place.host, "--port", str(port), "--webui-port", "0", *limits, *url),
        ]
        process = Process(name, command, log=home / "log", port=port, host=place.host)
        process.prefix = place.bare(SPARK_DAEMON_MEMORY="256m", SPARK_DAEMON_JAVA_OPTS=_DAEMONS)
        return process

    def start(self) -> None:
        """Start everything, and wait until the workers have registered."""
        self._master.start()
        for worker in self._workers:
            worker.start()
        wait_listening([self._master], PATIENCE_S)
        assert poll(self._is_whole, PATIENCE_S), self._master.log_tail()

    def _is_whole(self) -> bool:
        return self._master.log.read_text().count("Registering worker ") == len(self._workers)

    def written(self) -> str:
        """Everything that the processes and their executors have written."""
        homes = [place.home for place in self._places]
        files = [each for home in homes for each in (home / "log", *home.glob("work/*/*/std*"))]
        return "".join(each.read_text(errors="replace") for each in files)

    def __enter__(self) -> Cluster:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes; executors end with their workers."""
        for worker in self._workers:
            worker.stop()
        kill_all([*self._workers, self._master])
