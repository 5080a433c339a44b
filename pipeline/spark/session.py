"""Opens a Spark session in which the formats are known and the surroundings are right.

What has to be in the environment before the JVM starts is put there (`prepare_environment`): which Java, which
Python for the workers, how much Spark says. What a user has set already stays. On one machine everything
stays on the loopback interface; with a cluster as master nothing is said about addresses, for they differ.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pipeline
from pipeline.errors import InconclusiveError
from pipeline.spark.java import find_java

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

CONF_FOLDER: Final = Path(__file__).with_name("conf")
LOCAL_ADDRESS: Final = "127.0.0.1"
DRIVER_MEMORY: Final = "2g"

_EVERYWHERE: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.speculation": "false",  # two attempts at a time would send twice, unless the sink is exactly-once
}
_ON_ONE_MACHINE: Final = {
    "spark.driver.host": LOCAL_ADDRESS,
    "spark.driver.bindAddress": LOCAL_ADDRESS,
    "spark.driver.memory": DRIVER_MEMORY,
}


def is_on_one_machine(master: str) -> bool:
    """Return whether a master keeps driver and executors on this machine."""
    return master == "local" or master.startswith(("local[", "local-cluster["))


def open_session(
    name: str,
    *,
    master: str | None = None,
    log_level: str = "error",
    catalog: str | None = None,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a session with our formats registered: the running one, or a new one.

    Args:
        name: of the application, in Spark's listings.
        master: default: what spark-submit was given, MASTER, else all cores of this machine.
        log_level: error, warn, info or debug: what Spark itself may say on standard error.
        catalog: a folder that keeps tables and views for later sessions, one session at a time; without it they
            are gone with the session, unless Spark is set up for a metastore.
        settings: Spark settings above all others. Those given to spark-submit are above ours.

    Raises:
        InconclusiveError: PySpark or Java is missing, or the JVM does not start.
    """
    context_class()
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    submitted = _submitted()
    chosen = master or submitted.get("spark.master") or os.environ.get("MASTER") or "local[*]"
    if SparkSession.getActiveSession() is None:
        prepare_environment(os.environ, chosen, log_level)
    builder = SparkSession.builder
    ours = settings_for(chosen) | (catalog_settings(Path(catalog)) if catalog else {})
    for key, value in (ours | submitted | dict(settings or {})).items():
        builder = builder.config(key, value)
    builder = builder.appName(name).master(chosen)
    try:
        session = builder.getOrCreate()
    except (PySparkException, RuntimeError, OSError) as error:
        raise InconclusiveError(f"no Spark session on {chosen}: {error}") from error
    pipeline.register(session)
    return session


def context_class() -> type[SparkContext]:
    """Return PySpark's `SparkContext`.

    Raises:
        InconclusiveError: it is not installed.
    """
    if find_spec("pyspark") is None:
        raise InconclusiveError(
            "PySpark is not installed: the extra `spark` brings it (docs/installing.md)"
        )
    from pyspark import SparkContext

    found: type[SparkContext] = SparkContext
    return found


def _submitted() -> dict[str, str]:
    """Return a setting of spark-submit; nothing when it did not start this process."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # noqa: SLF001  # SparkConf knows nothing before
    return dict(SparkConf().getAll())


def settings_for(master: str) -> dict[str, str]:
    """Return the Spark settings that fit a master."""
    if not is_on_one_machine(master):
        return dict(_EVERYWHERE)
    shuffles = {"spark.sql.shuffle.partitions": str(max(os.cpu_count() or 1, 2))}
    return _EVERYWHERE | _ON_ONE_MACHINE | shuffles


def catalog_settings(folder: Path) -> dict[str, str]:
    """Return the Spark settings that keep the catalog in a folder: Hive's metastore in an embedded Derby."""
    place = folder.absolute()
    return {
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": (
            f"jdbc:derby:;databaseName={place / 'metastore'};create=true"
        ),
        "spark.driver.defaultJavaOptions": f"-Dderby.stream.error.file={place / 'derby.log'}",
    }


def prepare_environment(
    environment: MutableMapping[str, str], master: str, log_level: str = "error"
) -> None:
    """Set what a JVM and its Python workers will inherit; what is set already stays.

    Raises:
        JavaMissingError: no Java fits.
    """
    environment["JAVA_HOME"] = str(find_java().home)
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    environment.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    environment.setdefault("SPARK_CONF_DIR", str(CONF_FOLDER))
    environment["DLEDGER_SPARK_LOG_LEVEL"] = log_level
    if log_level != "error":
        environment["DLEDGER_SPARK_TASK_LOG_LEVEL"] = log_level
    if is_on_one_machine(master):
        environment.setdefault("SPARK_LOCAL_IP", LOCAL_ADDRESS)
