"""Who may import whom (docs/architecture.md), read from the source, and purity, seen in a process."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

import dledger_mq
from tests.architecture.sources import ROOT, imports_under, is_within, modules_under

PACKAGES = ("dledger", "dledger_mq", "broker", "jepsen", "bench", "tests", "pipeline")

# What each of our packages may import of ours.
ALLOWED = {
    "dledger": {"dledger"},
    "dledger_mq": {"dledger_mq", "dledger"},
    "broker": {"broker", "dledger_mq", "dledger"},
    "pipeline": {"pipeline", "broker", "dledger_mq", "dledger"},
    "jepsen": {"jepsen", "broker", "dledger_mq", "dledger"},
    "bench": {"bench", "jepsen", "pipeline", "broker", "dledger_mq", "dledger"},
}

# Within a package: the parts that know nothing of the world, and what they may use of ours.
PURE = {
    "dledger/raft": {"dledger.raft", "dledger.errors", "dledger.config"},
    "dledger/codec": {"dledger.raft", "dledger.codec", "dledger.errors"},
    "dledger_mq/remoting": {"dledger_mq.remoting", "dledger_mq.message"},
    "dledger_mq/message": {"dledger_mq.message"},
    "broker/service": {
        "broker.service",
        "broker.store",
        "dledger_mq.remoting",
        "dledger_mq.message",
        "dledger",
    },
}

# The client is no part of a member of a log; these two it shares with one.
MQ_OF_DLEDGER = {"dledger.runtime.frame_room", "dledger.storage.posix", "dledger.version"}

IMPURE_MODULES = {
    "anyio",
    "asyncio",
    "datetime",
    "os",
    "random",
    "selectors",
    "socket",
    "subprocess",
    "threading",
    "time",
    "trio",
}


@pytest.mark.parametrize("package", [name for name in ALLOWED if (ROOT / name).is_dir()])
def test_packages_import_only_what_lies_below_them(package: str) -> None:
    wrong = [
        str(found)
        for found in imports_under(package)
        if found.top in PACKAGES and found.top not in ALLOWED[package]
    ]
    assert wrong == []


def test_the_client_uses_of_the_log_only_what_both_need() -> None:
    wrong = [
        str(found)
        for found in imports_under("dledger_mq")
        if found.top == "dledger" and found.name not in MQ_OF_DLEDGER
    ]
    assert wrong == []


def test_every_public_name_of_the_client_can_be_imported() -> None:
    assert [name for name in dledger_mq.__all__ if not hasattr(dledger_mq, name)] == []


@pytest.mark.parametrize("folder", PURE)
def test_pure_parts_import_nothing_of_the_world(folder: str) -> None:
    wrong = [
        str(found)
        for found in imports_under(folder)
        if found.top in IMPURE_MODULES
        or (found.top in PACKAGES and not is_within(found.name, PURE[folder]))
    ]
    assert wrong == []


def test_storage_and_core_do_not_know_the_runtime() -> None:
    wrong = [
        str(found)
        for folder in ("dledger/raft", "dledger/codec", "dledger/storage")
        for found in imports_under(folder)
        if is_within(found.name, {"dledger.runtime", "dledger.testing", "dledger.engine", "trio"})
    ]
    assert wrong == []


def test_pyspark_is_imported_in_one_place_only() -> None:
    wrong = [
        str(found)
        for found in imports_under("pipeline")
        if not found.path.is_relative_to(ROOT / "pipeline" / "spark")
        if found.top in {"pyspark", "py4j"}
    ]
    assert wrong == []


def test_the_command_of_the_pipeline_starts_without_spark() -> None:
    script = (
        "import sys, pipeline.cli\n"
        "pipeline.cli._parser({job.name: job for job in map(pipeline.cli.load, pipeline.cli.JOBS)})\n"
        "print(sorted({'pyspark', 'pandas', 'pyarrow'} & set(sys.modules)))"
    )
    seen = subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert seen.stdout.strip() == "[]"


def test_only_posix_disk_calls_fsync() -> None:
    callers = {
        str(path.relative_to(ROOT))
        for path in modules_under("dledger")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in {"fsync", "fdatasync"}
        if isinstance(node.value, ast.Name) and node.value.id == "os"
    }
    assert callers == {"dledger/storage/posix.py"}


@pytest.mark.parametrize(
    "module", ["dledger.raft.node", "dledger_mq.message.record", "dledger_mq.remoting.header"]
)
def test_pure_parts_load_without_the_world(module: str) -> None:
    script = (
        f"import sys, {module}\n"
        "print(sorted({'trio', 'socket', 'asyncio', 'threading'} & set(sys.modules) - started))"
    )
    seen = subprocess.run(
        [sys.executable, "-c", "import sys; started = set(sys.modules)\n" + script],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert "trio" not in seen.stdout, seen.stdout
    assert "socket" not in seen.stdout, seen.stdout
    assert "asyncio" not in seen.stdout, seen.stdout
