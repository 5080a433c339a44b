"""All stores of a group put back from backups of one moment, while its name server lives on. Real processes."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import trio

from dledger import Client, NodeId, StatusAnswer
from dledger.storage.restored import mark_restored
from dledger_mq.remoting.codes import RequestCode
from dledger_mq.remoting.json_body import read_object
from jepsen.processes import Group, Process, poll
from tests.integration.broker.test_processes import (
    PATIENCE_S,
    ask,
    brokers_of,
    leader_of,
    send_until_stored,
)

pytestmark = [pytest.mark.slow, pytest.mark.integration]
LINE = b" group-went-back "


def serving(group: Group) -> Process:
    """The leader that the name server routes to, and all followers beside it."""
    assert poll(lambda: len(brokers_of(group)) == 3, PATIENCE_S)
    return leader_of(group)


def send(group: Group, count: int) -> None:
    leader = serving(group)
    for number in range(count):
        send_until_stored(leader, b"%d" % number)


def stop(group: Group) -> None:
    for node in group.nodes:
        node.stop(PATIENCE_S)


def start(group: Group) -> Process:
    for node in group.nodes:
        node.start()
    group.wait_listening()
    return serving(group)


def keep_copies(group: Group) -> Path:
    backup = group.folder / "backup"
    for node in group.nodes:
        shutil.copytree(group.folder / node.name, backup / node.name)
    return backup


def put_back(group: Group, backup: Path) -> None:
    for node in group.nodes:
        shutil.rmtree(group.folder / node.name)
        shutil.copytree(backup / node.name, group.folder / node.name)


def lines(group: Group) -> list[bytes]:
    logs = [node.log.read_bytes() for node in group.nodes]
    return [line for log in logs for line in log.splitlines() if LINE in line]


def runtime(node: Process) -> dict[Any, Any]:
    table = read_object(ask(node.port, RequestCode.GET_BROKER_RUNTIME_INFO, {}).body)["table"]
    assert isinstance(table, dict)
    return table


def attribute(group: Group, name: str) -> str:
    async def asked() -> object:
        async with Client(group.peers, group=group.group, timeout_s=PATIENCE_S) as client:
            return (await client.status())[NodeId(name)]

    told = trio.run(asked)
    assert isinstance(told, StatusAnswer)
    return told.attributes.get("went_back", "")


def test_a_group_that_went_back_is_told_so_by_its_name_server(tmp_path: Path) -> None:
    with Group(tmp_path) as group:
        group.name_servers[0].command += ["--log-level", "INFO"]
        group.start()
        group.wait_listening()
        send(group, 5)
        stop(group)
        backup = keep_copies(group)
        leader = start(group)
        send(group, 20)
        assert runtime(leader)["raftWentBack"] == "no"
        committed = int(str(runtime(leader)["raftCommitIndex"]))
        stop(group)
        start(group)  # its leader tells how far it is; nothing is wrong with a restart
        assert lines(group) == []

        stop(group)
        put_back(group, backup)
        leader = start(group)
        assert poll(lambda: bool(lines(group)), PATIENCE_S)
        terms = [re.findall(rb" term=(\d+) ", line) for line in lines(group)]
        once = "whoever leads says it once, the others nothing"
        assert len({term for (term,) in terms}) == len(terms), once
        leader = next(node for node in group.nodes if LINE in node.log.read_bytes())
        line = lines(group)[0]
        assert b" ERROR " in line
        found = re.search(rb" was_index=(\d+) .* lost=(\d+)\.\.(\d+) ", line)
        assert found is not None
        was, lost_first, lost_last = map(int, found.groups())
        assert lost_first <= committed < was == lost_last, "the twenty messages"
        assert f"{lost_first}..{lost_last}" in str(runtime(leader)["raftWentBack"])
        assert attribute(group, leader.name) == runtime(leader)["raftWentBack"]
        send(group, 1)

        stop(group)  # one after the other: another one may lead for a moment, and say so too
        before = len(lines(group))
        for node in group.nodes:
            store = str(tmp_path / node.name)
            mark_restored(store, group=group.group, node_id=NodeId(node.name), name="evening")
        leader = start(group)
        send(group, 1)
        assert len(lines(group)) == before, "the operator said so: no error"
        assert runtime(leader)["raftWentBack"] == "no"
        told = group.name_servers[0].log.read_bytes()
        assert told.count(b"broker-a was restored from backups as 'evening'") == 1
