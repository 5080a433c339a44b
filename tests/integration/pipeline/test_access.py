"""Source, sink and jobs against a group that lets accounts in only, and enforces TLS."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dledger_mq import ClientError
from dledger_mq.blocking import Admin
from dledger_mq.client.tls import make_tls_context
from jepsen.guards import ACCOUNT, GUARDS, make_guards
from jepsen.processes import SMALL_SEGMENTS, Group, poll
from jepsen.systems.brokers import guard_group
from pipeline.spark.failures import reason_of

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PATIENCE_S = 120.0


class Guarded:
    """One broker and a name server."""

    def __init__(self, folder: Path) -> None:
        self.group = Group(folder, nodes=1, settings=SMALL_SEGMENTS)
        guards = make_guards(folder, GUARDS, ["127.0.0.1"])
        guard_group(self.group, guards)
        assert guards.tls_files is not None
        self.trust = guards.tls_files.trust
        self.keys = folder / "keys.yml"
        self.keys.write_text(f"accessKey: {ACCOUNT.access_key}\nsecretKey: {ACCOUNT.secret_key}\n")

    def options(self, **more: str) -> dict[str, str]:
        """What a format is given: where to find the group, and whom to believe."""
        return {"nameServer": self.group.namesrv, "tlsTrustPath": self.trust, **more}

    def makes(self, topic: str) -> bool:
        """Whether an administrator gets a topic made, which comes with a leader."""
        tls = make_tls_context(trust=self.trust)
        try:
            with Admin(self.group.namesrv, tls=tls, credentials=ACCOUNT) as admin:
                admin.create_topic(topic)
        except ClientError:
            return False
        return True


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with ExitStack() as stack:
        found = Guarded(tmp_path_factory.mktemp("guarded"))
        stack.enter_context(found.group)
        found.group.start()
        found.group.wait_listening()
        assert poll(lambda: found.makes("Orders"), PATIENCE_S), found.group.nodes[0].log_tail()
        yield found


def test_rows_go_in_and_come_out_and_no_key_is_shown(
    spark: Any, guarded: Guarded, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = guarded.options(topic="Orders", credentialsPath=str(guarded.keys))
    rows = spark.range(20).selectExpr("cast(id as string) as body")
    rows.write.format("rocketmq").options(**options).mode("append").save()
    read = spark.read.format("rocketmq").options(**options).load()
    assert sorted(int(row.body) for row in read.select("body").collect()) == list(range(20))
    stream = spark.readStream.format("rocketmq").options(**options, startingOffsets="earliest")
    query = (
        stream.load()
        .writeStream.format("memory")
        .queryName("signed")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert spark.table("signed").count() == 20
    read.explain(mode="extended")
    shown = "".join(capfd.readouterr())
    assert "rocketmq" in shown.lower()
    assert ACCOUNT.secret_key not in shown


@pytest.mark.parametrize("wrong", ["nobody", "another secret"])
def test_who_is_not_let_in_is_told_so(
    spark: Any, guarded: Guarded, tmp_path: Path, wrong: str
) -> None:
    more = {}
    if wrong != "nobody":
        keys = tmp_path / "keys.yml"
        keys.write_text(f"accessKey: {ACCOUNT.access_key}\nsecretKey: of-somebody-else\n")
        more = {"credentialsPath": str(keys)}
    options = guarded.options(topic="Orders", **more)
    with pytest.raises(Exception, match="AclException") as caught:
        spark.read.format("rocketmq").options(**options).load().collect()
    reason = reason_of(caught.value)
    assert "AclException" in reason
    who = "without credentials" if wrong == "nobody" else f"as {ACCOUNT.access_key}"
    assert f"(asked {who})" in reason
    assert "of-somebody-else" not in str(caught.value)


def test_jobs_sign(guarded: Guarded) -> None:
    def lag(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pipeline.cli", "--tls-trust", guarded.trust, *words]
        return subprocess.run(
            [*command, "lag", "--json", "-n", guarded.group.namesrv],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )

    done = lag("--credentials", str(guarded.keys))
    assert done.returncode == 0, done.stderr
    assert "groups" in json.loads(done.stdout)
    refused = lag()
    assert refused.returncode == 2
    assert "AclException" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
