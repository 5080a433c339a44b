"""Scenarios of rows 61 to 67: resources, versions, backups, members."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import trio

from dledger import NodeId
from dledger.storage.posix import PosixDisk
from dledger.storage.restored import mark_restored
from dledger.storage.segmented_log import SegmentedLog
from jepsen.checklist.network_faults import both_ways, shaped
from jepsen.checklist.stage import Catalogue, SkippedError, Stage
from jepsen.keeper import marked
from jepsen.systems.api import CLIENTS, CUT

OPERATIONS: Final = Catalogue()
MEMORY_CONTROLLER: Final = Path("/sys/fs/cgroup/memory")
MEMORY_ROOM: Final = 96 << 20
"""The memory that a leader may use beyond what it has at rest."""

BUSY_PER_CORE: Final = 4
FILES_LEFT: Final = 16
ADMITTED_WAIT_S: Final = 20.0
REFUSED_WAIT_S: Final = 20.0
NOTICED_WAIT_S: Final = 20.0
RESTORING: Final = "the rehearsal"
"""The operator's name for the restoring of all nodes."""

BEFORE: Final = "ff0f5db"
"""The commit that a rolling upgrade starts from: the version before chaos and pipeline."""


@contextmanager
def memory_limit(pid: int, limit_bytes: int) -> Iterator[Path]:
    """Hold a process below a limit by a memory cgroup (version 1); yields its folder.

    Raises:
        SkippedError: this machine lets us make no such group.
    """
    folder = MEMORY_CONTROLLER / f"dledger-jepsen-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text(str(limit_bytes))
        (folder / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise SkippedError(f"no memory cgroup can be made here: {error}") from None
    try:
        yield folder
    finally:
        for member in (folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (MEMORY_CONTROLLER / "cgroup.procs").write_text(member)
        folder.rmdir()


@OPERATIONS.add(61, rate=2000.0)
async def memory_limit_reached(stage: Stage) -> None:
    """Limit the leader's memory while a backlog grows: pressure goes to the clients."""
    leader = await stage.leader()
    await stage.progress(200)
    pid = stage.system.node(leader).pid
    assert pid is not None, "the leader runs"
    limit = int(stage.memory_mib(leader) * 2**20) + MEMORY_ROOM
    with memory_limit(pid, limit) as group:
        stage.note("memory", f"{leader} may use {limit >> 20} MiB")
        for _ in range(4):
            await stage.lets_run(5.0)
            await stage.progress(200)
        peak = int((group / "memory.max_usage_in_bytes").read_text())
        stage.note("memory", f"peak {peak >> 20} MiB")
        stage.expect(await stage.leader() == leader, "the leader stays")
    await stage.whole()


@OPERATIONS.add(62)
async def file_descriptors_run_out(stage: Stage) -> None:
    """Use up all descriptors of the leader: members and old clients must keep theirs."""
    leader = await stage.leader()
    term = await stage.term()
    node = stage.system.node(leader)
    assert node.pid is not None, "the leader runs"
    in_use = len(os.listdir(f"/proc/{node.pid}/fd"))  # noqa: PTH208 - a count of a process's files
    before = resource.prlimit(node.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(node.pid, resource.RLIMIT_NOFILE, (in_use + FILES_LEFT, before[1]))
    with ExitStack() as stack:
        for _ in range(10 * FILES_LEFT):
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_connection(("127.0.0.1", node.port), timeout=0.5))
        stage.note(
            "files", f"{leader} may open {FILES_LEFT} more; clients asked for ten times that"
        )
        await stage.progress(50)
        stage.expect(await stage.leader() == leader, "the leader stays")
    resource.prlimit(node.pid, resource.RLIMIT_NOFILE, before)
    stage.expect(await stage.term() == term, "no election for want of descriptors")
    await stage.progress(50)
    await stage.whole()


@contextmanager
def busy_machine() -> Iterator[int]:
    """Keep every core busy several times over; yields the number of busy processes."""
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"], env={**os.environ, **marked()})
        for _ in range(BUSY_PER_CORE * (os.cpu_count() or 1))
    ]
    try:
        yield len(busy)
    finally:
        for each in busy:
            each.kill()
            each.wait()


@OPERATIONS.add(63, rate=50.0)
async def no_cpu(stage: Stage) -> None:
    """Keep the machine busy with work that goes first: elections must stay rare."""
    term = await stage.term()
    for node in stage.system.nodes:
        if node.pid is not None:
            os.setpriority(os.PRIO_PROCESS, node.pid, 10)
    with busy_machine() as loops:
        stage.note("cpu", f"{loops} busy loops, brokers at a lower priority")
        await stage.lets_run(15.0)
    grown = await stage.term() - term
    stage.expect(grown <= 15, f"no storm of elections in 15 s (terms grew by {grown})")
    await stage.progress(20, timeout_s=60)
    await stage.whole()


@contextmanager
def version_before(folder: Path) -> Iterator[Path]:
    """Check the version before out beside this one; yields its folder.

    Raises:
        SkippedError: this is no clone with a history.
    """
    here = Path(__file__).parents[2]
    tree = folder / "version-before"
    git = ["git", "-C", str(here)]
    try:
        made = subprocess.run(
            [*git, "worktree", "add", "--detach", str(tree), BEFORE],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise SkippedError("git is not there to fetch the version before") from None
    if made.returncode != 0:
        raise SkippedError(f"the version before ({BEFORE}) is not in this clone")
    try:
        yield tree
    finally:
        subprocess.run([*git, "worktree", "remove", "--force", str(tree)], check=False)


@OPERATIONS.add(65)
async def rolling_upgrade_and_downgrade(stage: Stage) -> None:
    """Move each node to the version before and back, under load; name servers are never newer."""
    servers = stage.broker.group.name_servers
    nodes = [stage.system.node(name) for name in stage.names]
    with version_before(stage.system.folder) as tree:
        for older, processes in ((True, [*servers, *nodes]), (False, [*nodes, *servers])):
            for process in processes:
                await trio.to_thread.run_sync(process.stop)
                if older:
                    process.environment["PYTHONPATH"] = str(tree)
                else:
                    del process.environment["PYTHONPATH"]
                version = "the version before" if older else "this one"
                stage.note("version", f"{process.name} is {version}")
                process.start()
                await stage.progress(50)
                await stage.whole()


@OPERATIONS.add(66)
async def one_node_from_an_old_backup(stage: Stage) -> None:
    """Bring a follower back with the store that it had some thousand messages ago."""
    victim = stage.others(await stage.leader())[0]
    await _make_old(stage, victim)
    await _comes_back(stage, victim)


@OPERATIONS.add(66)
async def an_old_backup_and_another_leader(stage: Stage) -> None:
    """Bring a node back with an old store into a later term, in which no leader knows what it confirmed."""
    victim = leader = await stage.leader()
    await _make_old(stage, victim)
    await stage.leader(other_than=leader)
    await stage.progress(50)
    await _comes_back(stage, victim)


@OPERATIONS.add(66)
async def all_nodes_from_one_backup(stage: Stage) -> None:
    """Give all nodes the store of the one that has most, marked as restored: all must report it."""
    await stage.progress(200)
    stage.kill(*stage.names)
    best = max(stage.names, key=lambda name: _last_id(stage.store(name)))
    copy = Path(shutil.copytree(stage.store(best), stage.system.folder / "backup"))
    stage.note("backup", f"all nodes get the store of {best}")
    for name in stage.names:
        shutil.rmtree(stage.store(name))
        shutil.copytree(copy, stage.store(name))
    wrong = stage.others(best)[0]
    stage.start(wrong)
    node = stage.system.node(wrong)
    stage.expect(
        await stage.until(lambda: node.pid is None, REFUSED_WAIT_S),
        f"{wrong} refuses the store of {best}",
    )
    for name in stage.names:
        mark_restored(
            str(stage.store(name)),
            group=stage.broker.group.group,
            node_id=NodeId(name),
            name=RESTORING,
        )
    stage.start(*stage.names)
    await stage.whole()
    await stage.progress(50)
    statuses = await stage.statuses()
    stage.expect(
        [each.attributes.get("incarnation") for each in statuses.values()] == [RESTORING] * 3,
        "every node reports the new incarnation",
    )


@OPERATIONS.add(66, network="proxies")
async def all_nodes_from_backups_and_nobody_says_so(stage: Stage) -> None:
    """Give all nodes stores of one moment that are not marked: the leader must learn it from the name server.

    Clients are cut off from the backup until the notice, so that no acknowledged send is lost with intent:
    what is lost are the entries with which leaders begin their terms.
    """
    await stage.progress(100)
    with shaped(stage, both_ways(CLIENTS, stage.names), CUT, "clients cut off"):
        stage.kill(*stage.names)
        backup = stage.system.folder / "backup"
        for name in stage.names:
            shutil.copytree(stage.store(name), backup / name)
        stage.note("backup", "copies of all stores")
        stage.start(*stage.names)
        await stage.whole()
        for name in stage.names:
            await stage.make_lead(name)
        stage.expect(not _noticed(stage), "no notice while nothing is lost")
        stage.kill(*stage.names)
        for name in stage.names:
            shutil.rmtree(stage.store(name))
            shutil.move(backup / name, stage.store(name))
        stage.note("backup", "all nodes start with the copies")
        stage.start(*stage.names)
        stage.expect(
            await stage.until(lambda: bool(_noticed(stage)), NOTICED_WAIT_S),
            "the leader says that the group went back",
        )
    await stage.whole()
    await stage.progress(50)


@OPERATIONS.add(67)
async def wrong_peers(stage: Stage) -> None:
    """Bring nodes back on their stores with other members, the leader first: they are refused."""
    leader = await stage.leader()
    peers = {peer.partition("-")[0]: peer for peer in stage.broker.group.peers.split(";")}
    for victim in (leader, stage.others(leader)[0]):
        third = next(peer for name, peer in peers.items() if name not in {leader, victim})
        more = f"{stage.broker.group.peers};n9-127.0.0.1:1"
        for wrong in (peers[victim], f"{peers[victim]};{third}", more):
            await stage.progress(20)
            stage.kill(victim)
            await _is_refused(stage, victim, wrong)
        await stage.progress(20)
        stage.start(victim)
        await stage.whole()
    await stage.progress(50)


async def _is_refused(stage: Stage, victim: str, wrong: str) -> None:
    """Check that a node which is given these members does not start, and says which its store has."""
    node = stage.system.node(victim)
    right, said_before = node.command, node.log.stat().st_size
    node.command = [wrong if word == stage.broker.group.peers else word for word in right]
    stage.note("peers", f"{victim} is given the members {wrong}")
    stage.start(victim)
    try:
        stage.expect(
            await stage.until(lambda: node.pid is None, REFUSED_WAIT_S),
            f"{victim} refuses other members",
        )
    finally:
        node.kill()
        node.command = right
    names = ", ".join(sorted(stage.names)).encode()
    said = node.log.read_bytes()[said_before:]
    stage.expect(
        b"belongs to a group of " + names in said, f"{victim} says which members its store has"
    )


def _noticed(stage: Stage) -> list[str]:
    """Return the members that have reported that the group went back."""
    return [
        node.name for node in stage.system.nodes if b" group-went-back " in node.log.read_bytes()
    ]


async def _make_old(stage: Stage, victim: str) -> None:
    """Stop a node, and put the store back that it had some hundred messages and a restart ago."""
    await stage.progress(50)
    backup = stage.system.folder / "backup"
    stage.kill(victim)
    shutil.copytree(stage.store(victim), backup)
    stage.start(victim)
    stage.expect(
        await stage.until_true(lambda: _is_back(stage, victim), ADMITTED_WAIT_S),
        f"{victim} is back before it gets its old store",
    )
    await stage.progress(200)
    stage.kill(victim)
    shutil.rmtree(stage.store(victim))
    shutil.move(backup, stage.store(victim))
    stage.note("backup", f"{victim} starts with its old store")


async def _comes_back(stage: Stage, victim: str) -> None:
    """Check that it reports its store as old, catches up, and is then worth as much as any other."""
    stage.start(victim)
    log = stage.system.node(victim).log
    stage.expect(
        await stage.until(lambda: b" store-is-old " in log.read_bytes(), ADMITTED_WAIT_S),
        f"{victim} says that its store is old",
    )
    await stage.whole()
    stage.expect(
        await stage.until_true(lambda: _has_vote(stage, victim), ADMITTED_WAIT_S),
        f"{victim} has its vote again",
    )
    other = stage.others(victim, await stage.leader())[0]
    stage.kill(other)  # the restored one is now needed for every majority
    await stage.progress(50)
    stage.start(other)
    await stage.whole()


async def _is_back(stage: Stage, victim: str) -> bool:
    """Return whether it runs, follows, and is connected, so that the others have heard of this start."""
    status = (await stage.statuses()).get(victim)
    others = len(stage.names) - 1
    return status is not None and bool(status.leader_id) and len(status.peers_connected) == others


async def _has_vote(stage: Stage, victim: str) -> bool:
    status = (await stage.statuses()).get(victim)
    return status is not None and "store" not in status.attributes


def _last_id(store: Path) -> tuple[int, int]:
    """Return term and index of the last entry of a store that nobody uses."""
    log = SegmentedLog.open(
        PosixDisk(str(store)), "", segment_size_bytes=1 << 30, cache_bytes_max=0, syncs=True
    )
    last = log.last_id
    log.close()
    return last.term, last.index
