"""Who may import whom (docs/architecture.md), read from the source, and purity, seen in a process."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter

import pytest

import dledger_mq
from broker.admin.archives import READER
from tests.architecture.sources import (
    ROOT,
    imports_of,
    imports_under,
    is_within,
    module_name,
    modules_under,
    parsed,
)

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

# What each part of a package may import of the others: those that lie below it.
LAYERS = {
    "dledger.raft": {"config", "errors"},
    "dledger.state_machine": {"raft"},
    "dledger.codec": {"errors", "raft", "state_machine"},
    "dledger.storage": {"codec", "errors", "raft", "state_machine"},
    "dledger.repair": {"codec", "config", "errors", "raft", "storage"},
    "dledger.catch_up": {"codec", "raft", "storage"},
    "dledger.engine": {
        "catch_up",
        "codec",
        "config",
        "errors",
        "held_sends",
        "log_history",
        "raft",
        "repair",
        "storage",
    },
    "dledger.log_history": {"codec", "errors", "raft", "storage"},
    "dledger.forgetting": {"codec", "engine", "raft", "storage"},
    "dledger.founding_store": {"codec", "raft", "state_machine", "storage"},
    "dledger.starting_state": {"engine", "errors", "raft", "state_machine", "storage"},
    "dledger.runtime": {
        "catch_up",
        "codec",
        "config",
        "engine",
        "errors",
        "group_secret",
        "member_tls",
        "forgetting",
        "log_history",
        "raft",
        "repair",
        "starting_state",
        "state_machine",
        "storage",
    },
    "dledger.testing": {
        "catch_up",
        "codec",
        "config",
        "engine",
        "errors",
        "forgetting",
        "raft",
        "repair",
        "starting_state",
        "state_machine",
        "storage",
    },
    "dledger_mq.message": set(),
    "dledger_mq.filters": {"message"},
    "dledger_mq.remoting": {"message"},
    "dledger_mq.net": {"remoting"},
    "dledger_mq.client": {"filters", "message", "net", "remoting"},
    "dledger_mq.blocking": {"client"},
    "dledger_mq.testing": {"client", "filters", "message", "net", "remoting"},
    "broker.metrics": set(),
    "broker.access": set(),
    "broker.net": set(),
    "broker.command_line": set(),
    "broker.log_output": {"command_line"},
    "broker.processes": set(),
    "broker.properties": set(),
    "broker.refused_codes": set(),
    "broker.times": set(),
    "broker.store": set(),
    "broker.service": {"store"},
    "broker.settings": set(),
    "broker.tls": {"command_line", "net", "properties", "settings"},
    "broker.server": {
        "access",
        "command_line",
        "log_output",
        "metrics",
        "net",
        "processes",
        "properties",
        "refused_codes",
        "service",
        "settings",
        "store",
        "times",
        "tls",
    },
    "broker.node": {"command_line", "processes", "server", "settings", "tls"},
    "broker.namesrv": {
        "access",
        "command_line",
        "log_output",
        "metrics",
        "net",
        "properties",
        "refused_codes",
        "settings",
        "tls",
    },
    "broker.importing": {"store"},
    "broker.story": {"store", "times"},
    "broker.admin": {"command_line", "importing", "store", "story", "times"},
    "broker.admin.web": {
        "answers",
        "ask",
        "broker_tables",
        "cluster",
        "command",
        "exit_codes",
        "failures",
        "group_places",
        "groups",
        "health",
        "looks",
        "message_search",
        "offset_reset",
        "options",
        "printing",
        "resend_dlq",
        "survey",
        "trace_view",
    },
    "broker.proxy": {"access", "admin", "command_line", "log_output"},
    "broker.proxy.protocol": set(),
    "broker.testing": {"server", "service", "store"},
    "broker.server.settings": set(),
    "broker.server.links": set(),
    "broker.server.requests": {"links", "mistakes"},
    "broker.server.watches": {"requests"},
    "broker.server.handlers": {
        "changes",
        "config",
        "links",
        "mistakes",
        "requests",
        "settings",
        "watches",
    },
    "broker.server.deliveries": {"handlers", "requests"},
    "broker.server.figures": {"config", "handlers", "services"},
}

# Of the log, what those parts of the others may use that know nothing of the world.
VALUES_OF_THE_LOG = {
    "dledger.errors",
    "dledger.raft.entry",
    "dledger.raft.ids",
    "dledger.state_machine",
}

# The parts that know nothing of the world, and what they may use of ours.
PURE = {
    "dledger/raft": {"dledger.raft", "dledger.errors", "dledger.config"},
    "dledger/codec": {"dledger.raft", "dledger.codec", "dledger.errors", "dledger.state_machine"},
    "dledger/storage": {
        "dledger.raft",
        "dledger.codec",
        "dledger.errors",
        "dledger.state_machine",
        "dledger.storage",
    },
    "dledger/repair": {
        "dledger.raft",
        "dledger.codec",
        "dledger.config",
        "dledger.errors",
        "dledger.repair",
        "dledger.storage",
    },
    "dledger/held_sends": {"dledger.raft"},
    "dledger/catch_up": {"dledger.raft", "dledger.codec", "dledger.storage"},
    "dledger/engine": {
        "dledger.catch_up",
        "dledger.raft",
        "dledger.codec",
        "dledger.config",
        "dledger.errors",
        "dledger.held_sends",
        "dledger.log_history",
        "dledger.repair",
        "dledger.storage",
    },
    "dledger/log_history": {"dledger.raft", "dledger.codec", "dledger.errors", "dledger.storage"},
    "dledger_mq/remoting": {"dledger_mq.remoting", "dledger_mq.message"},
    "dledger_mq/message": {"dledger_mq.message"},
    "broker/store": {
        "broker.store",
        "dledger_mq.filters",
        "dledger_mq.remoting",
        "dledger_mq.message",
        *VALUES_OF_THE_LOG,
    },
    "broker/service": {
        "broker.service",
        "broker.store",
        "dledger_mq.filters",
        "dledger_mq.remoting",
        "dledger_mq.message",
        *VALUES_OF_THE_LOG,
    },
}

# Where what leaves memory lies: behind interfaces, which the server fills (adr/0020, adr/0031).
SPILLS = {"broker.store.file_places", "broker.store.timer_files", "broker.store.unit_files"}

# The machine's own disk: what is pure has a `Disk` (dledger/storage/api.py), and is given this one or a simulated one.
OF_THE_MACHINE = {"dledger.storage.lock", "dledger.storage.posix", "dledger.storage.restored"}

# Of the parts of a broker that act on requests, those that start tasks or wait, and the clock itself.
SHELL_OF_THE_SERVER = {
    "broker.server.deliveries.deliveries",
    "broker.server.handlers.client_exchange",
    "broker.server.handlers.held_looks",
    "broker.server.handlers.members",
    "broker.server.handlers.pull_turns",
    "broker.server.links.link",
    "broker.server.requests.commit_tasks",
    "broker.server.requests.linear",
    "broker.server.watches.clock",
}

# The client is no part of a member of a log; they share the number of their release.
MQ_OF_DLEDGER = {"dledger.version"}

IMPURE_MODULES = {
    "anyio",
    "asyncio",
    "datetime",
    "os",
    "pathlib",
    "random",
    "selectors",
    "shutil",
    "signal",
    "socket",
    "sqlite3",
    "subprocess",
    "tempfile",
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


def test_the_client_uses_nothing_of_the_log_but_its_version() -> None:
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
        if module_name(found.path) not in SPILLS | OF_THE_MACHINE
        if found.top in IMPURE_MODULES
        or found.name in OF_THE_MACHINE
        or (found.top in PACKAGES and not is_within(found.name, PURE[folder]))
    ]
    assert wrong == []


@pytest.mark.parametrize("folder", ["requests", "handlers", "deliveries", "links", "watches"])
def test_few_modules_that_act_on_requests_know_of_tasks_and_clocks(folder: str) -> None:
    impure = {
        module_name(found.path)
        for found in imports_under(f"broker/server/{folder}")
        if found.top in IMPURE_MODULES
    }
    allowed = {name for name in SHELL_OF_THE_SERVER if is_within(name, {f"broker.server.{folder}"})}
    assert impure == allowed


def test_the_fold_does_not_know_where_it_spills_to() -> None:
    wrong = [
        str(found)
        for found in imports_under("broker/store")
        if found.name in SPILLS and module_name(found.path) not in SPILLS
    ]
    assert wrong == []


@pytest.mark.parametrize("part", LAYERS)
def test_parts_import_only_what_lies_below_them(part: str) -> None:
    around = part.rpartition(".")[0]
    below = {part} | {f"{around}.{name}" for name in LAYERS[part]} | {f"{around}.version"}
    wrong = [
        str(found)
        for found in imports_under(part.replace(".", "/"))
        if is_within(found.name, {around}) and not is_within(found.name, below)
    ]
    assert wrong == []


def test_every_part_of_the_packages_has_its_layer() -> None:
    """At every depth: a folder within a part has a wall of its own."""
    folders = {
        module_name(path)
        for package in ("dledger", "dledger_mq", "broker")
        for path in (ROOT / package).glob("*/**/__init__.py")
    }
    assert folders - LAYERS.keys() == set()
    assert [part for part in LAYERS if not modules_under(part.replace(".", "/"))] == []


def test_no_parts_lie_below_each_other() -> None:
    """Modules that do not import each other may still tie two folders into one."""
    graph = {
        part: {f"{part.rpartition('.')[0]}.{name}" for name in below}
        for part, below in LAYERS.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


# A search is bounded in time, and a history notes when something was seen.
READS_THE_CLOCK = {"jepsen.checkers.linearizable", "jepsen.history.ops"}


@pytest.mark.parametrize("part", ["checkers", "history", "generators"])
def test_what_judges_and_what_plans_a_run_knows_nothing_of_the_world(part: str) -> None:
    """A generator draws from the `random.Random` that it is given."""
    wrong = [
        str(found)
        for found in imports_under(f"jepsen/{part}")
        if found.top in IMPURE_MODULES - {"pathlib", "random"}
        and not (found.top == "time" and module_name(found.path) in READS_THE_CLOCK)
    ]
    assert wrong == []


def test_checkers_judge_a_history_and_ask_no_system() -> None:
    below = {"jepsen.checkers", "jepsen.history", "dledger_mq.message", "dledger.raft.ids"}
    wrong = [
        str(found)
        for found in imports_under("jepsen/checkers")
        if found.top in PACKAGES and not is_within(found.name, below)
    ]
    assert wrong == []


def test_storage_waits_for_nobody() -> None:
    wrong = [str(found) for found in imports_under("dledger/storage") if found.top == "trio"]
    assert wrong == []


def test_no_modules_import_each_other() -> None:
    """Not for types either: what two modules know of each other lies below both, or is a `Protocol` of one."""
    graph = {
        module_name(path): {found.name for found in imports_of(path)} - {module_name(path)}
        for package in ALLOWED
        for path in modules_under(package)
    }
    sorter = TopologicalSorter(graph)
    try:
        sorter.prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_pyspark_is_imported_in_one_place_only() -> None:
    wrong = [
        str(found)
        for found in imports_under("pipeline")
        if not found.path.is_relative_to(ROOT / "pipeline" / "spark")
        if found.top in {"pyspark", "py4j"}
    ]
    assert wrong == []


CONSOLE_ONLY = {"hypercorn", "jinja2", "markupsafe", "starlette"}
"""The extra `web`."""


def test_the_extra_of_the_console_is_imported_there_only() -> None:
    wrong = [
        str(found)
        for package in ("dledger", "dledger_mq", "broker")
        for found in imports_under(package)
        if found.top in CONSOLE_ONLY and not found.path.is_relative_to(ROOT / "broker/admin/web")
    ]
    assert wrong == []


def test_the_command_of_the_admin_starts_without_the_console_and_what_reads_archives() -> None:
    assert (ROOT / READER.replace(".", "/")).with_suffix(".py").is_file()
    optional = CONSOLE_ONLY | {"pipeline", "pyarrow"}
    script = f"import sys, broker.admin.cli\nprint(sorted({optional!r} & set(sys.modules)))"
    seen = subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert seen.stdout == "[]\n"


@pytest.mark.parametrize("command", ["broker.server.cli", "broker.namesrv.cli", "broker.admin.cli"])
def test_a_command_starts_without_what_only_figures_and_filters_by_properties_need(
    command: str,
) -> None:
    """The libraries take a sixth of a broker's start."""
    some = {"prometheus_client", "h11", "lark"}
    script = f"import sys, {command}\nprint(sorted({some!r} & set(sys.modules)))"
    seen = subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert seen.stdout == "[]\n"


def test_the_command_of_the_pipeline_starts_without_spark() -> None:
    script = (
        "import sys, pipeline.cli, pipeline.planning\n"
        "pipeline.cli._parser({job.name: job for job in map(pipeline.cli.load, pipeline.cli.JOBS)})\n"
        "print(sorted({'pyspark', 'pandas', 'pyarrow', 'numpy'} & set(sys.modules)))"
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


# Who makes a file durable by itself: the disk of the log; the client, which uses nothing of the log; and an archive,
# whose files are larger than what is written aside in one piece; and access rules, which keep the mode that they have.
SYNCS = {
    "broker/access/rule_files.py",
    "dledger/storage/posix.py",
    "dledger_mq/client/durable_file.py",
    "pipeline/archive/parts.py",
}


def test_few_modules_call_fsync() -> None:
    callers = {
        str(path.relative_to(ROOT))
        for package in ("dledger", "dledger_mq", "broker", "pipeline")
        for path in modules_under(package)
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Attribute) and node.attr in {"fsync", "fdatasync"}
        if isinstance(node.value, ast.Name) and node.value.id == "os"
    }
    assert callers == SYNCS


@pytest.mark.parametrize(
    "module",
    [
        "dledger.raft.node",
        "dledger.codec.entry",
        "dledger_mq.message.record",
        "dledger_mq.remoting.header",
        "broker.store.state",
        "broker.service.send",
    ],
)
def test_pure_parts_load_without_the_world(module: str) -> None:
    """What the libraries load for themselves is not ours to forbid."""
    script = (
        "import sys, crc32c, msgspec, sortedcontainers\n"
        "started = set(sys.modules)\n"
        f"import {module}\n"
        "print(sorted({'anyio', 'asyncio', 'socket', 'sqlite3', 'threading', 'trio'}"
        " & set(sys.modules) - started))"
    )
    seen = subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert seen.stdout == "[]\n"


def test_a_client_on_asyncio_does_not_load_trio() -> None:
    script = (
        "import asyncio, sys\n"
        "from dledger_mq import Admin, Message, Producer, PullConsumer, PushConsumer\n"
        "from dledger_mq.testing import open_fake_group\n"
        "async def main():\n"
        "    async with open_fake_group() as group, Producer(group.namesrv, 'g') as producer:\n"
        "        await producer.send(Message('T', b'x'))\n"
        "    producer = Producer(group.namesrv, 'g')\n"
        "    await producer.start()\n"
        "    await producer.stop()\n"
        "asyncio.run(main())\n"
        "print('trio' in sys.modules)"
    )
    seen = subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert seen.stdout == "False\n"
